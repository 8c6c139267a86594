#include "sim/fast/static_batching.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/check.h"

namespace millrace::sim {
namespace {

class Batch {
 public:
  Batch(const StaticBatchingOptions& options, std::vector<SimRequest> requests)
      : options_(options), requests_(std::move(requests)) {
    for (const SimRequest& r : requests_) {
      prompt_tokens_ = std::max(prompt_tokens_, r.prompt_tokens);
      output_tokens_ = std::max(output_tokens_, r.output_tokens);
    }
  }

  int iterations() const { return output_tokens_; }

  // The end of iteration `i` if it begins at `now`. Its micro-batches follow each other through the
  // stages, and the next iteration waits for the last one.
  Time RunIteration(int i, Time now) const {
    std::vector<Time> free(options_.stages.size(), now);
    Time end = now;
    const int count = static_cast<int>(requests_.size());
    for (int first = 0; first < count; first += options_.micro_batch) {
      const cost::BatchShape shape = ShapeOf(std::min(options_.micro_batch, count - first), i);
      Time at = now;
      for (size_t s = 0; s < free.size(); ++s) {
        at = free[s] =
            std::max(at, free[s]) + Duration::Seconds(options_.stages[s]->Seconds(shape));
      }
      end = std::max(end, at);
    }
    return end;
  }

 private:
  cost::BatchShape ShapeOf(int sequences, int iteration) const {
    const int64_t n = sequences, length = prompt_tokens_;
    if (iteration == 0) {
      return {.prefill_tokens = n * length,
              .prefill_tokens_squared = n * length * length,
              .prefill_sequences = sequences};
    }
    return {.decode_sequences = sequences, .decode_context = n * (length + iteration)};
  }

  const StaticBatchingOptions& options_;
  const std::vector<SimRequest> requests_;
  int prompt_tokens_ = 0, output_tokens_ = 0;
};

}  // namespace

LatencyReport RunStaticBatching(const StaticBatchingOptions& options, Workload& workload) {
  MR_CHECK(!options.stages.empty() && options.max_batch > 0 && options.micro_batch > 0);
  Recorder recorder(options.limits);
  std::optional<SimRequest> next = workload.Next();
  std::deque<SimRequest> queue;
  Time now;
  while (next || !queue.empty()) {
    if (queue.empty()) now = std::max(now, next->arrival);
    for (; next && next->arrival <= now; next = workload.Next()) queue.push_back(*next);
    const size_t taken = std::min(queue.size(), static_cast<size_t>(options.max_batch));
    std::vector<SimRequest> requests(queue.begin(), queue.begin() + static_cast<int64_t>(taken));
    queue.erase(queue.begin(), queue.begin() + static_cast<int64_t>(taken));
    const Batch batch(options, requests);
    for (int i = 0; i < batch.iterations(); ++i) now = batch.RunIteration(i, now);
    for (const SimRequest& r : requests) {  // clients get tokens only when all requests are done
      RequestOutput output{.request = recorder.Arrived(r), .finish = FinishReason::kLength};
      for (int t = 0; t < r.output_tokens; ++t) output.tokens.push_back(0);
      recorder.Heard(output, now);
    }
  }
  return recorder.report();
}

}  // namespace millrace::sim
