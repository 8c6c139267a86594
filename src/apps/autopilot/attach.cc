#include "apps/autopilot/attach.h"

#include <utility>

#include "apps/autopilot/autopilot_host.h"
#include "apps/autopilot/autopilot_metrics.h"
#include "apps/autopilot/decision_json.h"
#include "apps/autopilot/plan_search.h"
#include "apps/cli/parse.h"
#include "apps/cluster/admin_layer.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr char kDecisionsKey[] = "decisions";
constexpr double kAutopilotSecondsMax = 86400;

// The admin of a controller with an autopilot.
class AutopilotAdmin : public AdminLayer {
 public:
  using AdminLayer::AdminLayer;
  // null: from now on there is no autopilot. Waits for the calls that use it.
  void Use(const AutopilotHost* autopilot) {
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
    if (autopilot_ != nullptr) AddAutopilotMetrics(autopilot_->Describe(), metrics);
    return metrics;
  }

 private:
  Mutex mutex_;
  const AutopilotHost* autopilot_ MR_GUARDED_BY(mutex_) = nullptr;
};

// An engine with its autopilot, which ends before the engine does.
struct Piloted {
  std::shared_ptr<cluster::Generator> engine;
  AutopilotAdmin* admin;  // outlives the engine
  std::shared_ptr<PlanSearch> search;
  std::unique_ptr<AutopilotHost> autopilot;

  ~Piloted() {
    admin->Use(nullptr);
    search->Stop();
  }
};

std::vector<cluster::Decision> Earlier(Leading* leading) {
  if (leading == nullptr) return {};
  const auto kept = leading->Kept(kDecisionsKey);
  if (kept.ok() && !kept->has_value()) return {};
  auto decisions = kept.ok() ? ReadStoredDecisions(**kept) : kept.status();
  if (decisions.ok()) return *std::move(decisions);
  MR_LOG(warn, "the decisions of the controller before cannot be read: {}",
         decisions.status().message());
  return {};
}

}  // namespace

void AddAutopilotOptions(Command& command, AutopilotFlags* flags) {
  constexpr char kGroup[] = "Autopilot";
  command.Add(kGroup,
              ChoiceOption<AutopilotChoice>("autopilot", &flags->choice,
                                            {{"off", AutopilotChoice::kOff},
                                             {"advise", AutopilotChoice::kAdvise},
                                             {"act", AutopilotChoice::kAct}}),
              "Plan again when the load shifts, when workers come, go or have notice, and when "
              "--slo is missed. advise: say what would be better (`millrace status`, `millrace "
              "decisions`); act: change to it, and back if it does worse than forecast");
  command.Add(kGroup,
              RealOption("autopilot-window", "SECONDS", &flags->window_s, 1, kAutopilotSecondsMax),
              "The load has shifted if it differs in two such windows in a row");
  command.Add(
      kGroup,
      RealOption("autopilot-horizon", "SECONDS", &flags->horizon_s, 1, kAutopilotSecondsMax),
      "A change must gain more within this time than it delays");
  command.Add(kGroup,
              RealOption("autopilot-verify", "SECONDS", &flags->verify_s, 1, kAutopilotSecondsMax),
              "How long a new plan is measured before it is compared with its forecast");
  command.Add(kGroup, RealOption("autopilot-margin", "SHARE", &flags->margin, 0.01, 1),
              "A new plan is taken back if the share of good answers is lower than forecast, and "
              "lower than before, by more than this");
}

Status ValidateAutopilot(const AutopilotFlags& flags, const std::set<std::string>& given) {
  if (flags.choice != AutopilotChoice::kOff) return OkStatus();
  return RefuseGiven(
      given, {"autopilot-window", "autopilot-horizon", "autopilot-verify", "autopilot-margin"},
      "needs --autopilot advise or act");
}

Status AttachAutopilot(const AutopilotFlags& flags, const EngineFlags& engine,
                       std::shared_ptr<Leading> leading, ClusterModel& model, const Clock& clock) {
  if (flags.choice == AutopilotChoice::kOff) return OkStatus();
  AutopilotHostOptions options;
  options.autopilot = {.mode = flags.choice == AutopilotChoice::kAct
                                   ? cluster::AutopilotMode::kAct
                                   : cluster::AutopilotMode::kAdvise,
                       .limits = engine.slo,
                       .window = Duration::Seconds(flags.window_s),
                       .horizon = Duration::Seconds(flags.horizon_s),
                       .verify = Duration::Seconds(flags.verify_s),
                       .margin = flags.margin};
  options.earlier = Earlier(leading.get());
  if (leading) {
    options.store = [leading](const std::vector<cluster::Decision>& decisions) {
      if (const Status kept = leading->Keep(kDecisionsKey, StoredDecisions(decisions));
          !kept.ok()) {
        MR_LOG(warn, "the autopilot's decisions were not stored: {}", kept.message());
      }
    };
  }
  auto search = std::make_shared<PlanSearch>(
      PlanSearchOptions{.model = model.model->path.folder, .limits = engine.slo}, clock);
  options.search = [search](const auto& order, const auto& status, const Json& machines) {
    return (*search)(order, status, machines);
  };
  auto admin = std::make_unique<AutopilotAdmin>(std::move(model.model->cluster));
  auto autopilot = std::make_unique<AutopilotHost>(std::move(options), model.server->host(),
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
