// Worker: a worker with a hash model on real sockets, inside the test's process. Owned by the test;
// one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cluster/link/testing/link_harness.h"
#include "cluster/runtime/worker_process.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster::testing {

inline const stage::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};

inline WorkerProcessOptions WorkerOptions(const std::string& name, int controller_port) {
  WorkerProcessOptions options;
  options.controllers = {"127.0.0.1:" + std::to_string(controller_port)};
  options.security.token = kToken;
  options.join.name = name;
  options.loader = [](const LoadShard& load, const auto&, const ShardProgressFn&) {
    LoadedShard loaded;
    loaded.stage = std::make_shared<stage::HashStage>(kModel, load.layers);
    loaded.facts.kv_bytes_per_token_layer = 1;
    loaded.facts.kv_bytes = int64_t{400} * 4 * load.layers.size();
    return loaded;
  };
  return options;
}

// The destructor stops its threads and closes its ports.
class Worker {
 public:
  Worker(WorkerProcessOptions options, const Clock& clock) {
    auto started = WorkerProcess::Start(std::move(options), clock);
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    process_ = std::move(*started);
    thread_ = std::thread([this] { ended_ = process_->Run(); });
  }
  ~Worker() {
    process_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  Status WaitForEnd() {
    thread_.join();
    return ended_;
  }
  WorkerProcess& process() { return *process_; }

 private:
  std::unique_ptr<WorkerProcess> process_;
  Status ended_;
  std::thread thread_;
};

}  // namespace millrace::cluster::testing
