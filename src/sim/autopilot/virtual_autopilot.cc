#include "sim/autopilot/virtual_autopilot.h"

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
    } else if (const auto* order = std::get_if<cluster::ApplyPlan>(&action)) {
      autopilot_.ApplyEnded(calls_.apply(*order->plan));
    }
  }
}

}  // namespace millrace::sim
