// Executor: the interface between deciding an iteration and running it. A local model, a fake one
// whose every token depends on the whole context, a checking pair, a recorder and a remote stage
// all have this type. The scheduler's owner gets one and never constructs it.
//
// One thread calls Submit and Wait. Results are returned in the order of submission (Orca,
// Algorithm 1).
#pragma once

#include <optional>

#include "core/model_spec.h"
#include "core/step_plan.h"

namespace millrace::engine {

struct ExecutorTraits {
  int stages = 1;  // steps that may be in flight (Orca's n_workers)
  int block_size = 16;
  int num_blocks = 0;          // device KV blocks
  int num_host_blocks = 0;     // swap pool
  int max_batched_tokens = 0;  // tokens a step may hold
  int max_sequences = 0;       // sequences a step may hold
  int64_t kv_bytes_per_block = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorTraits& traits() const = 0;
  // Copies what it needs of `plan`. REQUIRES: fewer than traits().stages steps in flight.
  virtual void Submit(const StepPlan& plan) = 0;
  // The oldest step's result; blocks until it exists. REQUIRES: a step in flight. The reference
  // stays valid until the next call of Wait.
  virtual const StepResult& Wait() = 0;
};

}  // namespace millrace::engine
