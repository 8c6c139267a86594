// ChainedExecutor: a pipeline in one process. Each stage has its own thread and a share of the
// layers. Steps go from one stage to the next, and there are as many in progress as there are
// stages (Orca section 4.2).
//
// Owns the stages and their threads. One thread calls Submit and Wait.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/stage.h"

namespace millrace::engine {

struct ChainedExecutorOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_batched_tokens = 0;  // supported by every stage
  int max_sequences = 128;
  std::vector<TokenId> eos_token_ids;
  // The layers that each stage runs: consecutive ranges that begin at 0. Empty: all that it has.
  std::vector<LayerRange> layers;
  std::vector<int> cpus;  // the CPU of each stage's thread; empty: any
};

class ChainedExecutor : public Executor {
 public:
  // kInvalidArgument: the ranges are not consecutive. kResourceExhausted: no memory for the pools.
  static Result<std::unique_ptr<ChainedExecutor>> Create(std::vector<std::unique_ptr<Stage>> stages,
                                                         const ChainedExecutorOptions& options);
  ~ChainedExecutor() override;

  const ExecutorTraits& traits() const override { return traits_; }
  void Submit(const StepPlan& plan) override;
  const StepResult& Wait() override;

 private:
  // A step in progress.
  struct Flight {
    StepPlan plan;
    StagePart part;
    std::vector<std::byte> rows;  // between stages: part.input is a view of it
    size_t stages_done = 0;       // read and written under mutex_ of the executor
  };
  struct Hop {
    std::unique_ptr<Stage> stage;
    CondVar arrived;
    std::thread thread;
  };

  explicit ChainedExecutor(std::vector<std::unique_ptr<Stage>> stages);
  Status Open(const ChainedExecutorOptions& options);
  void Work(size_t index);
  void RunHop(Stage& stage, Flight& flight);

  ExecutorTraits traits_;
  std::vector<Hop> hops_;
  // A ring: step i is in flights_[i % size]. It has one more entry than steps may be in progress,
  // for the result that the caller reads. Every stage takes the steps in order.
  std::vector<Flight> flights_;
  uint64_t waited_ = 0;  // steps whose result was returned; the caller's thread

  Mutex mutex_;
  uint64_t submitted_ MR_GUARDED_BY(mutex_) = 0;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  CondVar completed_;  // a step has passed the last stage
};

}  // namespace millrace::engine
