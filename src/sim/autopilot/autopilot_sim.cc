#include "sim/autopilot/autopilot_sim.h"

#include <utility>

#include "cluster/autopilot/autopilot_view.h"
#include "plan/io/plan_yaml.h"

namespace millrace::sim {
namespace {

constexpr Duration kLookEvery = Duration::Seconds(1);

}  // namespace

AutopilotSim::AutopilotSim(AutopilotSimOptions options, ClusterSim& cluster)
    : options_(std::move(options)), cluster_(cluster), autopilot_(options_.autopilot) {
  cluster_.on_arrival = [this](RequestId id, const SimRequest& request) {
    autopilot_.Arrived(id, request.prompt_tokens, request.arrival);
  };
  cluster_.on_output = [this](const RequestOutput& output, Time now) {
    autopilot_.Heard(output, now);
  };
  cluster_.on_tick = [this](Time now) { Tick(now); };
}

void AutopilotSim::Tick(Time now) {
  if (search_ && now >= search_->until) {
    Search ended = *std::exchange(search_, std::nullopt);
    autopilot_.SearchEnded(ended.id, std::move(ended.answer), now);
  } else if (looked_ && now - *looked_ < kLookEvery) {
    return;
  }
  looked_ = now;
  const cluster::ClusterStatus status = cluster_.controller().Describe(now);
  autopilot_.Observe(cluster::ViewOf(status, (now - Time{}).seconds()), now);
  Act(status, now);
}

void AutopilotSim::Act(const cluster::ClusterStatus& status, Time now) {
  std::vector<cluster::AutopilotAction> actions;
  autopilot_.TakeActions(actions);
  for (const cluster::AutopilotAction& action : actions) {
    if (const auto* search = std::get_if<cluster::StartSearch>(&action)) {
      cluster::SearchAnswer answer = options_.search(*search, status);
      answer.seconds = options_.search_time.seconds();
      search_ = Search{now + options_.search_time, search->id, std::move(answer)};
    } else if (const auto* apply = std::get_if<cluster::ApplyPlanText>(&action)) {
      autopilot_.ApplyEnded(Apply(apply->text));
    }
  }
}

Result<int64_t> AutopilotSim::Apply(const std::string& text) {
  MR_ASSIGN_OR_RETURN(plan::WorkerPlan plan, plan::ParseWorkerPlan(text, "the plan found"));
  return cluster_.ApplyPlan(std::move(plan.plan), std::move(plan.workers));
}

}  // namespace millrace::sim
