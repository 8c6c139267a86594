// StepChecker: checks the step plans of one pipeline, which come from another process. It knows
// which sequences have been started and how many blocks each has, so a worker checks a plan when it
// arrives, while earlier ones still wait to run. A plan that passes can run without further checks:
// every block, position and token that it names exists (SequenceTables).
//
// Owned by a pipeline of a worker (WorkerCore). One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/step_plan.h"

namespace millrace {

// What the plans of a pipeline may name.
struct StepLimits {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_batched_tokens = 0;  // of one step
  int max_model_len = 0;       // positions of a sequence
  int vocab_size = 0;
};

class StepChecker {
 public:
  explicit StepChecker(const StepLimits& limits) : limits_(limits) {}

  // Plans come in the order in which they run. kInvalidArgument says what is wrong. The pipeline
  // must then end, because its tables may differ from those that its sender assumes.
  Status Check(const StepPlan& plan);

 private:
  struct Known {
    int32_t blocks = 0;
    uint64_t step = 0;  // the number of the last plan that computed some of its tokens
  };

  Status CheckTest(const StepPlan& plan) const;
  Status CheckBlocks(const StepPlan& plan) const;
  Status CheckTokens(std::span<const TokenId> tokens) const;
  Status CheckStart(const SequenceStart& start) const;
  // `first_token`: where the tokens of the sequence before end.
  Status CheckSequence(const StepPlan& plan, const SequenceStep& step, int64_t first_token);

  const StepLimits limits_;
  std::unordered_map<SequenceId, Known> known_;
  uint64_t steps_ = 0;
};

}  // namespace millrace
