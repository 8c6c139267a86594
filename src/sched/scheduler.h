// Scheduler: iteration-level scheduling over a paged KV cache, as a pure state machine (Orca
// section 3.1; vLLM section 4). Requests, aborts, step results and the time go in; step plans and
// outputs come out. No thread, socket, clock or random device: the server's engine and the
// simulator drive the very same object.
//
//   while (running) {
//     while (auto* plan = scheduler.Schedule(now)) executor.Submit(*plan);
//     if (scheduler.steps_in_flight() > 0) scheduler.Commit(executor.Wait(), now, outputs);
//   }
//
// Owned and called by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"

namespace millrace::sched {

// Who comes first: by arrival, or by priority and then arrival.
enum class SchedulingPolicy { kFcfs, kPriority };
// How KV slots are promised (vLLM section 6.1's baselines): on demand, or a whole reservation.
enum class KvPolicy { kPaged, kOrca, kOrcaMax, kOrcaPow2, kOrcaOracle };
// What a step is made of: prompts and decodes together (Orca's selective batching, chunks), or
// prompts alone while any can start and decodes alone otherwise (vLLM at the time of its paper).
enum class StepMix { kMixed, kPrefillFirst };
enum class PreemptionMode { kRecompute, kSwap, kAuto };

// Predicted costs behind PreemptionMode::kAuto; measured by the body, both logged on each choice.
struct PreemptionCosts {
  double prefill_tokens_per_s = 1000;
  double swap_bytes_per_s = 5e9;
  double swap_block_overhead_s = 5e-6;
  int64_t kv_bytes_per_block = 0;
};

struct SchedulerOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;            // swap pool; 0: no swapping
  int max_num_seqs = 128;             // sequences in a step
  int max_num_batched_tokens = 2048;  // tokens in a step
  int max_model_len = 0;              // prompt + output of a sequence
  int max_waiting = 4096;             // requests; beyond: kResourceExhausted
  int stages = 1;                     // steps in flight (Orca's n_workers)
  // Share the sequences evenly among the steps in flight, so that every stage has work, and spread
  // the prompts that wait over many steps, so that it has it soon; otherwise a step takes as many
  // as it may (Orca, Algorithm 1).
  bool even_steps = false;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  KvPolicy kv_policy = KvPolicy::kPaged;
  StepMix step_mix = StepMix::kMixed;
  PreemptionMode preemption = PreemptionMode::kAuto;
  PreemptionCosts costs;
  bool prefix_caching = true;
  double watermark = 0.01;  // of the blocks, kept free when admitting while others run
  Duration watchdog = Duration::Seconds(1);
  std::vector<TokenId> eos_token_ids;
  std::string cache_identity;   // what KV content depends on besides tokens: model, KV type, ...
  bool hashes_collide = false;  // for tests: all prefix hashes are equal
};

// What became elsewhere of one of a request's sequences.
struct ResumedSequence {
  std::vector<TokenId> output;  // count towards max_tokens, and are not told again
  bool finished = false;        // its end was told: nothing is computed for it
};

struct NewRequest {
  RequestId id;  // unique; the caller's counter
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::shared_ptr<const SamplingParams> params;  // validated
  uint64_t seed = 0;                             // of the request; sequences derive theirs
  int priority = 0;                              // smaller is sooner
  std::string cache_salt;                        // prefixes are shared within one salt
  // How long each output will be, where somebody knows (a replayed trace): orca-oracle and
  // orca-pow2 reserve by it.
  std::optional<int> known_output_tokens;

  // A request that began elsewhere: one for each of its n sequences, or none at all. At least one
  // is not finished. Unless KV is imported it is computed anew (token replay).
  std::vector<ResumedSequence> resumed;
  // When it arrived there and what happened since: its age, and its place among those who came
  // before and after. None: it arrives now.
  std::optional<RequestTimes> times;
  int cached_prompt_tokens = 0;  // that a prefix cache had where it first ran; with `times`
  // By sequence, leading tokens whose KV another stage holds (DistServe section 4.3: decode pulls);
  // empty: none. The request gets its blocks when it is admitted, appears in DrainPulls, and runs
  // after KvArrived. Of n > 1 the first that is not finished brings the prompt's for all; unless
  // each of them brings what it does not share of the prompt, no more than that is imported.
  std::vector<int> imported_tokens;
  // Keep the KV when the request ends by itself, until ReleaseKv or for so long; n = 1.
  std::optional<Duration> hold_kv;
};

// kPulling: has its blocks and waits for KV that another stage holds.
enum class RequestState { kWaiting, kPulling, kRunning, kPreempted, kSwapped, kFinished };

// What /debug/requests/{id} shows of the scheduler's side.
struct RequestInfo {
  RequestId id;
  RequestState state = RequestState::kWaiting;
  Duration age;
  std::string waits_for;  // "", or why it is not in the next step, with the numbers
  int prompt_tokens = 0;
  int computed_tokens = 0;  // summed over its sequences
  int output_tokens = 0;
  int blocks = 0;  // distinct device blocks held
  int host_blocks = 0;
  int preemptions = 0;
  int cached_prompt_tokens = 0;
};

struct SchedulerStats {
  int waiting = 0;  // requests
  int running = 0;
  int swapped = 0;
  int pulling = 0;
  int blocks_total = 0;
  int blocks_free = 0;      // including cached ones that nobody uses
  int blocks_cached = 0;    // of these
  int blocks_pending = 0;   // free as soon as a step in flight ends
  int blocks_pinned = 0;    // free as soon as a transfer ends
  int blocks_reserved = 0;  // promised by the Orca policies, held or not, with what placing costs
  int host_blocks_used = 0;
  // Of the sequences that run, in tokens; a prompt that they share counts for each.
  int64_t tokens_computed = 0;  // in the KV cache
  int64_t tokens_to_come = 0;   // that their limits still allow
  int64_t tokens_promised = 0;  // slots by the Orca policies, before they are rounded up and placed
  // Counters since the start.
  uint64_t requests_accepted = 0;
  uint64_t requests_detached = 0;
  uint64_t requests_finished[4] = {};  // by FinishReason, of the sequence that ended last
  uint64_t preemptions_recompute = 0;
  uint64_t preemptions_swap = 0;
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t prompt_tokens = 0;  // computed or found in the cache
  uint64_t prompt_tokens_recomputed = 0;
  uint64_t generation_tokens = 0;
  uint64_t swapped_out_blocks = 0;
  uint64_t steps = 0;
  uint64_t results_dropped = 0;  // of steps that were not in flight
  uint64_t copied_blocks = 0;    // copy-on-write

  SchedulerStats& operator+=(const SchedulerStats& other);  // of several schedulers
  SchedulerStats CountersOnly() const;                      // of one that is gone
};

// Why and how a request lost its place, one record per preemption, for the log and the metrics.
struct PreemptionRecord {
  RequestId victim;
  RequestId on_behalf_of;    // whose tokens needed the blocks
  int blocks_needed = 0;     // by the beneficiary in this step
  int blocks_available = 0;  // before
  int blocks_released = 0;
  int tokens_dropped = 0;  // computed tokens that recompute would replay
  double recompute_cost_s = 0;
  double swap_cost_s = 0;  // infinite when the swap pool has no room
  PreemptionMode chosen = PreemptionMode::kRecompute;

  std::string Describe() const;  // one line for the log
};

// KV of one sequence, to be fetched from another stage into blocks that are pinned for it.
struct KvPull {
  RequestId id;
  int index = 0;  // the sequence
  // What is before it the prefix cache had, or another sequence's pull brings.
  int first_token = 0;
  int end_token = 0;
  std::vector<BlockIndex> blocks;  // the sequence's whole table, from token 0
};

// Leading tokens of one sequence whose KV is in `blocks`.
struct SequenceKv {
  int tokens = 0;
  std::vector<BlockIndex> blocks;
};

// A request as it left a scheduler, or as it stands there.
struct DetachedRequest {
  // What another scheduler's Add takes to go on: `resumed` as far as tokens were told, `times`
  // since its arrival. imported_tokens is empty: whoever can carry the KV over sets it, for each
  // sequence to its `tokens` here.
  NewRequest request;
  // With hold_kv: the KV that will stay where it is (HeldBlocks), of each of the n sequences; empty
  // when there is none at all. Blocks of the prompt that they share appear in several.
  std::vector<SequenceKv> kv;
  // Of Peek: layers that have yet to compute some of it; the others have it all.
  std::optional<LayerRange> lacking = {};

  int computed_tokens() const;  // the most of any sequence
};

// Requests that began elsewhere were accepted there: they may wait beyond max_waiting, up to so
// many times as many.
inline constexpr int kHandedWaitingFactor = 2;

// Between two calls of DrainPreemptions; beyond, the oldest is dropped.
inline constexpr size_t kPreemptionRecordsMax = 1024;

class Scheduler {
 public:
  // kInvalidArgument when the options contradict each other.
  static Result<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);
  virtual ~Scheduler() = default;

  // kInvalidArgument: can never fit, with the numbers. kResourceExhausted: the queue is full.
  // kUnavailable: a pull for the same id, detached here before, has not ended.
  virtual Status Add(NewRequest request, Time now) = 0;
  // Ends the request, or only its sequence `index`, at once; the blocks a step in flight still uses
  // are freed when that step commits. kAbort outputs are appended for what had not finished.
  // Unknown or ended ids and indices are ignored.
  virtual void Abort(RequestId id, std::optional<int> index, Time now,
                     std::vector<RequestOutput>& outputs) = 0;

  // The next step, or nullptr when nothing can run now or `stages` steps are in flight. The plan
  // stays valid until the next call. Tokens a request has been told are never told again.
  virtual const StepPlan* Schedule(Time now) = 0;
  // Applies the result of a step by its id; a result of an unknown step is dropped and counted.
  // Outputs are appended; the last one of a request carries its RequestTimes.
  virtual void Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs) = 0;

  virtual int steps_in_flight() const = 0;
  virtual bool HasWork() const = 0;  // any request not finished
  virtual SchedulerStats Stats() const = 0;
  // Device blocks that hold what somebody still needs: Stats() without its walk over the queue.
  virtual int blocks_in_use() const = 0;
  virtual std::optional<RequestInfo> Inspect(RequestId id, Time now) const = 0;
  virtual std::vector<RequestInfo> InspectAll(Time now) const = 0;
  // Appends the preemptions since the last call, oldest first.
  virtual void DrainPreemptions(std::vector<PreemptionRecord>& records) = 0;

  // Appends what is to be pulled for requests that were given blocks; to be called after Schedule,
  // Commit and ExtendImport.
  virtual void DrainPulls(std::vector<KvPull>& pulls) = 0;
  // A pull ended, with the KV or without it; without any one of them, what was to be imported is
  // computed here. To be called once for every drained pull, even of a request that was aborted or
  // detached meanwhile: its blocks are kept until the last. The request runs after the last.
  virtual void KvArrived(RequestId id, bool complete, Time now) = 0;
  // The same, with the KV of every layer but these: they alone compute it again
  // (only_layers).
  virtual void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) = 0;
  // For a request that pulls while its source still runs it (live migration): appends tokens that
  // were generated there since and raises imported_tokens. More blocks are taken and one more pull
  // is drained, unless imported_tokens stays. To keep it from running, KvArrived is not called for
  // its last pull before the source has frozen it. kResourceExhausted: no blocks are left;
  // kFailedPrecondition: it does not pull (any more), or n > 1; kInvalidArgument: not more than
  // before.
  // Nothing has changed then.
  virtual Status ExtendImport(RequestId id, std::vector<TokenId> more_output,
                              int imported_tokens) = 0;
  // The blocks kept for `id` by hold_kv, each once, in order, sequence after sequence; empty when
  // they are released or expired.
  virtual std::vector<BlockIndex> HeldBlocks(RequestId id) const = 0;
  // Held KV was fetched, or nobody wants it. Unknown or expired ids are ignored.
  virtual void ReleaseKv(RequestId id) = 0;

  // What is known of a request that goes on here. The KV that is computed so far (running) is held
  // for so long or until ReleaseKv, and may be read although the request goes on; called again,
  // more is (n = 1). `kv` is empty where there is none, or other blocks are held for the id: it was
  // preempted in between, or n > 1 and it has grown. nullopt when it is unknown or has ended.
  virtual std::optional<DetachedRequest> Expose(RequestId id, Time now, Duration hold_kv) = 0;
  // The request is put into no step from now on, and keeps what it has (it may lose it to those
  // before it in order). True when no step in flight holds it: all its tokens have been told. Else
  // to be called again after the next Commit. Unknown ids are true.
  virtual bool Freeze(RequestId id) = 0;
  // Undoes Freeze: the request goes on here.
  virtual void Thaw(RequestId id) = 0;
  // What Expose would give, for a look: nothing is held, so the blocks may be somebody else's as
  // soon as the next Schedule.
  virtual std::optional<DetachedRequest> Peek(RequestId id) const = 0;
  // Takes a request out, in whatever state, to go on elsewhere; nothing is told. nullopt when it is
  // unknown or has ended. A step in flight that holds it goes on, and its token for it is dropped
  // (computed elsewhere again, the same). With hold_kv its KV is held as with Expose; else its
  // blocks are free as soon as no step in flight uses them. The id may come back at once.
  virtual std::optional<DetachedRequest> Detach(RequestId id, Time now,
                                                std::optional<Duration> hold_kv) = 0;
  // Everybody, first in order first: what is saved of a lane that is lost.
  virtual std::vector<DetachedRequest> DetachAll(Time now) = 0;

  // Measured anew; used from the next preemption on.
  virtual void SetCosts(const PreemptionCosts& costs) = 0;
  // Forgets every cached prefix (new weights, say). Blocks in use stay in use.
  virtual void ResetPrefixCache() = 0;
  // The watchdog: which request could run but has not moved for longer than the limit.
  virtual std::optional<RequestInfo> Stalled(Time now) const = 0;
  // Every block accounted for, every count right; crashes with the reason when not.
  virtual void CheckIntegrity() const = 0;
};

}  // namespace millrace::sched
