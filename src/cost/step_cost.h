// StepCost: the time of one iteration of some layers for one batch. It is the only cost interface:
// planners, scheduler and simulator use it, and fitted coefficients, measured tables and first
// principles implement it. Immutable after construction; any thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace millrace::cost {

// What the time of an iteration depends on. Prefill sequences compute more than one token.
struct BatchShape {
  int64_t prefill_tokens = 0;  // computed in this step
  // Sum over prefill sequences of end^2 - start^2, in positions; length^2 for a whole prompt.
  int64_t prefill_tokens_squared = 0;
  int32_t prefill_sequences = 0;
  int32_t decode_sequences = 0;  // one token each
  int64_t decode_context = 0;    // their tokens in the cache, with the new one

  int64_t tokens() const { return prefill_tokens + decode_sequences; }
  bool empty() const { return prefill_sequences == 0 && decode_sequences == 0; }
};

class StepCost {
 public:
  virtual ~StepCost() = default;
  // Seconds that a stage works on one batch: zero if the batch is empty, never negative.
  virtual double Seconds(const BatchShape& batch) const = 0;
};

}  // namespace millrace::cost
