// Static batching: the request-level scheduling that Orca compares itself with (FasterTransformer
// behind a simple queue, Orca section 6). A baseline for comparison only. A batch is taken from the
// queue and runs until its longest request has ended; only then do all its requests return. Pure
// function; any thread.
#pragma once

#include <vector>

#include "cost/step_cost.h"
#include "sim/load/workload.h"
#include "sim/record/recorder.h"

namespace millrace::sim {

struct StaticBatchingOptions {
  std::vector<const cost::StepCost*> stages;  // of the pipeline; not owned
  int max_batch = 1;                          // requests taken from the queue at once
  int micro_batch = 1;                        // requests of a pipelined micro-batch
  LatencyLimits limits;
};

// Every request is padded to the longest of its micro-batch and computed until the batch ends.
LatencyReport RunStaticBatching(const StaticBatchingOptions& options, Workload& workload);

}  // namespace millrace::sim
