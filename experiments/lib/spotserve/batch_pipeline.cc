// Batches that run to completion (SpotServe's engine).
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "experiments/lib/spotserve/pipeline.h"

namespace millrace::experiments::spotserve {

using plan::spot::ExecutionTime;
using plan::spot::ParallelConfig;
using plan::spot::Profile;

ExecutionTime BatchTime(const Profile& profile, ParallelConfig config, int batch) {
  config.batch = static_cast<int>(std::bit_ceil(static_cast<unsigned>(batch)));
  config.prefill_micro_batches = std::min(config.prefill_micro_batches, config.batch);
  config.decode_micro_batches = std::min(config.decode_micro_batches, config.batch);
  const auto time = Execution(profile, config);
  MR_CHECK(time.has_value()) << "no measured time for " << ToString(config);
  return *time;
}

namespace {

constexpr double kInstant = 1e-8;  // seconds: the event queue counts nanoseconds

class BatchPipeline : public Pipeline {
 public:
  BatchPipeline(const Profile& profile, const ParallelConfig& config, const RequestLengths& lengths,
                std::vector<RequestState>& requests)
      : profile_(profile), config_(config), lengths_(lengths), requests_(requests) {}

  int FreeSlots() const override { return batch_.empty() ? config_.batch : 0; }
  int running() const override { return static_cast<int>(batch_.size()); }

  void Start(double now_s, std::span<const int> requests, bool has_kv, int steps_max) override {
    MR_CHECK(batch_.empty() && !requests.empty() && steps_max > 0);
    batch_.assign(requests.begin(), requests.end());
    const ExecutionTime time = BatchTime(profile_, config_, running());
    int remaining = 0, context = 0;
    for (const int r : batch_) {
      remaining = std::max(remaining, lengths_.output_tokens - requests_[r].done);
      context = std::max(context, lengths_.input_tokens + requests_[r].done);
    }
    const double prefill_ms = has_kv ? 0 : time.prefill_ms * context / lengths_.input_tokens;
    start_s_ = now_s;
    lead_s_ = (prefill_ms + time.fixed_ms) / 1000;
    step_s_ = time.step_ms / 1000;
    steps_ = std::min(remaining, steps_max);
    resumed_ = has_kv;
  }

  std::optional<double> NextEvent() const override {
    if (batch_.empty()) return std::nullopt;
    return start_s_ + lead_s_ + steps_ * step_s_;
  }

  std::vector<Stopped> Advance(double now_s) override {
    if (batch_.empty() || now_s < *NextEvent() - kInstant) return {};
    return End(steps_);
  }

  void Limit(const ParallelConfig& config) override { config_ = config; }

  std::vector<Stopped> Cut(double now_s) override {
    const double steps = std::floor((now_s - start_s_ - lead_s_ + kInstant) / step_s_);
    return End(static_cast<int>(std::clamp<double>(steps, 0, steps_)));
  }

 private:
  std::vector<Stopped> End(int steps) {
    std::vector<Stopped> stopped;
    for (const int r : batch_) {
      RequestState& request = requests_[r];
      const int remaining = lengths_.output_tokens - request.done;
      request.done += std::min(steps, remaining);
      if (steps >= remaining) {
        request.finish_s = start_s_ + lead_s_ + remaining * step_s_;
      } else {
        stopped.push_back({r, steps > 0 || resumed_});
      }
    }
    batch_.clear();
    return stopped;
  }

  const Profile& profile_;
  ParallelConfig config_;
  RequestLengths lengths_;
  std::vector<RequestState>& requests_;
  std::vector<int> batch_;
  double start_s_ = 0, lead_s_ = 0, step_s_ = 0;
  int steps_ = 0;
  bool resumed_ = false;
};

}  // namespace

std::unique_ptr<Pipeline> MakeBatchPipeline(const Profile& profile, const ParallelConfig& config,
                                            const RequestLengths& lengths,
                                            std::vector<RequestState>& requests) {
  return std::make_unique<BatchPipeline>(profile, config, lengths, requests);
}

}  // namespace millrace::experiments::spotserve
