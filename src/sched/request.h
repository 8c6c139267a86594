// Request and Sequence: the scheduler's state of what it schedules. A request is one prompt and n
// sequences; the leader computes the prompt once, then it is forked (vLLM section 4.4).
//
// Owned by the scheduler; never leaves it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/beam_search.h"
#include "sched/buddy.h"
#include "sched/order_policy.h"
#include "sched/queue_causes.h"
#include "sched/scheduler.h"

namespace millrace::sched {

struct Request;

// Output tokens for which a sequence allocates memory at the start; beyond it, its vector grows by
// doubling.
inline constexpr int kOutputReserveMax = 16384;

// The fields that every decode step uses are adjacent, here and in Request: with many requests,
// little of this is in the cache when it is needed.
struct alignas(64) Sequence {
  SequenceId id;
  Request* request = nullptr;
  int index = 0;
  int computed = 0;       // tokens whose KV exists
  int computed_most = 0;  // the maximum so far: computing below it is recomputing
  int lacking_until = 0;  // tokens from `computed` to here are pulled, or some layers lack their KV
  int sent_blocks = 0;    // leading table entries that the stages have
  uint32_t incarnation = 0;  // grows when its KV is dropped
  bool started = false;      // has its own table; false: waits for the leader's prompt
  bool sent = false;         // the stages have it
  bool offered = false;      // its beam waits for the others before it has a next token
  std::optional<FinishReason> finish;
  std::optional<StepId> in_flight;
  kv::BlockTable table;
  std::vector<TokenId> output;
  kv::PrefixChain chain;
  uint64_t seed = 0;
  LayerRange lacking;                     // up to lacking_until
  std::optional<StepId> swapped_in_by;    // the step that swaps in its KV
  std::unique_ptr<TokenMatcher> matcher;  // by which results are checked; null: none so far
  std::optional<StepId> copied_by;        // the step that copies a block for it before writing
  kv::BlockTable host_table;              // while swapped out

  bool live() const { return !finish; }
  bool lacks_layers() const { return computed < lacking_until; }
  bool ready() const { return started && !in_flight && !finish && !offered; }
  // Its KV was imported, but the part shared with the leader has not arrived or some layers lack
  // it.
  bool waits_with_table() const { return !started && !table.empty(); }
};

// Why the request at the head of the queue could not start, with the numbers of the last attempt.
struct Verdict {
  enum class Reason : uint8_t {
    kNotTried,
    kAdmitted,
    kStepInFlight,
    kSequences,
    kBlocks,
    kReservation,
    kChunks,  // needed: blocks of one; available: number of such chunks; headroom: unreserved
              // blocks
    kPreemptedThisStep,
    kGrowth
  };
  Reason reason = Reason::kNotTried;
  int needed = 0;
  int available = 0;
  int headroom = 0;
  int tries_saved = 0;  // attempts skipped since then, because nothing had improved
};

// A request that waits for blocks is tried again when more are available, and in any case after
// this many steps: matching a long prompt against the prefix cache in every step would cost more
// than the step.
inline constexpr int kTriesSavedMax = 16;

// KV that a request's first start waits for.
struct Import {
  bool awaited = false;               // until the start
  bool open = false;                  // CloseImport has not been called
  bool failed = false;                // some of the KV did not arrive
  Time since;                         // it was asked for, and closed
  std::optional<LayerRange> lacking;  // or that of these layers did not
};

// Who was before it when it joined the queue, and how long the first in the queue had lacked what
// until then.
struct QueueAhead {
  int waiting = 0;
  int running = 0;
  int64_t prompt_tokens = 0;  // of those that waited
  AccountIds ids = {};        // some of them; after a preemption, who took the blocks
  QueueCauses::Totals totals = {};
};

struct alignas(64) Request {
  RequestState state = RequestState::kWaiting;
  int in_flight = 0;  // entries of steps in flight that point here
  int prompt_tokens = 0;
  int output_limit = 0;  // tokens each sequence may generate here
  int leader = 0;
  int cached_prompt_tokens = 0;
  int step_tokens = 0;  // in its newest step
  bool paused = false;  // not scheduled in any step
  // From spec.params, because every step checks them.
  bool needs_whole_prompt = false;  // NeedsWholePrompt when it was added
  bool pools = false;
  bool ends_by_length_only = false;  // no token stops it; also checked in every step
  bool continues_elsewhere = false;  // its end by output_limit is not the end of the answer
  // The leader computes or pulls the prompt for the others, which have not started.
  bool sharing_prompt = false;
  bool detached = false;            // has left; only steps in flight refer to it
  std::vector<Sequence> sequences;  // never resized: steps in flight point into it
  Verdict verdict;
  RequestTimes times;
  NewRequest spec;  // the first members are used most
  OrderKey key;
  int client = 0;       // as the order policy names it
  bool queued = false;  // waits by OrderPolicy::NextRank
  Import import;
  StepId swapped_out_by;                      // the step that took its KV to the host
  int reserved_blocks = 0;                    // by a reserving KV policy
  std::vector<BuddyAllocator::Chunk> chunks;  // these, if they must be contiguous
  std::unique_ptr<BeamSearch> beams;          // of a beam search
  std::vector<bool> delivered;                // of one that begins again: its answers so far
  int promised_blocks = 0;  // blocks that the sequences waiting for the prompt will take at once
  bool was_admitted = false;
  bool lacked_blocks = false;  // when a step was formed without it
  int preemptions = 0;
  std::vector<PositionLogprobs> prompt_logprobs;  // of tokens 1, 2, ... as far as received
  TimeAccount account;                            // until its newest step ended, or its state began
  StepId step_seen;                               // the newest step in the account
  uint64_t prompts_seen = 0;                      // StepLedger::prompts() behind that step
  QueueAhead ahead;

  int live() const { return static_cast<int>(std::ranges::count_if(sequences, &Sequence::live)); }
  int TotalOf(const Sequence& s) const { return prompt_tokens + static_cast<int>(s.output.size()); }
  // How far `s` may be computed now: not beyond the prompt while others wait for it.
  int TargetOf(const Sequence& s) const { return sharing_prompt ? prompt_tokens : TotalOf(s); }
  int ImportedOf(const Sequence& s) const {
    return spec.imported_tokens.empty() ? 0 : spec.imported_tokens[s.index];
  }
  // Whether a step can take a sequence that computes a prompt or replays after preemption.
  bool Prefills() const {
    return !paused && std::ranges::any_of(sequences, [&](const Sequence& s) {
      return s.ready() && TargetOf(s) - s.computed > 1;
    });
  }
  // Sequences that a step can take with one token each.
  int ReadyDecodes() const {
    if (paused) return 0;
    return static_cast<int>(std::ranges::count_if(
        sequences, [&](const Sequence& s) { return s.ready() && TargetOf(s) - s.computed == 1; }));
  }
  kv::TokenView TokensOf(const Sequence& s) const { return {*spec.prompt, s.output}; }
  // Whether no token of the prompt may be skipped or imported.
  bool WantsWholePrompt() const {
    return needs_whole_prompt &&
           (pools || static_cast<int>(prompt_logprobs.size()) < prompt_tokens - 1);
  }
  // Whether a step from token `start` on returns something of each of its tokens: of the last one,
  // log-probabilities have nothing.
  bool WantsAllFrom(int start) const {
    return WantsWholePrompt() && start < (pools ? prompt_tokens : prompt_tokens - 1);
  }
};

// An empty output of the sequence, at the end of `outputs`.
inline RequestOutput& AppendOutput(const Sequence& sequence, std::vector<RequestOutput>& outputs) {
  RequestOutput& output = outputs.emplace_back();
  output.request = sequence.request->spec.id;
  output.index = sequence.index;
  output.cached_prompt_tokens = sequence.request->cached_prompt_tokens;
  return output;
}

// Its blocks are free as soon as the step that holds it has ended.
inline void FreeBlocks(kv::KvCache& kv, Sequence& sequence) {
  kv.Free(sequence.table, sequence.in_flight);
  kv.FreeHost(sequence.host_table);
}

// Makes its blocks that are full and computed available to other requests.
inline void IndexPrefixes(kv::KvCache& kv, Sequence& sequence) {
  const Request& r = *sequence.request;
  if (r.state != RequestState::kRunning || !sequence.started) return;
  kv.Index(sequence.chain, r.TokensOf(sequence), sequence.table, sequence.computed);
}

// All of its KV. The token of a step in flight still counts; only its KV does not.
inline void DropKv(kv::KvCache& kv, Request& victim) {
  for (Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    FreeBlocks(kv, s);
    s.started = false;
    s.offered = false;
    s.computed = 0;
    s.lacking_until = 0;
    s.sent_blocks = 0;
    s.chain.indexed = 0;
    ++s.incarnation;
  }
}

}  // namespace millrace::sched
