// Requests: the requests that have not ended. Each waits in the queue or is in one pipeline. This
// part keeps the queue, what was delivered, and which requests may be what kills pipelines.
//
// No call walks the queue: tens of thousands of requests may wait, and the costs of each must not
// grow with the others.
//
// Owned by the controller, which chooses pipelines. Pure; one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/parts/bit_class.h"
#include "cluster/control/parts/blame_ledger.h"
#include "cluster/control/parts/output_estimate.h"
#include "cluster/control/routing/router.h"
#include "core/output.h"
#include "core/plan.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct RequestsOptions {
  int max_model_len = 0;   // tokens of a prompt and its output
  int block_size = 1;      // of KV
  int waiting_max = 0;     // requests that may wait
  Duration waiting_limit;  // how long one may wait
  int deaths_max = 0;      // of BlameLedger
  int step_tokens_max = 1;
};

// Where a request runs or will run: chosen by the router, with its KV reserved there.
struct Placement {
  Walk walk;
  PipelineId pipeline;
  int64_t answer_work = 0;  // tokens that count as flow; the router corrects them at the end
  int64_t delivered_before = 0;
  int64_t cached_tokens = 0;  // of its prompt, in the pipeline's prefix cache when it was placed
  bool counts = true;         // false: the router that counted it is gone
};

// What its pipeline computes before the request's first token there, beyond what a decode computes.
int64_t PrefillTokens(const sched::NewRequest& request);

// Where prompts are computed apart, requests wait for two kinds of pipelines.
enum class WaitsFor : uint8_t { kPrefill, kDecode };
inline constexpr std::array kAllQueues = {WaitsFor::kPrefill, WaitsFor::kDecode};

class Requests {
 public:
  struct Request {
    // Members that every token touches are adjacent: with 10,000 requests none of them is in the
    // CPU cache.
    std::optional<PipelineId> pipeline;  // the pipeline whose scheduler has it
    int64_t delivered = 0;               // tokens
    bool prefilling = false;             // its pipeline has not produced a token for it
    Time arrived, waits_since;
    Time waits_until;  // then it fails if no pipeline has taken it; in Waited()
    // The class that computed its newest token; unset: it has none.
    std::optional<BitClass> bits;
    sched::NewRequest spec;                    // as the client sent it
    std::optional<sched::NewRequest> waiting;  // set while it waits: what its pipeline will get
    WaitsFor waits_for = WaitsFor::kPrefill;   // while it waits
    std::optional<Placement> placement;        // unset: it waits for one
    std::vector<int> ended;                    // its sequences that have ended
    // For its account, while it waits: what the last attempt to place it lacked, and how many
    // waited when it joined them.
    TimeCause lacks = TimeCause::kNoPipeline;
    int ahead = 0;

    int n() const { return spec.params->n; }
    int prompt_tokens() const { return static_cast<int>(spec.prompt->size()); }
    int64_t known_tokens() const { return prompt_tokens() + delivered; }
  };

  explicit Requests(RequestsOptions options)
      : options_(options), blame_(options.deaths_max, options.step_tokens_max) {}

  // Adds a request, which waits. REQUIRES: the id is new. kInvalidArgument: its prompt is too long.
  // kResourceExhausted: too many wait.
  Status Add(sched::NewRequest request, Time now);
  // Its next pipeline gets `request`.
  void Wait(RequestId id, sched::NewRequest request, Time now);
  // The account of a request that waits, until now. nullopt: it does not.
  std::optional<TimeAccount> AccountOfWaiting(RequestId id, Time now) const;
  // It is in this pipeline, and waits no more.
  void Enter(RequestId id, PipelineId pipeline);
  // It has ended.
  void Erase(RequestId id);

  // Null: unknown, or ended.
  Request* Find(RequestId id);
  const Request* Find(RequestId id) const;
  // REQUIRES: the request has not ended.
  Request& at(RequestId id) { return all_.at(id); }
  const std::unordered_map<RequestId, Request>& all() const { return all_; }
  size_t size() const { return all_.size(); }
  size_t waiting() const { return waiting(WaitsFor::kPrefill) + waiting(WaitsFor::kDecode); }
  size_t waiting(WaitsFor what) const { return queues_[Index(what)].size(); }
  // Tokens to be computed before the first ones of those that wait and have none.
  int64_t waiting_prefill_tokens() const { return waiting_prefill_tokens_; }
  // The order of those that wait: by arrival.
  using QueueKey = std::pair<Time, RequestId>;
  // The first one of these queues after `after`, or of all of it if that is unset. nullopt: none.
  std::optional<QueueKey> NextWaiting(std::optional<QueueKey> after,
                                      std::span<const WaitsFor> queues) const;
  // The maximum number of tokens that it may generate, over all its sequences.
  int64_t OutputLimit(const Request& request) const;
  // Tokens that it will probably generate in all, over its sequences, from now on and before.
  int64_t EstimatedOutput(const Request& request) const;
  // The most blocks of KV that it can hold at once.
  int MostBlocks(const Request& request) const;
  // The most blocks that it will probably hold at once.
  int EstimatedBlocks(const Request& request) const;

  // Its answer ended by itself. Later estimates use its length.
  void Answered(const Request& request) {
    if (!request.spec.params->pools()) outputs_.Ended(request.delivered / request.n());
  }

  // Something has changed, so requests that wait may find a place.
  void TryQueue() { try_queue_ = true; }
  // Whether it has since the last call.
  bool TakeTryQueue() { return std::exchange(try_queue_, false); }

  // Ends the unfinished sequences, or sequence `index`, of a request that waits, and appends their
  // outputs. True: the request has ended; the caller erases it.
  bool EndWaiting(RequestId id, FinishReason reason, const Status& error, std::optional<int> index,
                  Time now, std::vector<RequestOutput>& outputs);
  // This process stood still that long, which is no wait for a pipeline.
  void StoodStill(Duration time) { stood_still_ = stood_still_ + time; }
  // Those that have waited for too long, by arrival.
  std::vector<RequestId> Expired(Time now) const;

  // Filters the outputs of a pipeline's scheduler, which are those from `first` on. Only the
  // pipeline that has a request may produce outputs for it. Appends to `notable` the indices of
  // last outputs (they have times), and of outputs with the first token that the pipeline has
  // produced for a request.
  void Filter(PipelineId pipeline, std::vector<RequestOutput>& outputs, size_t first,
              std::vector<size_t>& notable);

  // The class has computed the output. True: it is the first with tokens of this class. From then
  // on the request keeps to the class.
  bool BeginsClass(BitClass bits, const RequestOutput& output);

  // Which of them may be what ends their workers.
  BlameLedger& blame() { return blame_; }

  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  Time Waited(Time now) const { return now + Duration{-stood_still_.ns}; }
  static size_t Index(WaitsFor what) { return static_cast<size_t>(what); }
  static int64_t PrefillTokensOf(const Request& request);
  void JoinQueue(RequestId id, Request& request);
  void LeaveQueue(RequestId id, const Request& request);  // ignored if it does not wait

  const RequestsOptions options_;
  std::unordered_map<RequestId, Request> all_;
  std::array<std::set<QueueKey>, 2> queues_;       // by what they wait for
  std::set<std::pair<Time, RequestId>> expiries_;  // of those that wait
  int64_t waiting_prefill_tokens_ = 0;
  Duration stood_still_;  // so far
  bool try_queue_ = false;
  BlameLedger blame_;
  OutputEstimate outputs_;
};

}  // namespace millrace::cluster
