// Scheduler: iteration-level scheduling over a paged KV cache, as a pure state machine (Orca
// section 3.1; vLLM section 4). Requests, aborts, step results and the time go in; step plans and
// outputs come out. It has no thread, socket, clock or random device: the controller and the
// simulator drive the same object.
//
// The loop of who drives it:
//
//   std::vector<KvPull> pulls;           // of KV that other workers hold, to be started
//   std::vector<RequestOutput> outputs;  // tokens and ends
//   while (running) {
//     for (NewRequest& request : arrived) status = scheduler.Add(std::move(request), now);
//     for (RequestId id : aborted) scheduler.Abort(id, std::nullopt, now, outputs);
//     while (const NextStep step = scheduler.Schedule(now, pulls))
//       Send(*step.plan);                                               // to the stages
//     for (BlockIndex block : scheduler.TakeReturned()) Return(block);  // after LimitBlocks alone
//     if (const StepResult* result = TakeResult()) {                   // steps end in their order
//       status = scheduler.Commit(*result, now, outputs, pulls);
//       if (!status.ok()) return;  // its workers compute what cannot be
//     }
//     for (const KvPull& pull : std::exchange(pulls, {})) Start(pull);
//     for (RequestId id : arrived_kv) scheduler.KvArrived(id, /*complete=*/true, now);
//     for (const RequestOutput& output : std::exchange(outputs, {})) Deliver(output);
//   }
//
// Owned and called by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/output.h"
#include "core/output_grammar.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"
#include "core/time_account.h"
#include "kv/kv_cache.h"

namespace millrace::sched {

// The order of requests: by arrival, by priority and then arrival, or so that each client gets the
// same share (fair_shares.h).
enum class SchedulingPolicy { kFcfs, kPriority, kFair };
// How KV slots are promised (vLLM section 6.1's baselines): on demand, or a whole reservation.
enum class KvPolicy { kPaged, kOrca, kOrcaMax, kOrcaPow2, kOrcaOracle };
// The composition of a step: prompts and decodes together (Orca's selective batching, chunks), or
// only prompts while any can start and only decodes otherwise (vLLM at the time of its paper).
enum class StepMix { kMixed, kPrefillFirst };
enum class PreemptionMode { kRecompute, kSwap, kAuto };

// Predicted costs for PreemptionMode::kAuto. The caller measures them; both are logged for each
// choice.
struct PreemptionCosts {
  double prefill_tokens_per_s = 1000;
  double swap_bytes_per_s = 5e9;
  double swap_block_overhead_s = 5e-6;
  int64_t kv_bytes_per_block = 0;
};

// Of the model whose workers are other processes.
struct ResultBounds {
  int vocab_size = 0;
  int vector_size = 0;                                // of an embedding
  std::shared_ptr<GrammarSource> grammars = nullptr;  // null: grammars are not checked
};

struct SchedulerOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;            // swap pool; 0: no swapping
  int max_num_seqs = 128;             // sequences in a step
  int max_num_batched_tokens = 2048;  // tokens in a step
  int max_model_len = 0;              // prompt + output of a sequence
  int max_waiting = 4096;             // requests; beyond it: kResourceExhausted
  int stages = 1;                     // steps in flight (Orca's n_workers)
  // Distributes the sequences evenly over the steps in flight, so that every stage has work, and
  // spreads waiting prompts over many steps, so that every stage gets work soon. Otherwise a step
  // takes as many as it may (Orca, Algorithm 1).
  bool even_steps = false;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  KvPolicy kv_policy = KvPolicy::kPaged;
  StepMix step_mix = StepMix::kMixed;
  PreemptionMode preemption = PreemptionMode::kAuto;
  PreemptionCosts costs;
  bool prefix_caching = true;
  std::string prefix_eviction{kv::kLru};  // the name of an order (kv/eviction_order.h)
  double watermark = 0.01;  // share of the blocks that admission keeps free while others run
  Duration watchdog = Duration::Seconds(1);
  std::vector<TokenId> eos_token_ids;
  // Set: results that no stage of this model would return are not taken (Commit). Unset:
  // stages are trusted, and a result without a token fails its sequence.
  std::optional<ResultBounds> check_results;
  std::string cache_identity;   // what KV content depends on besides tokens: model, KV type, ...
  bool hashes_collide = false;  // for tests: all prefix hashes are equal
};

// The state of one of a request's sequences that began elsewhere.
struct ResumedSequence {
  std::vector<TokenId> output;  // counts towards max_tokens; not delivered again
  bool finished = false;        // its end was delivered: nothing is computed for it
};

struct BeamState;  // beam_search.h

struct NewRequest {
  RequestId id;  // unique; the caller's counter
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::shared_ptr<const SamplingParams> params;  // validated
  uint64_t seed = 0;                             // of the request; sequences derive theirs
  int priority = 0;                              // smaller is scheduled first
  std::string cache_salt;                        // prefixes are shared within one salt
  std::string prompt_cache_key;  // requests with the same one probably share a long prefix
  std::string client;            // whose share it takes (SchedulingPolicy::kFair)
  // The length of each output, if known (a replayed trace): orca-oracle and orca-pow2 reserve by
  // it.
  std::optional<int> known_output_tokens;

  // For a request that began elsewhere: one entry for each of its n sequences, otherwise empty. At
  // least one is not finished. Unless KV is imported, it is recomputed (token replay).
  std::vector<ResumedSequence> resumed;
  // How far its beam search is, beside `resumed`. Null: at its beginning; then a resumed sequence
  // that has finished is an answer that was delivered.
  std::shared_ptr<const BeamState> beams;
  // When it arrived there and what happened since; this sets its age and its place in the order.
  // Unset: it arrives now.
  std::optional<RequestTimes> times;
  int cached_prompt_tokens = 0;  // found in a prefix cache where it first ran; with `times`
  // What its time went into since it arrived; it goes on here. Not begun: it begins here.
  TimeAccount account;
  // By sequence, leading tokens whose KV another stage holds (DistServe section 4.3: decode pulls);
  // empty: none. The request gets its blocks when it is admitted, its pulls are handed back, and it
  // runs once all of them have ended. With n > 1, the first unfinished sequence imports the
  // prompt's KV for all. Beyond that, either each sequence imports the part that it does not share,
  // or nothing more is imported.
  std::vector<int> imported_tokens;
  // More may be imported by ExtendImport, because the source still runs the request (live
  // migration): it does not run here before CloseImport. With n > 1, each sequence imports more
  // than the full blocks of the prompt that it shares.
  bool import_open = false;
  // Ends with the first token of any sequence, because another stage decodes it (DistServe section
  // 4.3). The output of this token has no `finish`, and the other sequences have no output. A
  // sequence whose answer ends with its first token ends alone. Only one token of each is planned
  // for, as if it were the limit.
  bool stop_after_prompt = false;
  // Keep the KV of the sequence that ends last, if it ends by itself, until ReleaseKv or for this
  // time. After stop_after_prompt, this is the prompt's KV for all sequences.
  std::optional<Duration> hold_kv;
};

// The most blocks that the request can hold at once if each sequence generates at most
// `output_tokens`: full prompt blocks once, then each sequence its own. The last token needs none.
int BlocksAtMost(const NewRequest& request, int64_t output_tokens, int block_size);

// kPulling: has its blocks and waits for KV that another stage holds.
enum class RequestState { kWaiting, kPulling, kRunning, kPreempted, kSwapped, kFinished };

// The scheduler's part of /debug/requests/{id}.
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
  int blocks_total = 0;     // that may be held
  int blocks_free = 0;      // including unused cached ones
  int blocks_cached = 0;    // of these
  int blocks_pending = 0;   // free as soon as a step in flight ends
  int blocks_pinned = 0;    // free as soon as a transfer ends
  int blocks_reserved = 0;  // promised by the Orca policies, held or not, including losses by
                            // placement
  int host_blocks_used = 0;
  // Of the running sequences, in tokens; a prompt that they share counts for each.
  int64_t tokens_computed = 0;  // in the KV cache
  int64_t tokens_to_come = 0;   // still allowed by their limits
  int64_t tokens_promised = 0;  // slots by the Orca policies, before rounding and placement
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

  SchedulerStats& operator+=(const SchedulerStats& other);  // over several schedulers
  SchedulerStats CountersOnly() const;                      // for one that no longer exists
};

// Why and how a request was preempted; one record per preemption, for the log and the metrics.
struct PreemptionRecord {
  RequestId victim;
  RequestId on_behalf_of;    // the request that needed the blocks
  int blocks_needed = 0;     // by that request in this step
  int blocks_available = 0;  // before
  int blocks_released = 0;
  int tokens_dropped = 0;  // computed tokens that recompute would replay
  double recompute_cost_s = 0;
  double swap_cost_s = 0;  // infinite when the swap pool has no room
  PreemptionMode chosen = PreemptionMode::kRecompute;

  std::string Describe() const;  // one line for the log
};

// KV of one sequence, to be pulled from another stage into blocks that are pinned for it.
struct KvPull {
  RequestId id;
  int index = 0;  // the sequence
  // Earlier tokens were in the prefix cache, or another sequence's pull brings them.
  int first_token = 0;
  int end_token = 0;
  std::vector<BlockIndex> blocks;  // the sequence's whole table, from token 0
};

// Leading tokens of one sequence whose KV is in `blocks`.
struct SequenceKv {
  int tokens = 0;
  std::vector<BlockIndex> blocks;
};

// A request as it left a scheduler, or a snapshot of it.
struct DetachedRequest {
  // The argument for another scheduler's Add: `resumed` with the tokens delivered so far, `times`
  // since its arrival. What applied to this scheduler alone is not set: the import,
  // stop_after_prompt and hold_kv. A caller that can transfer the KV sets imported_tokens, for each
  // sequence to its `tokens` here.
  NewRequest request;
  // With hold_kv: the KV of each of the n sequences that stays in place (HeldBlocks); empty when
  // there is none. Blocks of a shared prompt appear in several entries.
  std::vector<SequenceKv> kv;
  // Set by Peek: layers that still have to compute some of it; the other layers have all of it.
  std::optional<LayerRange> lacking = {};

  int computed_tokens() const;  // the maximum over its sequences
};

// Limits of the steps to come, beside those of the options. The caller measures what a step takes.
struct StepLimits {
  // A step has at most this many tokens while others decode, which it delays. It may always have
  // the tokens of those that decode, and a block's worth of a prompt.
  std::optional<int> tokens_beside_decodes;
  // No further prompt begins in a step that has this many tokens (DistServe section 3.1, L_m).
  std::optional<int> tokens_before_prompts;

  friend bool operator==(const StepLimits&, const StepLimits&) = default;
};

// Requests that began elsewhere were accepted there, so they may wait beyond max_waiting, up to
// this many times as many.
inline constexpr int kHandedWaitingFactor = 2;

struct NextStep {
  // Null: nothing can run now, or `stages` steps are in flight. Valid until the next call.
  const StepPlan* plan = nullptr;
  std::vector<PreemptionRecord> preemptions;  // while it was formed, in their order

  explicit operator bool() const { return plan != nullptr; }
};

class Scheduler {
 public:
  // kInvalidArgument when the options contradict each other.
  static Result<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);
  virtual ~Scheduler() = default;

  // kInvalidArgument: can never fit; states the numbers. kResourceExhausted: the queue is full.
  // kUnavailable: a pull for the same id, which was detached here before, has not ended.
  virtual Status Add(NewRequest request, Time now) = 0;
  // Ends the request, or only its sequence `index`, at once; blocks that a step in flight still
  // uses are freed when that step commits. Appends kAbort outputs for what had not finished.
  // Unknown or ended ids and indices are ignored, and so is an index of a beam search.
  virtual void Abort(RequestId id, std::optional<int> index, Time now,
                     std::vector<RequestOutput>& outputs) = 0;

  // Forms the next step. Delivered tokens are never delivered again. Appends the pulls that may
  // start now.
  virtual NextStep Schedule(Time now, std::vector<KvPull>& pulls) = 0;
  // Applies the result of a step by its id; a result of an unknown step is dropped and counted.
  // Outputs are appended; the last one of a request carries its RequestTimes. Appends the pulls
  // that had to wait for the step. kInvalidArgument: why this result, or one before it, was not
  // taken because it cannot be of its step. Its sequences have no token of it, and the caller gives
  // up this scheduler with Detach.
  virtual Status Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs,
                        std::vector<KvPull>& pulls) = 0;
  // The same for a caller whose requests import nothing and who trusts its stages. Crashes if there
  // is a pull or a wrong result.
  const StepPlan* Schedule(Time now);
  void Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs);

  virtual int steps_in_flight() const = 0;
  virtual bool HasWork() const = 0;  // any request not finished
  virtual SchedulerStats Stats() const = 0;
  // Device blocks in use: Stats() without its walk over the queue.
  virtual int blocks_in_use() const = 0;
  virtual std::optional<RequestInfo> Inspect(RequestId id, Time now) const = 0;
  virtual std::vector<RequestInfo> InspectAll(Time now) const = 0;
  // What the time of a request went into until now. nullopt: it is unknown or has ended.
  virtual std::optional<TimeAccount> Account(RequestId id, Time now) const = 0;
  // For what only the caller knows: what a pull brought, or what happened where the request was
  // before. Null: it is unknown or has ended. Valid until the next call.
  virtual TimeAccount* AccountOf(RequestId id) = 0;

  // A pull ended, with the KV or without it; if any pull ended without it, the import is computed
  // here. Called once for every pull, even if the request was aborted or detached meanwhile: its
  // blocks are kept until the last.
  virtual void KvArrived(RequestId id, bool complete, Time now) = 0;
  // The same, with the KV of every layer except these: only they compute it again (only_layers).
  virtual void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) = 0;
  // For an open import that has its blocks: what its source has done since then, by sequence.
  // `more` has the tokens that it has generated and whether it has ended there; `imported_tokens`
  // is in place of the earlier ones. Takes more blocks, and asks for a pull for each sequence that
  // imports more than before; the pulls are appended once they may start. On an error nothing has
  // changed. kResourceExhausted: no blocks are left; kFailedPrecondition: it does not pull, or its
  // import is closed; kInvalidArgument: less than before, or every sequence has ended.
  virtual Status ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                              const std::vector<int>& imported_tokens,
                              std::vector<KvPull>& pulls) = 0;
  // Nothing more is imported: the request runs once every pull has ended. Unknown ids and closed
  // imports are ignored.
  virtual void CloseImport(RequestId id, Time now) = 0;
  // The blocks kept for `id` by hold_kv, each once, in order, sequence after sequence; empty when
  // they were released or have expired.
  virtual std::vector<BlockIndex> HeldBlocks(RequestId id) const = 0;
  // Renews the hold of the KV for `id`: it lasts `hold_kv` from now, or until ReleaseKv. False: no
  // KV is held any more, and its blocks may belong to another request.
  virtual bool ExtendHold(RequestId id, Time now, Duration hold_kv) = 0;
  // Held KV was fetched or is not needed. Unknown or expired ids are ignored.
  virtual void ReleaseKv(RequestId id) = 0;

  // A snapshot of a request that continues here. The KV computed so far (if running) is held for
  // this time or until ReleaseKv, and may be read while the request continues; another call holds
  // more. `kv` is empty if there is none, or if n = 1 and other blocks are held for the id, because
  // it was preempted in between. nullopt when it is unknown or has ended.
  virtual std::optional<DetachedRequest> Export(RequestId id, Time now, Duration hold_kv) = 0;
  // Keeps the request out of further steps. It keeps its blocks, although requests before it in
  // order may still take them. Unknown ids are ignored.
  virtual void Pause(RequestId id) = 0;
  // Whether no step in flight holds the request, so that all its tokens are delivered; of a paused
  // one this stays so. True for unknown ids.
  virtual bool AtRest(RequestId id) const = 0;
  // Undoes Pause: the request continues here.
  virtual void Unpause(RequestId id) = 0;
  // What Export would return, for inspection: nothing is held, so the next Schedule may reuse the
  // blocks.
  virtual std::optional<DetachedRequest> Peek(RequestId id) const = 0;
  // Takes a request out, in any state, to continue elsewhere; delivers nothing. nullopt when it is
  // unknown or has ended. A step in flight that holds it continues, and its token for it is dropped
  // (it is computed elsewhere again, with the same result). With hold_kv its KV is held as by
  // Export; else its blocks are free as soon as no step in flight uses them. The id may be added
  // again at once.
  virtual std::optional<DetachedRequest> Detach(RequestId id, Time now,
                                                std::optional<Duration> hold_kv) = 0;
  // Detaches all requests, in order: used when a pipeline is lost.
  virtual std::vector<DetachedRequest> DetachAll(Time now) = 0;

  // For pipelines that share memory: at most `limit` blocks may be held from now on. A lower limit
  // takes free blocks and then cached ones, but none that are in use or promised to a running
  // request. Returns the new limit. Initially it is num_blocks.
  virtual int LimitBlocks(int limit) = 0;
  // The blocks that lower limits took away, each once: no step in flight uses them, and their
  // content is not needed any more. May be called at any time: blocks that are held again are left
  // out, and those that a step in flight still reads are in a later answer.
  [[nodiscard]] virtual std::vector<BlockIndex> TakeReturned() = 0;
  // Whether the last Schedule left out a request for lack of blocks. False while a request pulls.
  virtual bool LacksBlocks() const = 0;
  // From the next step on.
  virtual void LimitSteps(const StepLimits& limits) = 0;
  // New measurements; used from the next preemption on.
  virtual void SetCosts(const PreemptionCosts& costs) = 0;
  // Forgets every cached prefix (for example for new weights). Blocks in use stay in use.
  virtual void ResetPrefixCache() = 0;
  // How many leading tokens of this prompt the prefix cache holds now, in whole blocks. `names`
  // keeps the names of the prompt's blocks: pass an empty chain first, and the same one to other
  // schedulers, so that each block is named once.
  virtual int CachedTokens(std::span<const TokenId> prompt, std::string_view salt,
                           kv::PrefixChain& names) = 0;
  // The watchdog: a request that could run but has made no progress for longer than the limit.
  virtual std::optional<RequestInfo> Stalled(Time now) const = 0;
  // Checks every block and every count; crashes with the reason on a mismatch.
  virtual void CheckIntegrity() const = 0;
};

}  // namespace millrace::sched
