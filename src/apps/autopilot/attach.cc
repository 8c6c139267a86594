#include "apps/autopilot/attach.h"

#include <utility>

#include "apps/autopilot/decision_json.h"
#include "apps/autopilot/plan_search.h"
#include "apps/cluster/controller_admin.h"
#include "apps/plan/inputs.h"
#include "base/log.h"
#include "ops/autopilot/autopilot_host.h"
#include "ops/autopilot/autopilot_metrics.h"
#include "ops/cluster/admin_layer.h"

namespace millrace::apps {
namespace {

constexpr char kDecisionsKey[] = "decisions";

// The admin of a controller with an autopilot.
class AutopilotAdmin : public ops::AdminLayer {
 public:
  using ops::AdminLayer::AdminLayer;
  // null: from now on there is no autopilot. Waits for the calls that use it.
  void Use(const ops::AutopilotHost* autopilot) {
    const MutexLock lock(mutex_);
    autopilot_ = autopilot;
  }

  Json Describe() override {
    Json status = below().Describe();
    const MutexLock lock(mutex_);
    if (autopilot_ != nullptr) status["autopilot"] = AutopilotJson(autopilot_->Describe());
    return status;
  }
  Json Decisions() override {
    Json decisions = Json::array();
    const MutexLock lock(mutex_);
    if (autopilot_ != nullptr) {
      for (const auto& decision : autopilot_->Describe().decisions) {
        decisions.push_back(ToJson(decision));
      }
    }
    return {{"autopilot", autopilot_ != nullptr}, {"decisions", std::move(decisions)}};
  }
  std::vector<serve::ClusterMetric> Metrics() override {
    std::vector<serve::ClusterMetric> metrics = below().Metrics();
    const MutexLock lock(mutex_);
    if (autopilot_ != nullptr) ops::AddAutopilotMetrics(autopilot_->Describe(), metrics);
    return metrics;
  }

 private:
  Mutex mutex_;
  const ops::AutopilotHost* autopilot_ MR_GUARDED_BY(mutex_) = nullptr;
};

// A controller with its autopilot, which ends before the controller does.
struct Piloted {
  std::shared_ptr<cluster::Generator> engine;
  AutopilotAdmin* admin;  // outlives the controller
  std::shared_ptr<PlanSearch> search;
  std::unique_ptr<ops::AutopilotHost> autopilot;

  ~Piloted() {
    admin->Use(nullptr);
    search->Stop();
  }
};

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
  auto admin = std::make_unique<AutopilotAdmin>(std::move(model.model->cluster));
  auto autopilot = std::make_unique<ops::AutopilotHost>(std::move(options), model.server->host(),
                                                        admin->below(), clock);
  admin->Use(autopilot.get());
  auto& generator = model.model->engine;
  cluster::Generator* inner = generator.get();
  std::shared_ptr<Piloted> held(
      new Piloted{std::move(generator), admin.get(), std::move(search), std::move(autopilot)});
  generator = {std::move(held), inner};
  model.model->cluster = std::move(admin);
  return OkStatus();
}

}  // namespace millrace::apps
