// ChainedExecutor: a pipeline in one process. Each stage has a thread of its own and a share of the
// layers; a step goes from one to the next, and as many steps are under way as there are stages
// (Orca section 4.2).
//
// Owns the stages and their threads. One thread calls Submit and Wait.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/stage.h"

namespace millrace::engine {

struct ChainedExecutorOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_batched_tokens = 0;  // that every stage takes
  int max_sequences = 128;
  std::vector<TokenId> eos_token_ids;
  // What each stage runs of its layers: consecutive ranges that begin at 0. Empty: all it has.
  std::vector<LayerRange> layers;
  std::vector<int> cpus;  // where each stage's thread stays; empty: anywhere
};

class ChainedExecutor : public Executor {
 public:
  // kInvalidArgument: the ranges do not follow one another. kResourceExhausted: no memory for the
  // pools.
  static Result<std::unique_ptr<ChainedExecutor>> Create(std::vector<std::unique_ptr<Stage>> stages,
                                                         const ChainedExecutorOptions& options);
  ~ChainedExecutor() override;

  const ExecutorTraits& traits() const override { return traits_; }
  void Submit(const StepPlan& plan) override;
  const StepResult& Wait() override;

 private:
  // A step on its way.
  struct Flight {
    StepPlan plan;
    StagePart part;
    std::vector<std::byte> rows;  // between stages: what part.input shows
    size_t stages_done = 0;       // guarded by mutex_
  };
  struct Hop {
    std::unique_ptr<Stage> stage;
    std::condition_variable arrived;
    std::thread thread;
  };

  explicit ChainedExecutor(std::vector<std::unique_ptr<Stage>> stages);
  Status Open(const ChainedExecutorOptions& options);
  void Work(size_t index);
  void RunHop(Stage& stage, Flight& flight);

  ExecutorTraits traits_;
  std::vector<Hop> hops_;
  // In a ring: step i is in flights_[i % size]; one more than may be under way, for the result that
  // the caller looks at. Every stage takes the steps in their order.
  std::vector<Flight> flights_;
  uint64_t waited_ = 0;  // steps whose result has been asked for; the caller's thread

  std::mutex mutex_;
  uint64_t submitted_ = 0;             // guarded by mutex_
  bool stopping_ = false;              // guarded by mutex_
  std::condition_variable completed_;  // a step has passed the last stage
};

}  // namespace millrace::engine
