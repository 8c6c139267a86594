// Files of the Helix artifact and of the tables made from it: capacities, clusters (.ini) and
// placements (.ini). They use Helix's units: "mbps" means 10^6 bytes per second. Untrusted text:
// sizes are bounded and an error is one line, "NAME:LINE:COLUMN: what is wrong". Any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow/helix_capacity.h"

namespace millrace::plan {

inline constexpr size_t kHelixBytesMax = size_t{64} << 20;
inline constexpr int kHelixLayersMax = 1024;

// `name` names the file in errors. The format is in docs/formats/cluster.md.
Result<HelixCapacity> ParseHelixCapacity(std::string_view text, std::string_view name);

// A cluster .ini. Nodes are named "node-0", "node-1", ...; memory and NIC speed are those of the
// GPU type on the machines of the paper. A link of the file applies in both directions.
Result<ClusterSpec> ParseHelixCluster(std::string_view text, std::string_view name);

// A placement .ini: the layers of each node, [0, 0) for a node without any. The first node is at
// [0] whatever the file's offset.
Result<std::vector<LayerRange>> ParseHelixPlacement(std::string_view text, std::string_view name);

}  // namespace millrace::plan
