#include "ops/profile/grid.h"

#include <algorithm>

namespace millrace::ops {
namespace {

constexpr int kGridTokens[] = {1,   2,   4,   8,   16,  32,   48,   64,   96,   128,
                               192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096};
constexpr int kDecodes[] = {1, 2, 4, 8, 12, 16, 32, 64, 128, 256};
constexpr int kContexts[] = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

// One decode for each of the first `sequences` slots, at `context` tokens with the new one.
ProfileBatch Decodes(int sequences, int context) {
  ProfileBatch batch;
  for (int slot = 0; slot < sequences; ++slot) batch.chunks.push_back({slot, context - 1, 1});
  return batch;
}

}  // namespace

cost::BatchShape ProfileBatch::Shape() const {
  cost::BatchShape shape;
  for (const ProfileChunk& chunk : chunks) {
    const int64_t start = chunk.start, end = start + chunk.count;
    if (chunk.count == 1 && chunk.start > 0) {
      ++shape.decode_sequences;
      shape.decode_context += end;
    } else {
      ++shape.prefill_sequences;
      shape.prefill_tokens += chunk.count;
      shape.prefill_tokens_squared += end * end - start * start;
    }
  }
  return shape;
}

std::vector<int> SlotTokens(const ProfileLimits& limits) {
  std::vector<int> tokens;
  for (int slot = 0; slot < limits.max_sequences; ++slot) {
    tokens.push_back(std::min(limits.max_context, limits.context_tokens / (slot + 1)));
  }
  const int prompt = std::min(limits.max_context, limits.max_tokens);
  tokens.push_back(std::min(limits.max_context, 2 * prompt));
  for (int slot = 1; slot < kPromptSlots; ++slot) tokens.push_back(prompt);
  return tokens;
}

std::vector<ProfileBatch> ProfileGrid(const ProfileLimits& limits) {
  const std::vector<int> slots = SlotTokens(limits);
  const int prompt_slot = limits.max_sequences;
  const int prompt_max = std::min(limits.max_tokens, slots.back());
  std::vector<ProfileBatch> grid;
  for (const int tokens : kGridTokens) {
    if (tokens > prompt_max) break;
    grid.push_back({{{prompt_slot, 0, tokens}}});
    // As the second half of a prompt.
    if (tokens >= 64 && 2 * tokens <= slots[static_cast<size_t>(prompt_slot)]) {
      grid.push_back({{{prompt_slot, tokens, tokens}}});
    }
    if (tokens >= 16 && kPromptSlots * tokens <= limits.max_tokens &&
        kPromptSlots <= limits.max_sequences) {
      ProfileBatch together;
      for (int i = 0; i < kPromptSlots; ++i)
        together.chunks.push_back({prompt_slot + i, 0, tokens});
      grid.push_back(std::move(together));
    }
  }
  for (const int sequences : kDecodes) {
    if (sequences > std::min(limits.max_sequences, limits.max_tokens)) break;
    for (const int context : kContexts) {
      if (context > slots[static_cast<size_t>(sequences) - 1]) break;
      ProfileBatch decodes = Decodes(sequences, context);
      const int prompt = std::min({prompt_max, limits.max_tokens - sequences, 128});
      const bool mixed = context == 64 && sequences < limits.max_sequences && prompt >= 2;
      if (mixed) {
        ProfileBatch both = decodes;
        both.chunks.push_back({prompt_slot, 0, prompt});
        grid.push_back(std::move(both));
      }
      grid.push_back(std::move(decodes));
    }
  }
  return grid;
}

}  // namespace millrace::ops
