#include "sim/autopilot/virtual_autopilot.h"

#include "base/check.h"
#include "cluster/autopilot/autopilot_view.h"

namespace millrace::sim {

void VirtualAutopilot::Tick(const cluster::ClusterStatus& status, Time now) {
  if (AnswerIsDue(now)) {
    Search ended = *std::exchange(search_, std::nullopt);
    autopilot_.SearchEnded(ended.id, std::move(ended.answer), now);
  }
  autopilot_.Observe(cluster::ViewOf(status, (now - Time{}).seconds()), now);
  std::vector<cluster::AutopilotAction> actions;
  autopilot_.TakeActions(actions);
  for (const cluster::AutopilotAction& action : actions) {
    if (const auto* search = std::get_if<cluster::StartSearch>(&action)) {
      cluster::SearchAnswer answer = calls_.search(*search, status);
      const Time until = now + Duration::Seconds(answer.seconds);
      search_ = Search{until, search->id, std::move(answer)};
    } else if (const auto* order = std::get_if<cluster::ApplyPlanText>(&action)) {
      autopilot_.ApplyEnded(Apply(order->text));
    }
  }
}

// The autopilot has got the plan from a search or from the status, so it can be read.
Result<int64_t> VirtualAutopilot::Apply(const std::string& text) {
  auto plan = plan::ParseWorkerPlan(text, "the plan found");
  MR_CHECK(plan.ok()) << plan.status().ToString();
  return calls_.apply(std::move(*plan));
}

}  // namespace millrace::sim
