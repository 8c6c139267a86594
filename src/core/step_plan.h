// StepPlan and StepResult: one iteration of the model, between the scheduler that decides it and
// the stage that runs it. Pure data, so that a remote or simulated stage needs no scheduler
// header. Plans are deltas: a stage keeps what it was sent about a sequence until the sequence
// is released.
//
// There are no phases: a sequence has computed tokens and a total; prefill, a chunk of it, a
// decode, a resume after preemption and the tail after a prefix hit are all "compute tokens [start,
// start + num_tokens)" (Orca's iteration-level scheduling, OSDI'22 section 3.1, over vLLM's paged
// cache, SOSP'23 section 4).
//
// Order. Every stage runs the steps in the order of their ids, one at a time. A plan may reuse a
// block that an earlier step reads, because that step has finished by then.
//
// n > 1. One of the n sequences, the leader, computes the prompt once. The others start at the last
// prompt token, over the same blocks: each computes that one token again, in a copy of its block,
// and samples from its own logits with its own seed. To a stage they are ordinary sequences,
// and each produces exactly what the same prompt with that seed would produce alone.
//
// Lost layers. Some layers may have a sequence's KV while others have lost it (a worker died). Its
// tokens are then sent again with `only_layers`, for the layers that lost it to compute alone.
//
// Replay. After preemption a sequence's tokens are sent again from an earlier `start`. What the
// plan says of positions [start, start + num_tokens) replaces what the stage had for them.
//
// Test steps. The first step of a pipeline may be one without sequences, with kTestStep as its id.
// It passes every hop on the way of the others, and computes nothing.
//
// A stage reads plans through SequenceTables (core/sequence_tables.h).
//
// Built by one thread (the scheduler's owner), read by the stage; never shared while written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/ids.h"
#include "core/layer_range.h"
#include "core/sampling_params.h"

namespace millrace {

// A sequence that is new to the stage. Precedes the sequence's first SequenceStep.
struct SequenceStart {
  SequenceId id;
  std::shared_ptr<const SamplingParams> params;
  uint64_t seed = 0;                                   // SequenceSeed() already applied
  std::shared_ptr<const std::vector<TokenId>> prompt;  // the whole prompt, including what a prefix
                                                       // hit skips
  // Tokens that were generated elsewhere, before this stage received the sequence. Penalties
  // count them, and a hit or imported KV may skip them. Null: none.
  std::shared_ptr<const std::vector<TokenId>> output = nullptr;
};

enum class LogitsWanted : uint8_t {
  kNone,  // a chunk that does not reach the sequence's last known token
  kLast,  // sample after the last token of the step
  // As kLast, plus log-probabilities of the prompt's tokens (echo, prompt_logprobs), or every
  // token's state for a mean. A token sampled by a chunk that does not reach the last known token
  // is ignored.
  kAll,
};

// One sequence's share of a step. A sequence is in at most one step in flight.
struct SequenceStep {
  SequenceId id;
  int32_t start = 0;        // tokens whose KV exists already; position of the first token computed
  int32_t num_tokens = 0;   // computed in this step, >= 1
  int32_t first_token = 0;  // index into StepPlan::tokens
  // The block table: keep the first `keep_blocks` entries, drop the rest, append these.
  int32_t keep_blocks = 0;
  int32_t first_new_block = 0;  // index into StepPlan::blocks
  int32_t num_new_blocks = 0;
  LogitsWanted logits = LogitsWanted::kNone;
  // The other layers have these tokens' KV and skip them. The step then needs no logits.
  std::optional<LayerRange> only_layers = std::nullopt;
};

struct BlockCopy {
  BlockIndex from = 0;
  BlockIndex to = 0;
};

inline constexpr StepId kTestStep{0};  // the other steps of a pipeline begin at 1

// The three copy lists run in this order, each from its first entry to its last, before any token
// is computed: swap_out (device -> host pool), swap_in (host -> device), copies (device -> device,
// copy-on-write). An entry may read what an earlier one wrote.
struct StepPlan {
  StepId id;
  std::vector<SequenceStart> started;
  std::vector<SequenceId> released;  // drop their state first: finished or aborted before this step
  std::vector<SequenceStep> sequences;
  std::vector<TokenId> tokens;      // [sum of num_tokens], sequence after sequence
  std::vector<BlockIndex> blocks;   // new block-table entries, sequence after sequence
  std::vector<BlockCopy> swap_out;  // from: device block, to: host block
  std::vector<BlockCopy> swap_in;   // from: host block, to: device block
  std::vector<BlockCopy> copies;

  std::span<const TokenId> TokensOf(const SequenceStep& s) const {
    return std::span(tokens).subspan(s.first_token, s.num_tokens);
  }
  std::span<const BlockIndex> NewBlocksOf(const SequenceStep& s) const {
    return std::span(blocks).subspan(s.first_new_block, s.num_new_blocks);
  }
  bool IsTest() const { return id == kTestStep; }
  // Empties every list and keeps the memory, so that the steady state allocates nothing.
  void Clear();
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 is the likeliest
};

// Log-probabilities at one position: the chosen (or given) token and the likeliest ones.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // likeliest first
};

struct SequenceResult {
  SequenceId id;
  std::optional<TokenId> token;                   // sampled at position start + num_tokens
  std::optional<PositionLogprobs> logprobs;       // of `token`, if asked
  std::vector<PositionLogprobs> prompt_logprobs;  // kAll: of tokens [start + 1, start + num_tokens]
                                                  // as far as they are known
  std::vector<float> pooled;                      // in place of a token, if asked; never empty then
  Status error;                                   // such as NaN logits: only this sequence fails
};

struct StepResult {
  StepId id;
  std::vector<SequenceResult> sequences;  // one per SequenceStep, same order
  Status error;                           // the whole step failed: every sequence in it
};

}  // namespace millrace
