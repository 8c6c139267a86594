// One pipeline of a configuration on a virtual clock: how it spends time on its requests. Two
// implementations: batches that run to completion, like SpotServe's engine, and continuous batching
// with as many iterations in flight as there are stages, like Orca.
//
// Driven by the simulator; one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::experiments::spotserve {

struct RequestState {
  double arrival_s = 0;
  int done = 0;  // tokens delivered to the client
  std::optional<double> finish_s;
};

struct RequestLengths {
  int input_tokens = 512;
  int output_tokens = 128;
};

// A request that stopped before its end, with or without its KV on the pipeline's machines.
struct Stopped {
  int request = 0;
  bool has_kv = false;
};

class Pipeline {
 public:
  virtual ~Pipeline() = default;
  virtual int FreeSlots() const = 0;
  virtual int running() const = 0;
  // Starts requests: with `has_kv` where they stopped, otherwise with a prefill of the prompt and
  // the tokens done so far. A batch that runs to completion runs at most `steps_max` steps.
  // REQUIRES: that many free slots.
  virtual void Start(double now_s, std::span<const int> requests, bool has_kv, int steps_max) = 0;
  // The time of its next own event.
  virtual std::optional<double> NextEvent() const = 0;
  // Performs all due work. Returns the requests that a step limit stopped.
  virtual std::vector<Stopped> Advance(double now_s) = 0;
  // Sets new limits for requests that start from now on. REQUIRES: the same stages and tensor
  // degree.
  virtual void Limit(const plan::spot::ParallelConfig& config) = 0;
  // Stops everything now; unfinished work of an iteration is lost.
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

// The time of a batch of `batch` requests on a pipeline made for larger ones: at most as many
// micro-batches as it has requests.
plan::spot::ExecutionTime BatchTime(const plan::spot::Profile& profile,
                                    plan::spot::ParallelConfig config, int batch);

}  // namespace millrace::experiments::spotserve
