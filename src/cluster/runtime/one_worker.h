// A cluster of one worker in this process, over a stage that is loaded already. `millrace serve
// MODEL` runs a model this way, and tests of code above a Generator use it too.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/runtime/local_cluster.h"
#include "stage/stage.h"

namespace millrace::cluster {

struct OneWorker {
  std::shared_ptr<stage::Stage> stage;  // all layers
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;        // in all layers
  int num_blocks = 0;                    // KV blocks of the controller's block size
  Join join = {.name = "this-process"};  // name, device and memory, for display
};

// Returns once requests can be computed. `options.controller` gets the limits of a worker that no
// other could replace: it is never declared lost. kInternal: it is not ready in a minute.
// `clock` outlives the cluster.
Result<std::unique_ptr<LocalCluster>> StartOneWorker(ControllerHostOptions options,
                                                     OneWorker worker, const Clock& clock);

}  // namespace millrace::cluster
