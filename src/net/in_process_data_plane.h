// DataPlanes that stay in one process: for serving without a cluster, and for tests. Nothing is
// copied but the bytes of pulls; limits and back-pressure are those of the planes that cross
// processes.
#pragma once

#include <memory>
#include <string>

#include "net/data_plane.h"

namespace millrace::net {

// Who can reach whom. Outlives no one: planes keep it alive.
class InProcessNetwork;
std::shared_ptr<InProcessNetwork> MakeInProcessNetwork();

struct InProcessDataPlaneOptions {
  std::string endpoint;      // any name, unique in the network
  uint64_t incarnation = 0;  // 0: drawn at random
  DataPlaneLimits limits;
};

// A plane of the same endpoint replaces the one before, as a restarted process would.
std::unique_ptr<DataPlane> StartInProcessDataPlane(std::shared_ptr<InProcessNetwork> network,
                                                   InProcessDataPlaneOptions options,
                                                   DataPlaneEvents events);

}  // namespace millrace::net
