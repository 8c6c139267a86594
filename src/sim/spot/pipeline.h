// One pipeline of a configuration on a virtual clock: how it spends time on the requests it was
// given. Two bodies: batches that run to completion, as SpotServe's engine does, and continuous
// batching with as many iterations in flight as there are stages, as Orca does.
//
// Driven by the simulator; one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::sim::spot {

struct RequestState {
  double arrival_s = 0;
  int done = 0;  // tokens that the client has
  std::optional<double> finish_s;
};

struct RequestLengths {
  int input_tokens = 512;
  int output_tokens = 128;
};

// A request that stopped short of its end, with or without its KV on the pipeline's machines.
struct Stopped {
  int request = 0;
  bool has_kv = false;
};

class Pipeline {
 public:
  virtual ~Pipeline() = default;
  virtual int FreeSlots() const = 0;
  virtual int running() const = 0;
  // Starts requests: with `has_kv` where they stopped, else with the prefill of prompt and tokens
  // done so far. A batch of completion runs at most `steps_max` steps. REQUIRES: as many free
  // slots.
  virtual void Start(double now_s, std::span<const int> requests, bool has_kv, int steps_max) = 0;
  // When something next happens on its own.
  virtual std::optional<double> NextEvent() const = 0;
  // Does what is due. Returns those that a limit of steps stopped.
  virtual std::vector<Stopped> Advance(double now_s) = 0;
  // New limits for what starts from now on. REQUIRES: the same stages and tensor degree.
  virtual void Limit(const plan::spot::ParallelConfig& config) = 0;
  // Stops everything now; what an iteration has not finished is lost.
  virtual std::vector<Stopped> Cut(double now_s) = 0;
};

// REQUIRES: the profile has the cells of `config`. `requests` outlives the pipeline.
std::unique_ptr<Pipeline> MakeBatchPipeline(const plan::spot::Profile& profile,
                                            const plan::spot::ParallelConfig& config,
                                            const RequestLengths& lengths,
                                            std::vector<RequestState>& requests);
std::unique_ptr<Pipeline> MakeContinuousPipeline(const plan::spot::Profile& profile,
                                                 const plan::spot::ParallelConfig& config,
                                                 const RequestLengths& lengths,
                                                 std::vector<RequestState>& requests);

// What a batch of `batch` requests costs on a pipeline made for larger ones: as many micro-batches
// as it has requests, at most.
plan::spot::ExecutionTime BatchTime(const plan::spot::Profile& profile,
                                    plan::spot::ParallelConfig config, int batch);

}  // namespace millrace::sim::spot
