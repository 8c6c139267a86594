// Which request gives its KV memory to an older one of another pipeline on the same workers. Pure;
// any thread, as long as nothing changes the arguments.
#pragma once

#include <optional>

#include "base/clock.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"

namespace millrace::cluster {

struct MemoryHolders {
  const Pipelines& pipelines;
  const Requests& requests;
  const KvMemory& memory;
  const Transfers& transfers;
};

// The youngest request that holds memory of the starved pipeline's workers, if it is younger than
// some request of the starved one. The oldest request of all is never taken, so it ends
// (docs/decisions/0003-admission.md). nullopt: there is none.
std::optional<RequestId> RequestToEvict(PipelineId starved, const MemoryHolders& holders, Time now);

}  // namespace millrace::cluster
