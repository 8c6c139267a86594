// What the benchmarks of a live cluster share: a random model, the options of a cell and of workers
// on the loopback interface, and streams that note when their tokens came. One benchmark's own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.h"
#include "cluster/cell_server.h"
#include "cluster/worker_process.h"
#include "core/model_spec.h"
#include "model/shapes.h"

namespace millrace::bench {

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

struct RigModel {
  std::string folder;
  ModelSpec spec;
};
// Of llama-160m's kind with these numbers; made under `models` once and kept there.
RigModel MakeRigModel(const std::string& models, const model::ShapeNumbers& numbers);

// Without a prefix cache, so that KV is where it was moved to and nowhere else; and patient, so
// that a busy machine does not count as a fault.
cluster::CellOptions CellOptionsFor(const RigModel& model, Plan plan, int max_num_seqs,
                                    int max_model_len);
cluster::ControlServerOptions ServerOptionsForRig();
// A worker that loads what it is told to of the model and computes with one thread.
cluster::WorkerProcessOptions WorkerOptionsFor(const RigModel& model, const std::string& name,
                                               int controller_port, int64_t kv_bytes,
                                               int max_model_len);

// A greedy request and the times of its tokens, as the cell's sink sees them.
class Stream {
 public:
  // `seed` makes the prompt.
  Stream(cluster::Cell& cell, const RigModel& model, int prompt_tokens, int max_tokens,
         uint64_t seed);
  ~Stream();  // aborts it and waits for its end
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  RequestId id() const { return id_; }
  size_t tokens() const;
  // Waits until so many have come.
  void WaitFor(size_t tokens) const;
  // Seconds on bench::Now's wall clock, by token.
  std::vector<double> times() const;

 private:
  struct State;
  cluster::Cell& cell_;
  std::shared_ptr<State> state_;
  RequestId id_;
};

// Of the times between tokens [first, last]: in seconds.
std::vector<double> Gaps(const std::vector<double>& times, size_t first, size_t last);

}  // namespace millrace::bench
