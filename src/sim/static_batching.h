// Static batching: the request-level scheduling that Orca compares itself with (FasterTransformer
// behind a simple queue, Orca section 6). A baseline, not a part of Millrace: a batch is taken from
// the queue, runs until its longest request has ended, and only then do all of its requests return.
#pragma once

#include <vector>

#include "cost/step_cost.h"
#include "sim/recorder.h"
#include "sim/workload.h"

namespace millrace::sim {

struct StaticBatchingOptions {
  std::vector<const cost::StepCost*> stages;  // of the pipeline; not owned
  int max_batch = 1;                          // requests taken from the queue at once
  int micro_batch = 1;                        // requests of a pipelined micro-batch
  Slo slo;
};

// Every request is padded to the longest of its micro-batch and computed to the batch's end.
LatencyReport RunStaticBatching(const StaticBatchingOptions& options, Workload& workload);

}  // namespace millrace::sim
