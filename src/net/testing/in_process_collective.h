// For tests: the collective of ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "net/collective/slot_collective.h"

namespace millrace::net {

// Returns one collective per rank, in rank order; each is used by its own thread. kInvalidArgument
// for a size that is not 1, 2, 4 or 8; kResourceExhausted without memory.
Result<std::vector<std::unique_ptr<Collective>>> NewInProcessCollectives(
    int size, Duration deadline = kCollectiveDeadline, size_t slot_floats = kSlotFloats);

}  // namespace millrace::net
