#include "experiments/helix_runs.h"

#include <memory>

#include "base/file.h"
#include "experiments/lib/helix/helix_baselines.h"
#include "experiments/lib/helix/helix_flow_scheduler.h"

namespace millrace::experiments {
namespace {

constexpr size_t kFileBytesMax = size_t{4} << 20;
constexpr uint32_t kSeed = 0;  // the artifact's

std::unique_ptr<helix::HelixScheduler> SchedulerOf(const helix::HelixModel& model,
                                                   const helix::HelixCluster& cluster,
                                                   const HelixRun& run,
                                                   helix::PythonRandom* random) {
  using Random = helix::HelixRandomScheduler;
  switch (run.method) {
    case HelixMethod::kHelix:
      return std::make_unique<helix::HelixFlowScheduler>(
          model, cluster,
          run.online ? helix::HelixKvMask::Online() : helix::HelixKvMask::Offline());
    case HelixMethod::kSwarm: return std::make_unique<helix::HelixSwarmScheduler>(cluster);
    case HelixMethod::kRandom:
      return std::make_unique<Random>(cluster, Random::Choice::kAny, random);
    case HelixMethod::kShortestQueue:
      return std::make_unique<Random>(cluster, Random::Choice::kShortestQueue, random);
  }
  return nullptr;
}

}  // namespace

Result<HelixInputs> LoadHelixInputs(const std::string& data) {
  HelixInputs inputs;
  inputs.folder = data + "/helix";
  for (const char* name : {"llama1_30b", "llama2_70b"}) {
    MR_ASSIGN_OR_RETURN(inputs.models[name], helix::LoadHelixModel(inputs.folder, name));
  }
  MR_ASSIGN_OR_RETURN(inputs.trace, helix::LoadHelixTrace(inputs.folder));
  return inputs;
}

helix::HelixReport RunHelixPart(const HelixInputs& inputs, const HelixRun& run,
                                const helix::HelixCluster& cluster, double load) {
  const helix::HelixModel& model = inputs.models.at(run.model);
  helix::PythonRandom random(kSeed);
  const double begin_s = helix::BeginSeconds(model, cluster);
  std::unique_ptr<helix::HelixFeeder> feeder;
  if (run.online) {
    feeder = std::make_unique<helix::HelixOnlineFeeder>(
        helix::DrawArrivals(inputs.trace, load, begin_s, run.warm_up_s + run.window_s, &random));
  } else {
    feeder =
        std::make_unique<helix::HelixOfflineFeeder>(inputs.trace, static_cast<int>(load), &random);
  }
  const auto scheduler = SchedulerOf(model, cluster, run, &random);
  return helix::HelixSimulator(model, cluster, *scheduler, *feeder)
      .Run(run.warm_up_s, run.window_s, begin_s);
}

Result<helix::HelixReport> RunHelix(const HelixInputs& inputs, const HelixRun& run) {
  helix::HelixReport total;
  for (const HelixPart& part : run.parts) {
    const std::string path = inputs.folder + "/placements/" + part.placement;
    const std::string cluster_file = path + ".cluster.ini", placement_file = path + ".ini";
    MR_ASSIGN_OR_RETURN(const std::string cluster_text, ReadFile(cluster_file, kFileBytesMax));
    MR_ASSIGN_OR_RETURN(const std::string placement_text, ReadFile(placement_file, kFileBytesMax));
    MR_ASSIGN_OR_RETURN(
        helix::HelixCluster cluster,
        helix::ParseHelixCluster(cluster_text, cluster_file, placement_text, placement_file));
    helix::DropDeadEnds(&cluster);
    if (run.method == HelixMethod::kHelix) {
      helix::PlanFlows(inputs.models.at(run.model), cluster.Fleet(), &cluster);
    }
    total.Add(RunHelixPart(inputs, run, cluster, part.load));
  }
  return total;
}

}  // namespace millrace::experiments
