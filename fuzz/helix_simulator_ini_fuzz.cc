// Helix's simulator clusters (".cluster.ini") for a fixed placement.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "experiments/lib/helix/helix_cluster.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::experiments::helix;
  constexpr std::string_view kPlacement =
      "[Settings]\noffset=2\n[Solution]\ncompute_node_2=[0, 1]\ncompute_node_3=[2, 3]\n";
  auto cluster =
      ParseHelixCluster({reinterpret_cast<const char*>(data), size}, "fuzz", kPlacement, "held");
  if (!cluster.ok()) return 0;
  DropDeadEnds(&*cluster);
  for (const HelixNode& node : cluster->nodes) {
    MR_CHECK(node.layers.size() > 0 && node.kv_entries >= 0 && node.nic_in_bytes_per_s > 0);
  }
  for (const HelixLink& link : cluster->links) {
    MR_CHECK(link.from >= 0 && link.from <= cluster->coordinator() && link.to >= 0 &&
             link.to <= cluster->coordinator() && link.bytes_per_s > 0 && link.latency_s >= 0);
  }
  return 0;
}
