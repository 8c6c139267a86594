// Runs of the imitated Helix simulator on the artifact's clusters, placements and loads, for the
// experiments that compare with its tables. One thread per call; inputs may be shared.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "experiments/lib/helix/helix_cluster.h"
#include "experiments/lib/helix/helix_model.h"
#include "experiments/lib/helix/helix_simulator.h"
#include "experiments/lib/helix/helix_workload.h"

namespace millrace::experiments {

struct HelixInputs {
  std::string folder;  // of the Helix data
  std::map<std::string, helix::HelixModel> models;
  helix::HelixTrace trace;
};

Result<HelixInputs> LoadHelixInputs(const std::string& data);

enum class HelixMethod { kHelix, kSwarm, kRandom, kShortestQueue };

// One cluster with its share of the load: tokens per second online; simultaneous queries offline,
// to which Helix's scheduler adds as its caches allow.
struct HelixPart {
  std::string placement;  // a path under placements/, without ".ini"
  double load = 20;
};

struct HelixRun {
  std::string model = "llama2_70b";
  HelixMethod method = HelixMethod::kHelix;
  bool online = false;
  std::vector<HelixPart> parts;  // simulated in parallel
  double warm_up_s = 60, window_s = 600;
};

Result<helix::HelixReport> RunHelix(const HelixInputs& inputs, const HelixRun& run);

// The same on a cluster without a file.
helix::HelixReport RunHelixPart(const HelixInputs& inputs, const HelixRun& run,
                                const helix::HelixCluster& cluster, double load);

}  // namespace millrace::experiments
