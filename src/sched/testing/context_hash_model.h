// ContextHashModel: a model without arithmetic for tests. It applies StepPlans to simulated KV
// blocks and answers with tokens that are hashes of the whole context, read through the block
// tables of the plans: one wrong block, copy, swap or position anywhere changes every later token.
//
// A slot holds a hash of its token, its position and everything before it. A sample is a hash of
// all the slots, the sequence's seed (unless greedy) and the position; with penalties also of the
// generated tokens in the plans. Plans that break the rules of core/step_plan.h are programmer
// errors (MR_CHECK).
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "core/sequence_tables.h"
#include "core/step_plan.h"

namespace millrace::sched {

struct ContextHashOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  int vocab_size = 1000;
  std::vector<TokenId> eos_token_ids;  // not sampled before min_tokens
  // The layer that it stands for, one of several: tokens that only other layers compute give it no
  // KV.
  std::optional<int> layer;
};

class ContextHashModel {
 public:
  explicit ContextHashModel(const ContextHashOptions& options);

  // Runs a step; plans must come in the order of their ids.
  StepResult Run(const StepPlan& plan);

  // The output of a prompt alone, which every schedule must reproduce. The caller applies the
  // `finish` rules: exactly `count` tokens are returned.
  std::vector<TokenId> Generate(const std::vector<TokenId>& prompt, const SamplingParams& params,
                                uint64_t seed, int count) const;

  // The log-probability of every token that could come next, as a beam search sees it.
  std::vector<float> Logprobs(const std::vector<TokenId>& prompt,
                              const std::vector<TokenId>& output) const;

  // The vector of a prompt alone, for every pooling.
  static std::vector<float> Vector(const std::vector<TokenId>& prompt);

  // Performs a pull: copies slots of tokens [first, end) from another model's blocks into this
  // one's. The tables are complete; both models have the same block size.
  void Pull(const ContextHashModel& from, std::span<const BlockIndex> from_table,
            std::span<const BlockIndex> to_table, int first, int end);

  // Loses the content of these blocks.
  void Drop(std::span<const BlockIndex> blocks);

  int num_sequences() const { return static_cast<int>(tables_.num_sequences()); }

 private:
  // The context so far as one number.
  struct Fold {
    uint64_t value = 0;
    void Add(uint64_t slot);
  };

  static uint64_t SlotValue(const Fold& before, TokenId token, int position);
  // `output`: the earlier generated tokens.
  TokenId Sample(const Fold& context, int position, std::span<const TokenId> output,
                 const SamplingParams& params, uint64_t seed) const;
  std::vector<float> LogprobsAfter(const Fold& context) const;
  // The likeliest: enough for n that do not stop a beam.
  PositionLogprobs Candidates(const Fold& context, const SamplingParams& params) const;
  void CopyBlock(std::vector<uint64_t>& to, BlockIndex to_block, const std::vector<uint64_t>& from,
                 BlockIndex from_block) const;
  uint64_t& SlotOf(const SequenceView& sequence, int position);
  SequenceResult RunSequence(const SequenceView& sequence);

  ContextHashOptions options_;
  std::vector<uint64_t> device_;
  std::vector<uint64_t> host_;
  SequenceTables tables_;
  std::unordered_map<SequenceId, std::vector<TokenId>> tokens_;  // as far as sent
  // Leading tokens whose states were wanted, of sequences that ask for a vector.
  std::unordered_map<SequenceId, int> pooled_;
};

}  // namespace millrace::sched
