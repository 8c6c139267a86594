// Where and how a process computes: instruction set, precision of activations, NUMA node, threads.
// Called while the command line is read, before any other thread starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"

namespace millrace::apps {

inline constexpr int kComputeThreadsMax = 256;

// In effect already; as given, or nothing.
struct ComputeFlags {
  std::string cpu_features, activations;
  std::optional<int> numa_node;
};

// --cpu-features, --activations and --numa-node, in effect for this process as soon as they are
// parsed. `chosen`, if not null, receives them and must outlive the command.
void AddComputeOptions(Command& command, const char* group, ComputeFlags* chosen = nullptr);

// Keeps this process's threads on the node's CPUs and its memory in the node's. kInvalidArgument
// when there is no such node or this process may use none of its CPUs; kFailedPrecondition when the
// system refuses.
Status BindToNumaNode(int node);
// The nodes whose CPUs this process may use; {0} if the system does not tell.
std::vector<int> NumaNodes();
// What to tell a user whose process computes on several nodes; "" if it does not.
std::string NumaAdvice();

// Of `cpus`, how many a control group's quota lets compute at once: at least one.
int CpusUnder(std::optional<double> quota, int cpus);
// The compute threads of a process that may use `cpus`. One of more than two is left to a front end
// in the same process: HTTP, text and planning would stop a compute thread, and all wait for it.
int ThreadsFor(int cpus, bool front_end);
// The same for this process.
int DefaultThreads(bool front_end = false);

}  // namespace millrace::apps
