#include "apps/common/compute_flags.h"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

#include "base/control_groups.h"
#include "base/units.h"
#include "tensor/cpu/cpu_features.h"

namespace millrace::apps {
namespace {

constexpr int kNodesMax = 1024;

cpu_set_t UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  return set;
}

// The CPUs of `node` among `usable`.
cpu_set_t CpusOf(int node, const cpu_set_t& usable) {
  cpu_set_t set;
  CPU_ZERO(&set);
  bitmask* of_node = numa_allocate_cpumask();
  if (numa_node_to_cpus(node, of_node) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &usable) && numa_bitmask_isbitset(of_node, cpu) != 0) CPU_SET(cpu, &set);
    }
  }
  numa_free_cpumask(of_node);
  return set;
}

Option NumaOption(ComputeFlags* chosen) {
  const auto bind = [chosen](const std::string& text) {
    const auto node = ParseInt(text);
    if (!node.ok() || *node < 0 || *node >= kNodesMax) {
      return InvalidArgument(fmt::format("must be the number of a node, got '{}'", text));
    }
    MR_RETURN_IF_ERROR(BindToNumaNode(static_cast<int>(*node)));
    if (chosen != nullptr) chosen->numa_node = static_cast<int>(*node);
    return OkStatus();
  };
  return CustomOption("numa-node", "N", "", bind);
}

}  // namespace

void AddComputeOptions(Command& command, const char* group, ComputeFlags* chosen) {
  const auto limit = [chosen](const std::string& text) {
    MR_RETURN_IF_ERROR(tensor::LimitCpuFeatures(text));
    if (chosen != nullptr) chosen->cpu_features = text;
    return OkStatus();
  };
  command.Add(group, CustomOption("cpu-features", "SET", "", limit),
              "Instruction set of the kernels: amx, avx512 or avx2; the answers have the same bits "
              "[default: the best that this processor has]");
  const auto set = [chosen](const std::string& text) {
    MR_RETURN_IF_ERROR(tensor::SetCpuActivations(text));
    if (chosen != nullptr) chosen->activations = text;
    return OkStatus();
  };
  command.Add(group, CustomOption("activations", "bf16|bf16x2", "", set),
              "Precision of activations where bf16 weights meet them: bf16: rounded to it; bf16x2: "
              "as two numbers, nearly exact and up to twice the time. All workers of a cluster "
              "need the same [default: bf16]");
  command.Add(group, NumaOption(chosen),
              "Compute on the CPUs of this NUMA node and keep all memory there [default: wherever "
              "the system puts it]");
}

Status BindToNumaNode(int node) {
  if (numa_available() < 0) {
    return FailedPrecondition("this system reports no NUMA nodes: leave the option out");
  }
  if (node > numa_max_node() || numa_bitmask_isbitset(numa_all_nodes_ptr, node) == 0) {
    return InvalidArgument(
        fmt::format("this machine's nodes are 0 to {}, got {}", numa_max_node(), node));
  }
  const cpu_set_t cpus = CpusOf(node, UsableCpus());
  if (CPU_COUNT(&cpus) == 0) {
    return InvalidArgument(fmt::format("this process may use no CPU of node {}", node));
  }
  unsigned long nodes[kNodesMax / (CHAR_BIT * sizeof(unsigned long))] = {};
  nodes[node / (CHAR_BIT * sizeof(unsigned long))] |= 1UL
                                                      << node % (CHAR_BIT * sizeof(unsigned long));
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0 ||
      set_mempolicy(MPOL_BIND, nodes, kNodesMax) != 0) {
    return FailedPrecondition(fmt::format(
        "the system does not let this process choose its memory ({}): in a container, allow "
        "set_mempolicy, or leave the option out",
        std::generic_category().message(errno)));
  }
  return OkStatus();
}

std::vector<int> NumaNodes() {
  if (numa_available() < 0) return {0};
  const cpu_set_t usable = UsableCpus();
  std::vector<int> nodes;
  for (int node = 0; node <= numa_max_node(); ++node) {
    const cpu_set_t cpus = CpusOf(node, usable);
    if (CPU_COUNT(&cpus) > 0) nodes.push_back(node);
  }
  return nodes;
}

std::string NumaAdvice() {
  const size_t nodes = NumaNodes().size();
  if (nodes < 2) return "";
  return fmt::format(
      "computing on {} NUMA nodes, whose memory is far from each other: one worker per node with "
      "--numa-node is faster, as `millrace up` starts them",
      nodes);
}

int CpusUnder(std::optional<double> quota, int cpus) {
  return quota ? std::clamp(static_cast<int>(*quota), 1, std::max(cpus, 1)) : cpus;
}

int ThreadsFor(int cpus, bool front_end) {
  return std::clamp(front_end && cpus > 2 ? cpus - 1 : cpus, 1, kComputeThreadsMax);
}

int DefaultThreads(bool front_end) {
  const cpu_set_t usable = UsableCpus();
  return ThreadsFor(CpusUnder(ReadCpuQuota(), CPU_COUNT(&usable)), front_end);
}

}  // namespace millrace::apps
