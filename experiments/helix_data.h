// Reads the Helix artifact's files for the experiments. One thread.
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "experiments/lib/helix/helix_throughput.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/helix_capacity.h"

namespace millrace::experiments {

inline constexpr size_t kHelixFileBytesMax = size_t{4} << 20;

Result<plan::HelixCapacity> LoadHelixCapacity(const std::string& data, const std::string& cluster);

// `path` is relative to placements/: "single24/llama2_70b/helix.ini".
Result<plan::Placement> LoadHelixPlacement(const std::string& data, const std::string& path);

// The devices of a cluster ("A100" -> count) with their profiles and first guesses.
Result<std::vector<helix::HelixDevice>> LoadHelixFleet(const std::string& data,
                                                       const std::string& model,
                                                       const std::map<std::string, int>& counts);

}  // namespace millrace::experiments
