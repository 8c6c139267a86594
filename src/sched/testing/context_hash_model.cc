#include "sched/testing/context_hash_model.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::sched {

ContextHashModel::ContextHashModel(const ContextHashOptions& options)
    : options_(options),
      device_(static_cast<size_t>(options.num_blocks) * options.block_size),
      host_(static_cast<size_t>(options.num_host_blocks) * options.block_size) {}

void ContextHashModel::Fold::Add(uint64_t slot) { value = Mix64(value * 3 + slot); }

uint64_t ContextHashModel::SlotValue(const Fold& before, TokenId token, int position) {
  return Mix64(before.value ^ HashCounter(static_cast<uint64_t>(token), position));
}

TokenId ContextHashModel::Sample(const Fold& context, int position, std::span<const TokenId> output,
                                 const SamplingParams& params, uint64_t seed) const {
  uint64_t draw = params.greedy() ? 0 : HashCounter(seed, position);
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const TokenId token : output) draw = Mix64(draw * 5 + static_cast<uint64_t>(token) + 1);
  }
  const auto generated = static_cast<int>(output.size());
  auto token = static_cast<TokenId>(Mix64(context.value ^ draw) % options_.vocab_size);
  if (generated >= params.min_tokens) return token;
  while (std::ranges::count(options_.eos_token_ids, token) ||
         std::ranges::count(params.stop_token_ids, token)) {
    token = (token + 1) % options_.vocab_size;
  }
  return token;
}

std::vector<TokenId> ContextHashModel::Generate(const std::vector<TokenId>& prompt,
                                                const SamplingParams& params, uint64_t seed,
                                                int count) const {
  Fold fold;
  int position = 0;
  for (TokenId token : prompt) fold.Add(SlotValue(fold, token, position++));
  std::vector<TokenId> output;
  while (static_cast<int>(output.size()) < count) {
    output.push_back(Sample(fold, position, output, params, seed));
    fold.Add(SlotValue(fold, output.back(), position++));
  }
  return output;
}

std::vector<float> ContextHashModel::LogprobsAfter(const Fold& context) const {
  std::vector<float> logprobs;
  for (int token = 0; token < options_.vocab_size; ++token) {
    logprobs.push_back(-static_cast<float>(8 * UnitDouble(HashCounter(context.value, token))));
  }
  return logprobs;
}

std::vector<float> ContextHashModel::Logprobs(const std::vector<TokenId>& prompt,
                                              const std::vector<TokenId>& output) const {
  Fold fold;
  int position = 0;
  for (TokenId token : prompt) fold.Add(SlotValue(fold, token, position++));
  for (TokenId token : output) fold.Add(SlotValue(fold, token, position++));
  return LogprobsAfter(fold);
}

PositionLogprobs ContextHashModel::Candidates(const Fold& context,
                                              const SamplingParams& params) const {
  const std::vector<float> logprobs = LogprobsAfter(context);
  PositionLogprobs candidates;
  for (int token = 0; token < options_.vocab_size; ++token) {
    candidates.top.push_back({token, logprobs[static_cast<size_t>(token)], 0});
  }
  std::ranges::stable_sort(candidates.top, std::greater<>(), &TokenLogprob::logprob);
  candidates.top.resize(static_cast<size_t>(BeamCandidates(params, options_.eos_token_ids)));
  for (size_t i = 0; i < candidates.top.size(); ++i) {
    candidates.top[i].rank = static_cast<int32_t>(i) + 1;
  }
  candidates.chosen = candidates.top.front();
  return candidates;
}

std::vector<float> ContextHashModel::Vector(const std::vector<TokenId>& prompt) {
  Fold fold;
  int position = 0;
  for (TokenId token : prompt) fold.Add(SlotValue(fold, token, position++));
  return {static_cast<float>(UnitDouble(fold.value))};
}

void ContextHashModel::Drop(std::span<const BlockIndex> blocks) {
  for (BlockIndex block : blocks) {
    std::fill_n(device_.begin() + block * options_.block_size, options_.block_size, ~uint64_t{0});
  }
}

void ContextHashModel::CopyBlock(std::vector<uint64_t>& to, BlockIndex to_block,
                                 const std::vector<uint64_t>& from, BlockIndex from_block) const {
  const size_t size = options_.block_size;
  MR_CHECK((from_block + 1) * size <= from.size() && (to_block + 1) * size <= to.size())
      << "copy from block " << from_block << " to " << to_block << " is outside the pool";
  std::copy_n(from.begin() + from_block * size, size, to.begin() + to_block * size);
}

uint64_t& ContextHashModel::SlotOf(const SequenceView& sequence, int position) {
  const size_t block = position / options_.block_size;
  MR_CHECK(block < sequence.blocks.size())
      << "position " << position << " of sequence " << sequence.id << " is beyond its "
      << sequence.blocks.size() << " blocks";
  const BlockIndex index = sequence.blocks[block];
  MR_CHECK(index >= 0 && index < options_.num_blocks) << "block " << index << " does not exist";
  return device_[static_cast<size_t>(index) * options_.block_size + position % options_.block_size];
}

void ContextHashModel::Pull(const ContextHashModel& from, std::span<const BlockIndex> from_table,
                            std::span<const BlockIndex> to_table, int first, int end) {
  const int size = options_.block_size;
  MR_CHECK(from.options_.block_size == size);
  for (int i = first; i < end; ++i) {
    device_.at(static_cast<size_t>(to_table[i / size]) * size + i % size) =
        from.device_.at(static_cast<size_t>(from_table[i / size]) * size + i % size);
  }
}

StepResult ContextHashModel::Run(const StepPlan& plan) {
  for (SequenceId id : plan.released) {
    tokens_.erase(id);
    pooled_.erase(id);
  }
  for (const SequenceStart& start : plan.started) {
    std::vector<TokenId>& tokens = tokens_[start.id] = *start.prompt;
    if (start.output) tokens.insert(tokens.end(), start.output->begin(), start.output->end());
  }
  const std::span<const SequenceView> sequences = tables_.Advance(plan);
  for (const BlockCopy& c : plan.swap_out) CopyBlock(host_, c.to, device_, c.from);
  for (const BlockCopy& c : plan.swap_in) CopyBlock(device_, c.to, host_, c.from);
  for (const BlockCopy& c : plan.copies) CopyBlock(device_, c.to, device_, c.from);
  StepResult result;
  result.id = plan.id;
  for (const SequenceView& sequence : sequences) {
    result.sequences.push_back(RunSequence(sequence));
  }
  return result;
}

SequenceResult ContextHashModel::RunSequence(const SequenceView& sequence) {
  MR_CHECK(sequence.num_tokens() >= 1);
  std::vector<TokenId>& tokens = tokens_.at(sequence.id);
  const SequenceStart& start = *sequence.started;
  const int prompt_tokens = static_cast<int>(start.prompt->size());
  SequenceResult result;
  result.id = sequence.id;
  Fold fold;
  for (int p = 0; p < sequence.start; ++p) fold.Add(SlotOf(sequence, p));
  for (int i = 0; i < sequence.num_tokens(); ++i) {
    const int p = sequence.start + i;
    const TokenId token = sequence.tokens[i];
    MR_CHECK(p <= std::ssize(tokens)) << "tokens before position " << p << " were not sent";
    if (p == std::ssize(tokens)) tokens.push_back(token);
    MR_CHECK(token == tokens[p]) << "the token at position " << p << " changed";
    if (options_.layer && !sequence.Enters(*options_.layer)) continue;
    fold.Add(SlotOf(sequence, p) = SlotValue(fold, token, p));
    if (sequence.logits == LogitsWanted::kAll && p + 1 < prompt_tokens) {
      const float logprob = -static_cast<float>(UnitDouble(fold.value));
      result.prompt_logprobs.push_back({{(*start.prompt)[p + 1], logprob, 1}, {}});
    }
  }
  if (sequence.logits == LogitsWanted::kNone) return result;
  const SamplingParams& params = *start.params;
  const int position = sequence.end();
  if (params.pools()) {
    int& given = pooled_[sequence.id];
    if (sequence.logits == LogitsWanted::kAll && sequence.start <= given) {
      given = std::max(given, position);
    }
    const bool whole = params.pooling == Pooling::kLast || given == prompt_tokens;
    if (position == prompt_tokens && whole) {
      result.pooled = {static_cast<float>(UnitDouble(fold.value))};
    }
    return result;
  }
  if (params.beam_search) {
    result.logprobs = Candidates(fold, params);
    result.token = result.logprobs->chosen.token;
    return result;
  }
  const auto output = std::span<const TokenId>(tokens).subspan(
      prompt_tokens, std::max(position - prompt_tokens, 0));
  result.token = Sample(fold, position, output, params, start.seed);
  if (params.logprobs) {
    const float logprob = -static_cast<float>(UnitDouble(Mix64(fold.value)));
    result.logprobs = PositionLogprobs{{*result.token, logprob, 1}, {}};
  }
  return result;
}

}  // namespace millrace::sched
