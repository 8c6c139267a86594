// StepRig: a real model in a stage runner with all slots of a profile's grid filled, so that any
// batch of the grid can be timed at any moment. Owns the runner; one thread.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ops/profile/grid.h"
#include "stage/stage_runner.h"

namespace millrace::ops {

class StepRig {
 public:
  struct Timing {
    double step_s = 0, layers_s = 0;
    // CPU time of the calling thread divided by the step's time; near 1 if it had its processor
    // alone.
    double undisturbed = 0;
  };

  // Computes a prompt in one slot and copies its KV to the others: the cache must be filled, but
  // its values do not matter. `runner` needs at least BlocksFor(limits, block size) blocks.
  static Result<std::unique_ptr<StepRig>> Create(std::unique_ptr<stage::StageRunner> runner,
                                                 const ProfileLimits& limits, double temperature,
                                                 const Clock& clock);
  static int BlocksFor(const ProfileLimits& limits, int block_size);

  // REQUIRES: a batch of ProfileGrid(limits).
  Result<Timing> Run(const ProfileBatch& batch);
  const stage::StageRunner& runner() const { return *runner_; }
  // Returns the stage; the rig cannot be used afterwards.
  std::unique_ptr<stage::ModelStage> TakeStage() { return runner_->TakeStage(); }

 private:
  StepRig(std::unique_ptr<stage::StageRunner> runner, double temperature, const Clock& clock);
  Status Fill(const ProfileLimits& limits);
  Result<Timing> Submit(StepPlan plan);
  void AddChunk(const ProfileChunk& chunk, LogitsWanted logits, StepPlan& plan);

  struct Slot {
    std::vector<BlockIndex> blocks;
    std::shared_ptr<const std::vector<TokenId>> prompt;
    bool started = false;
  };
  std::unique_ptr<stage::StageRunner> runner_;
  const Clock& clock_;
  const std::shared_ptr<const SamplingParams> sampling_;
  std::vector<Slot> slots_;
  uint64_t steps_ = 0;
};

}  // namespace millrace::ops
