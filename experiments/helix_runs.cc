#include "experiments/helix_runs.h"

#include <memory>

#include "base/file.h"
#include "sim/compat/helix_baselines.h"
#include "sim/compat/helix_flow_scheduler.h"

namespace millrace::experiments {
namespace {

constexpr size_t kFileBytesMax = size_t{4} << 20;
constexpr uint32_t kSeed = 0;  // the artifact's

std::unique_ptr<sim::HelixScheduler> SchedulerOf(const sim::HelixModel& model,
                                                 const sim::HelixCluster& cluster,
                                                 const HelixRun& run, sim::PythonRandom* random) {
  using Random = sim::HelixRandomScheduler;
  switch (run.method) {
    case HelixMethod::kHelix:
      return std::make_unique<sim::HelixFlowScheduler>(
          model, cluster, run.online ? sim::HelixKvMask::Online() : sim::HelixKvMask::Offline());
    case HelixMethod::kSwarm: return std::make_unique<sim::HelixSwarmScheduler>(cluster);
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
    MR_ASSIGN_OR_RETURN(inputs.models[name], sim::LoadHelixModel(inputs.folder, name));
  }
  MR_ASSIGN_OR_RETURN(inputs.trace, sim::LoadHelixTrace(inputs.folder));
  return inputs;
}

sim::HelixReport RunHelixPart(const HelixInputs& inputs, const HelixRun& run,
                              const sim::HelixCluster& cluster, double load) {
  const sim::HelixModel& model = inputs.models.at(run.model);
  sim::PythonRandom random(kSeed);
  const double begin_s = sim::BeginSeconds(model, cluster);
  std::unique_ptr<sim::HelixFeeder> feeder;
  if (run.online) {
    feeder = std::make_unique<sim::HelixOnlineFeeder>(
        sim::DrawArrivals(inputs.trace, load, begin_s, run.warm_up_s + run.window_s, &random));
  } else {
    feeder =
        std::make_unique<sim::HelixOfflineFeeder>(inputs.trace, static_cast<int>(load), &random);
  }
  const auto scheduler = SchedulerOf(model, cluster, run, &random);
  return sim::HelixSimulator(model, cluster, *scheduler, *feeder)
      .Run(run.warm_up_s, run.window_s, begin_s);
}

Result<sim::HelixReport> RunHelix(const HelixInputs& inputs, const HelixRun& run) {
  sim::HelixReport total;
  for (const HelixPart& part : run.parts) {
    const std::string path = inputs.folder + "/placements/" + part.placement;
    const std::string cluster_file = path + ".cluster.ini", placement_file = path + ".ini";
    MR_ASSIGN_OR_RETURN(const std::string cluster_text, ReadFile(cluster_file, kFileBytesMax));
    MR_ASSIGN_OR_RETURN(const std::string placement_text, ReadFile(placement_file, kFileBytesMax));
    MR_ASSIGN_OR_RETURN(
        sim::HelixCluster cluster,
        sim::ParseHelixCluster(cluster_text, cluster_file, placement_text, placement_file));
    sim::DropDeadEnds(&cluster);
    if (run.method == HelixMethod::kHelix) {
      sim::PlanFlows(inputs.models.at(run.model), cluster.Fleet(), &cluster);
    }
    total.Add(RunHelixPart(inputs, run, cluster, part.load));
  }
  return total;
}

}  // namespace millrace::experiments
