#include "sim/placement_evaluator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "plan/distserve/distserve_prefill.h"

namespace millrace::sim {
namespace {

using plan::DistServeUnit;
using plan::ServingMode;

constexpr double kNever = 1e12;         // a limit that every request meets
constexpr double kIdleSpacing_s = 1e4;  // between requests that never overlap
constexpr int kIdleRequests = 200;

// Replaces the prefill instances when decode is judged alone.
class FreeCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape&) const override { return 0; }
};
const FreeCost kFree;

TrialMode ModeOf(ServingMode mode) {
  switch (mode) {
    case ServingMode::kDisaggregated: return TrialMode::kDisaggregated;
    case ServingMode::kColocated: return TrialMode::kColocated;
    case ServingMode::kChunked: return TrialMode::kChunked;
  }
  return TrialMode::kDisaggregated;
}

// The least limit that this share of the values keeps.
double LimitKeptBy(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = std::ceil(share * static_cast<double>(values.size())) - 1;
  return values[static_cast<size_t>(std::max(place, 0.0))];
}

}  // namespace

PlacementEvaluator::PlacementEvaluator(PlacementOptions options, KindOf kind_of)
    : options_(std::move(options)), kind_of_(std::move(kind_of)) {
  MR_CHECK(!options_.lengths.empty()) << "an evaluator without lengths";
}

const PlacementEvaluator::Known& PlacementEvaluator::KindFor(const plan::Parallel& parallel) {
  const auto [it, added] = kinds_.try_emplace({parallel.tensor, parallel.pipeline});
  Known& known = it->second;
  if (added) {
    known.kind = kind_of_(parallel);
    for (const auto& stage : known.kind.stages) known.instance.stages.push_back(stage.get());
    known.instance.kv_tokens = known.kind.kv_tokens;
    if (!known.instance.stages.empty()) {
      known.saturating = plan::SaturatingPromptTokens(known.instance.stages, options_.batch_tokens);
    }
  }
  return known;
}

TrialDeployment PlacementEvaluator::Deploy(const DistServeUnit& unit, int units) {
  TrialDeployment d{.mode = ModeOf(unit.mode),
                    .prefills = unit.prefills * units,
                    .decodes = unit.decodes * units,
                    .groups = units,
                    .sequences_max = options_.sequences_max,
                    .kv_bytes_per_token = options_.kv_bytes_per_token};
  if (unit.mode != ServingMode::kDisaggregated) {
    d.prefill = KindFor(unit.prefill).instance;
    d.prefill_batch_tokens =
        unit.mode == ServingMode::kChunked ? options_.chunk_tokens : options_.batch_tokens;
    return d;
  }
  if (unit.decodes > 0) d.decode = KindFor(unit.decode).instance;
  if (unit.prefills == 0) {
    d.prefill = {.stages = {&kFree}, .kv_tokens = INT64_MAX / 2};
    d.prefills = d.groups = 1;
    return d;
  }
  d.prefill = KindFor(unit.prefill).instance;
  d.prefill_batch_tokens = KindFor(unit.prefill).saturating;
  if (unit.kv_across_nodes) {
    // The instances of a node share its NIC; a pipeline over several nodes sends from each.
    const double nodes = static_cast<double>(unit.prefill.devices()) / options_.devices_per_node;
    d.kv_bytes_per_s = options_.nic_bytes_per_s * nodes;
  } else {
    d.kv_bytes_per_s = options_.kv_bytes_per_s_inside * unit.prefill.devices();
  }
  return d;
}

const std::vector<TrialRequest>& PlacementEvaluator::Requests(double requests_per_s,
                                                              uint64_t seed) {
  const int count = static_cast<int>(std::clamp(requests_per_s * options_.trial_s,
                                                static_cast<double>(options_.requests_min),
                                                static_cast<double>(options_.requests_max)));
  Draws& draws = draws_[seed];
  if (draws.arrivals.empty()) {
    Rng gaps(HashCounter(seed, 1)), lengths(HashCounter(seed, 2));
    double at = 0;
    for (int i = 0; i < options_.requests_max; ++i) {
      draws.arrivals.push_back(at);
      at += -std::log(1 - gaps.Uniform());
      draws.lengths.push_back(options_.lengths[lengths.Next() % options_.lengths.size()]);
    }
  }
  requests_.resize(count);
  for (int i = 0; i < count; ++i) {
    requests_[i] = {draws.arrivals[i] / requests_per_s, draws.lengths[i].prompt_tokens,
                    draws.lengths[i].output_tokens};
  }
  return requests_;
}

plan::Attainment PlacementEvaluator::Attain(const DistServeUnit& unit, int units,
                                            double requests_per_s, uint64_t seed, bool bound) {
  ++trials_;
  const TrialDeployment deployment = Deploy(unit, units);
  TrialLimits limits{.ttft_s = options_.ttft_s, .tpot_s = options_.tpot_s};
  if (bound) limits.give_up_below = options_.goodput.attainment;
  if (unit.mode == ServingMode::kDisaggregated && unit.prefills == 0) limits.ttft_s = kNever;
  const auto report = RunTrial(deployment, Requests(requests_per_s, seed), limits);
  // A deployment that does not fit meets no limit.
  if (!report.ok()) return {};
  const double all = report->requests;
  return {report->met_both / all, report->met_ttft / all, report->met_tpot / all};
}

plan::Goodput PlacementEvaluator::FindGoodput(const DistServeUnit& unit, int units, double guess) {
  const bool half =
      unit.mode == ServingMode::kDisaggregated && (unit.prefills == 0 || unit.decodes == 0);
  return plan::FindGoodput(
      [&](double rate, uint64_t seed) { return Attain(unit, units, rate, seed, true); },
      half ? options_.screening : options_.goodput, guess);
}

plan::UnloadedLatency PlacementEvaluator::Unloaded(const DistServeUnit& unit) {
  std::vector<TrialRequest> requests;
  Rng rng(options_.goodput.first_seed);
  for (int i = 0; i < kIdleRequests; ++i) {
    const Lengths& l = options_.lengths[rng.Next() % options_.lengths.size()];
    requests.push_back({i * kIdleSpacing_s, l.prompt_tokens, l.output_tokens});
  }
  const auto report =
      RunTrial(Deploy(unit, 1), requests, {.ttft_s = kNever, .tpot_s = kNever}, true);
  if (!report.ok()) return {kNever, kNever};
  std::vector<double> ttft, tpot;
  for (const TrialTimes& t : report->times) {
    ttft.push_back(t.ttft_s);
    tpot.push_back(t.tpot_s);
  }
  const double share = options_.goodput.attainment;
  return {LimitKeptBy(std::move(ttft), share), LimitKeptBy(std::move(tpot), share)};
}

plan::DistServeEvaluator PlacementEvaluator::Callbacks() {
  return {.goodput = [this](const DistServeUnit& unit, int units,
                            double guess) { return FindGoodput(unit, units, guess); },
          .unloaded = [this](const DistServeUnit& unit) { return Unloaded(unit); }};
}

}  // namespace millrace::sim
