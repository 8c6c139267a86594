// The batches that `millrace profile` measures: which sequences compute which tokens. Pure
// functions; any thread.
//
// Each sequence occupies a slot of the KV pool. Decode slot i caches context_tokens / (i + 1)
// tokens, so that one sequence with a long context and many with short ones fit at the same time
// and every batch can be repeated at any time. Prompt slots follow them.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/step_cost.h"

namespace millrace::ops {

struct ProfileLimits {
  int max_tokens = 1024;      // computed in one step
  int max_sequences = 64;     // in one step
  int max_context = 2048;     // tokens of a sequence
  int context_tokens = 8192;  // of all decodes of a step together
};

// Tokens [start, start + count) of the sequence in `slot`.
struct ProfileChunk {
  int slot = 0, start = 0, count = 0;
};

struct ProfileBatch {
  std::vector<ProfileChunk> chunks;
  cost::BatchShape Shape() const;
};

inline constexpr int kPromptSlots = 4;

// The tokens that each slot must hold: decode slots first, then kPromptSlots prompt slots.
std::vector<int> SlotTokens(const ProfileLimits& limits);

// Prompts by tokens (alone, several at once and as later chunks), decodes by batch and context, and
// both together. Every chunk is within its slot, every batch within the limits.
std::vector<ProfileBatch> ProfileGrid(const ProfileLimits& limits);

}  // namespace millrace::ops
