// Shared by the benchmarks of a live cluster: a random model, the options of a controller and of
// workers on the loopback interface, and streams that record when their tokens arrive. Owned by one
// benchmark; one thread, unless stated.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.h"
#include "cluster/runtime/controller_process.h"
#include "cluster/runtime/worker_process.h"
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
// A model of llama-160m's kind with these numbers. It is made under `models` once and kept there.
RigModel MakeRigModel(const std::string& models, const model::ShapeNumbers& numbers);

// Without a prefix cache, so that KV is only where it was moved to; and with long timeouts, so that
// a busy machine does not count as a fault.
cluster::ControllerHostOptions ControllerOptionsFor(const RigModel& model, Plan plan,
                                                    int max_num_seqs, int max_model_len);
cluster::ControlServerOptions ServerOptionsForRig();
// A worker that loads its assigned layers of the model and computes with one thread.
cluster::WorkerProcessOptions WorkerOptionsFor(const RigModel& model, const std::string& name,
                                               int controller_port, int64_t kv_bytes,
                                               int max_model_len);

// A greedy request and the times of its tokens, as the controller's sink sees them.
class Stream {
 public:
  // `seed` determines the prompt.
  Stream(cluster::ControllerHost& host, const RigModel& model, int prompt_tokens, int max_tokens,
         uint64_t seed);
  ~Stream();  // aborts the request and waits for its end
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  RequestId id() const { return id_; }
  size_t tokens() const;
  // Waits until this many tokens have arrived.
  void WaitFor(size_t tokens) const;
  // Seconds on bench::Now's wall clock, by token.
  std::vector<double> times() const;

 private:
  struct State;
  cluster::ControllerHost& host_;
  std::shared_ptr<State> state_;
  RequestId id_;
};

// Seconds between consecutive tokens of [first, last].
std::vector<double> Gaps(const std::vector<double>& times, size_t first, size_t last);

}  // namespace millrace::bench
