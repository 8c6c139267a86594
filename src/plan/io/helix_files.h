// The files of the Helix artifact and of the tables made from it: capacities, clusters (.ini) and
// placements (.ini). Units are theirs: "mbps" there means 10^6 bytes per second. Untrusted text:
// sizes are bounded and an error is one line, "NAME:LINE:COLUMN: what is wrong". Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/plan.h"
#include "plan/helix_capacity.h"

namespace millrace::plan {

inline constexpr size_t kHelixBytesMax = size_t{64} << 20;
inline constexpr int kHelixLayersMax = 1024;

// `name` stands for the file in errors. Format: docs/formats/cluster.md.
Result<HelixCapacity> ParseHelixCapacity(std::string_view text, std::string_view name);

}  // namespace millrace::plan
