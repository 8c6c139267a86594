#include "apps/autopilot/attach.h"

#include <utility>

#include "apps/autopilot/decision_json.h"
#include "apps/autopilot/plan_search.h"
#include "apps/plan/inputs.h"
#include "base/log.h"
#include "ops/autopilot/autopilot_host.h"

namespace millrace::apps {
namespace {

constexpr char kDecisionsKey[] = "decisions";

std::vector<cluster::Decision> Earlier(ops::Leading* leading) {
  if (leading == nullptr) return {};
  const auto kept = leading->Kept(kDecisionsKey);
  if (kept.ok() && !kept->has_value()) return {};
  auto decisions = kept.ok() ? ReadStoredDecisions(**kept) : kept.status();
  if (decisions.ok()) return *std::move(decisions);
  MR_LOG(warn, "the decisions of the controller before cannot be read: {}",
         decisions.status().message());
  return {};
}

// The planner's inputs for the workers that could get layers. `model`: its folder.
Result<PlanInputs> InputsOf(const std::string& model, const cluster::ClusterStatus& status,
                            sim::WorkloadSpec load) {
  MachinesView view = MachinesOf(status);
  std::erase_if(view.machines, [&status](const MachineView& machine) {
    return !MayGetLayers(status, machine.name);
  });
  KeepMeasured(view.links);
  MR_ASSIGN_OR_RETURN(ClusterSpec cluster, ClusterOf(view));
  MR_ASSIGN_OR_RETURN(const plan::ModelFootprint footprint, LoadFootprint(model));
  MR_ASSIGN_OR_RETURN(NodeCosts costs, NodeCosts::Load({}, cluster, footprint.spec));
  return MakePlanInputs({}, std::move(cluster), footprint, std::move(costs), std::move(load));
}

}  // namespace

Status AttachAutopilot(const AutopilotFlags& flags, const EngineFlags& engine,
                       std::shared_ptr<ops::Leading> leading, ClusterModel& model,
                       const Clock& clock) {
  if (flags.choice == AutopilotChoice::kOff) return OkStatus();
  ops::AutopilotHostOptions options;
  options.autopilot = AutopilotOptionsOf(flags, engine.slo);
  options.earlier = Earlier(leading.get());
  if (leading) {
    options.store = [leading](const std::vector<cluster::Decision>& decisions) {
      if (const Status kept = leading->Keep(kDecisionsKey, StoredDecisions(decisions));
          !kept.ok()) {
        MR_LOG(warn, "the autopilot's decisions were not stored: {}", kept.message());
      }
    };
  }
  auto search =
      std::make_shared<PlanSearch>(PlanSearchOptions{.limits = engine.slo, .clock = &clock});
  options.search = [search, folder = model.model->path.folder](const auto& order,
                                                               const auto& status) {
    return (*search)(order, status, [&](sim::WorkloadSpec load) {
      return InputsOf(folder, status, std::move(load));
    });
  };
  options.stop_search = [search] { search->Stop(); };
  const auto autopilot = std::make_shared<ops::AutopilotHost>(
      std::move(options), model.server->host(), *model.admin, clock);
  const auto* host = autopilot.get();
  Accompany(
      model, autopilot,
      {.status = [host](Json& status) { status["autopilot"] = AutopilotJson(host->Describe()); },
       .metrics = [host](auto& metrics) { AddAutopilotMetrics(host->Describe(), metrics); },
       .decisions = [host] { return DecisionsJson(host->Describe()); }});
  return OkStatus();
}

}  // namespace millrace::apps
