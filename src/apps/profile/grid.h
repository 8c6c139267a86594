// The batches that `millrace profile` runs: which sequences compute which tokens. Pure; any thread.
//
// Sequences live in slots of the KV pool. Decode slot i holds the cache of context_tokens / (i + 1)
// tokens, so that one sequence with a long context and many with short ones all fit at once and
// every batch can be repeated at any time. Prompt slots come after them.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/step_cost.h"

namespace millrace::apps {

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

// Tokens each slot must hold: decode slots first, then kPromptSlots prompt slots.
std::vector<int> SlotTokens(const ProfileLimits& limits);

// Prompts by tokens, alone, several at once and as later chunks; decodes by batch and context; both
// together. Every chunk within its slot, every batch within the limits.
std::vector<ProfileBatch> ProfileGrid(const ProfileLimits& limits);

}  // namespace millrace::apps
