// Data planes within one process, for serving without a cluster and for tests. Only the bytes of
// pulls are copied. Limits and back-pressure are those of the planes that cross processes.
#pragma once

#include <memory>
#include <string>

#include "net/data/data_plane.h"

namespace millrace::net {

// Connects the planes that were started with it. The planes share its ownership.
class InProcessNetwork;
std::shared_ptr<InProcessNetwork> MakeInProcessNetwork();

struct InProcessDataPlaneOptions {
  std::string endpoint;      // any name, unique in the network
  uint64_t incarnation = 0;  // 0: drawn at random
  DataPlaneLimits limits;
};

// A new plane with the same endpoint replaces the previous one, as a restarted process would.
std::unique_ptr<DataPlane> StartInProcessDataPlane(std::shared_ptr<InProcessNetwork> network,
                                                   InProcessDataPlaneOptions options,
                                                   DataPlaneEvents events);

}  // namespace millrace::net
