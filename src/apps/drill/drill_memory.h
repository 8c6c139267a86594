// Whether a drill fits on this machine. A pure function; any thread.
#pragma once

#include <cstdint>

#include "apps/drill/drill.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "plan/flow/flow_from_cluster.h"

namespace millrace::apps {

inline constexpr int kDrillPromptTokensMax = 64;  // of DrillRequests, with a margin

// The KV memory of each process, in bytes: any of them may have to hold all layers of all streams.
// kInvalidArgument: answers that the model's context does not allow. kFailedPrecondition: too
// little memory for the controller, the workers and, before them, the undisturbed process.
Result<int64_t> CheckDrillFits(const DrillOptions& options, const plan::ModelFootprint& model,
                               const MemoryAvailable& free);

}  // namespace millrace::apps
