// Continuous batching over the stages of one pipeline (Orca, section 4.2). Requests are spread over
// as many lanes as there are stages, each lane has one iteration in flight, and stages serve
// iterations in the order in which they entered.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "experiments/lib/spotserve/pipeline.h"

namespace millrace::experiments::spotserve {
namespace {

using plan::spot::ParallelConfig;
using plan::spot::Profile;

constexpr double kSameInstant = 1e-8;

struct Lane {
  std::vector<int> ready;    // decode with the next iteration
  std::vector<int> waiting;  // need their prefill first
  std::vector<int> prefill;  // in the current iteration, which is then a prefill
  std::optional<double> end_s;
  size_t size() const { return ready.size() + waiting.size() + prefill.size(); }
};

class ContinuousPipeline : public Pipeline {
 public:
  ContinuousPipeline(const Profile& profile, const ParallelConfig& config,
                     const RequestLengths& lengths, std::vector<RequestState>& requests)
      : profile_(profile),
        config_(config),
        lengths_(lengths),
        requests_(requests),
        layers_((profile.layers + config.pipeline - 1) / config.pipeline),
        lanes_(config.pipeline),
        stage_free_s_(config.pipeline) {}

  int FreeSlots() const override { return std::max(0, config_.batch - running()); }
  int running() const override {
    size_t n = 0;
    for (const Lane& lane : lanes_) n += lane.size();
    return static_cast<int>(n);
  }

  void Start(double now_s, std::span<const int> requests, bool has_kv, int) override {
    MR_CHECK(static_cast<int>(requests.size()) <= FreeSlots());
    for (const int r : requests) {
      Lane& lane =
          *std::min_element(lanes_.begin(), lanes_.end(),
                            [](const Lane& a, const Lane& b) { return a.size() < b.size(); });
      (has_kv ? lane.ready : lane.waiting).push_back(r);
    }
    for (Lane& lane : lanes_) {
      if (!lane.end_s.has_value()) Launch(lane, now_s);
    }
  }

  std::optional<double> NextEvent() const override {
    std::optional<double> next;
    for (const Lane& lane : lanes_) {
      if (lane.end_s.has_value() && (!next.has_value() || *lane.end_s < *next)) next = lane.end_s;
    }
    return next;
  }

  std::vector<Stopped> Advance(double now_s) override {
    for (;;) {
      Lane* first = nullptr;
      for (Lane& lane : lanes_) {
        if (lane.end_s.has_value() && *lane.end_s <= now_s + kSameInstant &&
            (first == nullptr || *lane.end_s < *first->end_s)) {
          first = &lane;
        }
      }
      if (first == nullptr) return {};
      Land(*first);
    }
  }

  void Limit(const ParallelConfig& config) override { config_ = config; }

  std::vector<Stopped> Cut(double now_s) override {
    Advance(now_s);
    std::vector<Stopped> stopped;
    for (Lane& lane : lanes_) {
      for (const int r : lane.ready) stopped.push_back({r, true});
      for (const int r : lane.prefill) stopped.push_back({r, false});
      for (const int r : lane.waiting) stopped.push_back({r, false});
      lane = {};
    }
    return stopped;
  }

 private:
  // Starts one iteration of one kind: a lane with new requests runs their prefill, otherwise all
  // decode.
  void Launch(Lane& lane, double now_s) {
    const bool prefill = !lane.waiting.empty();
    if (!prefill && lane.ready.empty()) return;
    const size_t n = prefill ? lane.waiting.size() : lane.ready.size();
    const auto& cell = profile_.At(config_.tensor, static_cast<int>(std::bit_ceil(n)));
    MR_CHECK(cell.has_value()) << "no measured time for a batch of " << n;
    double stage_ms = cell->decode_ms * layers_, hop_ms = profile_.stage_decode_ms;
    if (prefill) {
      int context = 0;
      for (const int r : lane.waiting) {
        context = std::max(context, lengths_.input_tokens + requests_[r].done);
      }
      stage_ms = cell->prefill_ms * layers_ * context / lengths_.input_tokens;
      hop_ms = profile_.stage_prefill_ms;
      lane.prefill.swap(lane.waiting);
    }
    double at_s = now_s;
    for (double& free_s : stage_free_s_) {
      at_s = std::max(at_s, free_s) + stage_ms * profile_.overhead_factor / 1000;
      free_s = at_s;
      if (&free_s != &stage_free_s_.back()) at_s += hop_ms * profile_.overhead_factor / 1000;
    }
    lane.end_s = at_s;
  }

  void Land(Lane& lane) {
    const double now_s = *lane.end_s;
    lane.end_s.reset();
    if (!lane.prefill.empty()) {
      lane.ready.insert(lane.ready.end(), lane.prefill.begin(), lane.prefill.end());
      lane.prefill.clear();
    } else {
      for (const int r : lane.ready) {
        if (++requests_[r].done == lengths_.output_tokens) requests_[r].finish_s = now_s;
      }
      std::erase_if(lane.ready, [&](int r) { return requests_[r].finish_s.has_value(); });
    }
    Launch(lane, now_s);
  }

  const Profile& profile_;
  ParallelConfig config_;
  RequestLengths lengths_;
  std::vector<RequestState>& requests_;
  int layers_;
  std::vector<Lane> lanes_;
  std::vector<double> stage_free_s_;
};

}  // namespace

std::unique_ptr<Pipeline> MakeContinuousPipeline(const Profile& profile,
                                                 const ParallelConfig& config,
                                                 const RequestLengths& lengths,
                                                 std::vector<RequestState>& requests) {
  return std::make_unique<ContinuousPipeline>(profile, config, lengths, requests);
}

}  // namespace millrace::experiments::spotserve
