#include "plan/distserve/distserve_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace millrace::plan {
namespace {

// With a rate to serve, tries counts up to this much above the smallest that could carry it.
constexpr int kExtraInstances = 8;

class Maker {
 public:
  Maker(const DistServeProblem& problem, const DistServeOptions& options, HalfGoodputs& halves)
      : problem_(problem),
        options_(options),
        halves_(halves),
        grid_{problem.nodes, problem.devices_per_node} {}

  std::vector<Promise> Make() {
    if (options_.colocated) AddTogether(ServingMode::kColocated);
    if (options_.chunked) AddTogether(ServingMode::kChunked);
    if (!options_.disaggregated) return std::move(promises_);
    for (const Parallel& prefill : problem_.parallels) {
      for (const Parallel& decode : problem_.parallels) {
        if (problem_.kv.across_nodes && problem_.nodes > 1) AddAcross(prefill, decode);
        for (int segments = 1; segments <= problem_.nodes; ++segments) {
          AddInside(prefill, decode, segments);
        }
      }
    }
    return std::move(promises_);
  }

 private:
  void AddTogether(ServingMode mode) {
    for (const Parallel& parallel : problem_.parallels) {
      const int count = MaxInstances(grid_, parallel);
      if (count == 0) continue;
      promises_.push_back(
          {.unit = {.mode = mode, .prefill = parallel, .prefills = 1, .decodes = 0},
           .units_max = count,
           // One device does both, so the result is at most that of either half alone.
           .per_unit = std::min(halves_.Prefill(parallel, count), halves_.Decode(parallel, count)) /
                       count});
    }
  }

  // Requests per second that `nodes` sending nodes can transmit. Each stage of a pipeline sends.
  double NetworkBound(int sending_nodes) const {
    if (!problem_.kv.nic_bytes_per_s || problem_.kv.bytes_per_request <= 0) {
      return std::numeric_limits<double>::infinity();
    }
    return sending_nodes * *problem_.kv.nic_bytes_per_s / problem_.kv.bytes_per_request;
  }

  void AddAcrossOne(const Parallel& prefill, const Parallel& decode, int n, int m) {
    const double promised = std::min(halves_.Prefill(prefill, n), halves_.Decode(decode, m));
    const int stages_per_node = grid_.devices_per_node / prefill.tensor;
    const int senders = (n * prefill.pipeline + stages_per_node - 1) / stages_per_node;
    const double network = NetworkBound(senders);
    promises_.push_back({.unit = {.prefill = prefill,
                                  .decode = decode,
                                  .prefills = n,
                                  .decodes = m,
                                  .kv_across_nodes = true},
                         .units_max = 1,
                         .per_unit = std::min(promised, network),
                         .network = network < promised});
  }

  void AddAcross(const Parallel& prefill, const Parallel& decode) {
    const double one_prefill = halves_.Prefill(prefill, DistServeOptions::kPoolMax);
    const double one_decode = halves_.Decode(decode, DistServeOptions::kPoolMax);
    if (one_prefill <= 0 || one_decode <= 0) return;
    const double per_prefill = one_prefill / DistServeOptions::kPoolMax * options_.slack;
    const double per_decode = one_decode / DistServeOptions::kPoolMax * options_.slack;
    const auto beside = MaxStagesBeside(grid_, prefill.tensor, decode.tensor);
    const int n_max = (static_cast<int>(beside.size()) - 1) / prefill.pipeline;
    int n_first = 1, n_last = n_max;
    if (problem_.requests_per_s) {
      n_first = WholeUnits(*problem_.requests_per_s / per_prefill);
      n_last = std::min(n_max, n_first + kExtraInstances);
    }
    for (int n = n_first; n <= n_last; ++n) {
      const int m_max = beside[n * prefill.pipeline] / decode.pipeline;
      if (m_max == 0) break;
      if (!problem_.requests_per_s) {
        // More decodes than these prefills can feed do not help.
        const double wanted = std::ceil(n * per_prefill / per_decode);
        AddAcrossOne(prefill, decode, n, static_cast<int>(std::min<double>(m_max, wanted)));
        continue;
      }
      const int m_first = WholeUnits(*problem_.requests_per_s / per_decode);
      for (int m = m_first; m <= std::min(m_max, m_first + kExtraInstances); ++m) {
        AddAcrossOne(prefill, decode, n, m);
      }
    }
  }

  // All ratios of segments that one node can hold.
  void AddInside(const Parallel& prefill, const Parallel& decode, int segments) {
    if (prefill.pipeline % segments != 0 || decode.pipeline % segments != 0) return;
    const int p = prefill.devices() / segments, d = decode.devices() / segments;
    for (int n = 1; n * p + d <= grid_.devices_per_node; ++n) {
      for (int m = 1; n * p + m * d <= grid_.devices_per_node; ++m) {
        if (std::gcd(n, m) != 1) continue;
        const int units = MaxSegmentedUnits(grid_, segments, n * p + m * d);
        if (units == 0) continue;
        const double promised =
            std::min(halves_.Prefill(prefill, n * units), halves_.Decode(decode, m * units));
        promises_.push_back({.unit = {.prefill = prefill,
                                      .decode = decode,
                                      .prefills = n,
                                      .decodes = m,
                                      .segments = segments},
                             .units_max = units,
                             .per_unit = promised / units});
      }
    }
  }

  const DistServeProblem& problem_;
  const DistServeOptions& options_;
  HalfGoodputs& halves_;
  const NodeGrid grid_;
  std::vector<Promise> promises_;
};

}  // namespace

double HalfGoodputs::Of(bool prefill, const Parallel& parallel, int count) {
  int group = 1;
  while (group * 2 <= std::min(count, DistServeOptions::kPoolMax)) group *= 2;
  const auto key = std::make_tuple(prefill, parallel.tensor, parallel.pipeline, group);
  const auto [it, added] = known_.try_emplace(key, 0);
  if (added) {
    const DistServeUnit unit{.prefill = parallel,
                             .decode = parallel,
                             .prefills = prefill ? 1 : 0,
                             .decodes = prefill ? 0 : 1};
    const double guess = group > 1 ? 2 * Of(prefill, parallel, group / 2) : 1;
    // References into the map stay valid while it grows.
    it->second = evaluator_.goodput(unit, group, guess > 0 ? guess : 1).requests_per_s;
  }
  return it->second / group * count;
}

std::vector<Promise> MakePromises(const DistServeProblem& problem, const DistServeOptions& options,
                                  HalfGoodputs& halves) {
  return Maker(problem, options, halves).Make();
}

}  // namespace millrace::plan
