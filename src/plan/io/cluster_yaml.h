// cluster.yaml: the available machines and links, written by a person; the format is in
// docs/formats/cluster.md. Untrusted text: sizes are bounded, every quantity has its unit, and an
// error is one line, "NAME:LINE:COLUMN: what is wrong, what is allowed". Any thread.
#pragma once

#include <string_view>

#include "base/status.h"
#include "core/cluster_spec.h"

namespace millrace::plan {

// Every node of the result can reach the coordinator and be reached from it. `name` names the file
// in errors.
Result<ClusterSpec> ParseClusterYaml(std::string_view text, std::string_view name);

// The first node that the coordinator cannot reach, or that cannot reach it, over links and other
// nodes. None if all are connected.
std::optional<NodeIndex> FirstCutOffNode(const ClusterSpec& cluster);

}  // namespace millrace::plan
