// ClusterPicture: the plan in force as text, as `millrace plan` draws it (plan/picture.cc), with
// what runs: a line for each stage, with its layers, requests and KV, and under it a line for each
// edge from there, with the flow that was planned and the flow that was measured. At most 80
// columns, without colours. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "apps/cluster/cluster_view.h"

namespace millrace::apps {

// In a plan with more stages, those of the same role and layers are one line.
inline constexpr size_t kStagesApart = 12;

// With `earlier`, measured flow is what has flowed since then, per second. Otherwise it is what has
// flowed since the plan is in force.
std::string ClusterPicture(const ClusterView& view, const std::optional<EarlierView>& earlier);

}  // namespace millrace::apps
