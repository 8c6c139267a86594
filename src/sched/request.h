// Request and Sequence: what the scheduler knows of what it schedules. A request is one prompt and
// n sequences; the prompt is computed once, by the leader, and then forked (vLLM section 4.4).
//
// Owned by the scheduler; never leaves it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/buddy.h"
#include "sched/order_policy.h"
#include "sched/scheduler.h"

namespace millrace::sched {

struct Request;

// Output tokens a sequence takes memory for when it starts; beyond, its vector grows by doubling.
inline constexpr int kOutputReserveMax = 16384;

// What every decode step touches lies together, here and in Request: of many requests little is in
// the cache when their turn comes.
struct alignas(64) Sequence {
  SequenceId id;
  Request* request = nullptr;
  int index = 0;
  int computed = 0;          // tokens whose KV is there
  int computed_most = 0;     // the most it ever was: below, computing is recomputing
  int lacking_until = 0;     // tokens from `computed` to here are pulled, or lack some layers' KV
  int told_blocks = 0;       // leading table entries that the executor knows
  uint32_t incarnation = 0;  // grows when its KV is dropped
  bool started = false;      // has a table of its own; false: waits for the leader's prompt
  bool told = false;         // the executor knows it
  std::optional<FinishReason> finish;
  std::optional<StepId> in_flight;
  kv::BlockTable table;
  std::vector<TokenId> output;
  kv::PrefixChain chain;
  uint64_t seed = 0;
  LayerRange lacking;                   // up to lacking_until
  std::optional<StepId> swapped_in_by;  // the step that brings its KV back
  std::optional<StepId> copied_by;      // the step that copies a block for it before it writes
  kv::BlockTable host_table;            // while swapped out

  bool live() const { return !finish; }
  bool lacks_layers() const { return computed < lacking_until; }
  bool ready() const { return started && !in_flight && !finish; }
  // Its KV was imported, but what it shares with the leader has not come or lacks some layers.
  bool waits_with_table() const { return !started && !table.empty(); }
};

// Why the request at the head of the queue could not start, with the numbers; kept from the last
// try.
struct Verdict {
  enum class Reason : uint8_t {
    kNotTried,
    kAdmitted,
    kStepInFlight,
    kSequences,
    kBlocks,
    kReservation,
    kChunks,  // needed: blocks of one; available: how many such; headroom: blocks not reserved
    kPreemptedThisStep,
    kGrowth
  };
  Reason reason = Reason::kNotTried;
  int needed = 0;
  int available = 0;
  int headroom = 0;
  int tries_saved = 0;  // since then, because nothing had become better
};

// A request that waits for blocks is looked at anew when more are available, and in any case after
// this many steps: matching a long prompt against the prefix cache in every step would cost more
// than the step.
inline constexpr int kTriesSavedMax = 16;

struct alignas(64) Request {
  RequestState state = RequestState::kWaiting;
  int in_flight = 0;  // entries of steps in flight that point here
  int prompt_tokens = 0;
  int output_limit = 0;  // tokens each sequence may generate
  int leader = 0;
  int cached_prompt_tokens = 0;
  bool frozen = false;                // is put into no step
  bool asks_prompt_logprobs = false;  // of spec.params: asked in every step
  bool ends_by_length_only = false;   // no token stops it: likewise
  // The prompt is being computed or pulled by the leader for the others, who have not started.
  bool sharing_prompt = false;
  bool detached = false;            // left; known only to steps in flight
  std::vector<Sequence> sequences;  // never resized: steps in flight point into it
  Verdict verdict;
  RequestTimes times;
  NewRequest spec;  // of it the first members
  OrderKey key;
  bool imports = false;                       // its first start waits for KV from elsewhere
  bool import_failed = false;                 // of what it waits for, some came without the KV
  std::optional<LayerRange> import_lacks;     // or without that of these layers
  StepId swapped_out_by;                      // the step that took its KV to the host
  int reserved_blocks = 0;                    // by a reserving KV policy
  std::vector<BuddyAllocator::Chunk> chunks;  // of these, where they must be contiguous
  int promised_blocks = 0;  // what the sequences that wait for the prompt will take at once
  bool was_admitted = false;
  int preemptions = 0;
  std::vector<PositionLogprobs> prompt_logprobs;  // of tokens 1, 2, ... as far as they came

  int live() const { return static_cast<int>(std::ranges::count_if(sequences, &Sequence::live)); }
  int TotalOf(const Sequence& s) const { return prompt_tokens + static_cast<int>(s.output.size()); }
  // How far `s` may be computed now: while others wait for the prompt, not beyond it.
  int TargetOf(const Sequence& s) const { return sharing_prompt ? prompt_tokens : TotalOf(s); }
  int ImportedOf(const Sequence& s) const {
    return spec.imported_tokens.empty() ? 0 : spec.imported_tokens[s.index];
  }
  kv::TokenView TokensOf(const Sequence& s) const { return {*spec.prompt, s.output}; }
  bool WantsPromptLogprobs() const {
    return asks_prompt_logprobs && static_cast<int>(prompt_logprobs.size()) < prompt_tokens - 1;
  }
};

}  // namespace millrace::sched
