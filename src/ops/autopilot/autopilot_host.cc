#include "ops/autopilot/autopilot_host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "cluster/autopilot/autopilot_view.h"

namespace millrace::ops {
namespace {

using cluster::Autopilot;

constexpr int kSearchNice = 19;  // the searches get what serving leaves

}  // namespace

AutopilotHost::AutopilotHost(AutopilotHostOptions options, cluster::ControllerHost& controller,
                             serve::ClusterAdmin& admin, const Clock& clock)
    : options_(std::move(options)),
      admin_(admin),
      companion_(controller, clock, options_.autopilot, options_.earlier) {
  companion_.Start([this](const auto& status, double unix_s) { Look(status, unix_s); });
}

AutopilotHost::~AutopilotHost() {
  companion_.Stop();
  options_.stop_search();
}

AutopilotStatus AutopilotHost::Describe() const {
  return companion_.With([this](const Autopilot& autopilot, Time now) {
    AutopilotStatus status{
        .state = std::string(autopilot.state()),
        .options = options_.autopilot,
        .load = autopilot.RecentLoad(now),
        .service = autopilot.RecentService(now),
        .decisions = {autopilot.decisions().begin(), autopilot.decisions().end()}};
    if (const auto* advice = autopilot.advice()) status.advice = *advice;
    return status;
  });
}

void AutopilotHost::Look(const cluster::ClusterStatus& status, double unix_s) {
  std::vector<cluster::AutopilotAction> actions;
  companion_.With([&, view = cluster::ViewOf(status, unix_s)](Autopilot& autopilot, Time now) {
    autopilot.Observe(view, now);
    autopilot.TakeActions(actions);
  });
  bool decided = false;
  for (const cluster::AutopilotAction& action : actions) {
    if (const auto* search = std::get_if<cluster::StartSearch>(&action)) {
      Search(*search, status);
    } else if (const auto* apply = std::get_if<cluster::ApplyPlan>(&action)) {
      const Result<int64_t> applied = admin_.ApplyPlan(*apply->plan, "");
      companion_.With([&](Autopilot& autopilot, Time) { autopilot.ApplyEnded(applied); });
    } else {
      MR_LOG(info, "autopilot: {}",
             cluster::DecisionLine(std::get<cluster::DecisionMade>(action).decision));
      decided = true;
    }
  }
  if (decided && options_.store) options_.store(Describe().decisions);
}

void AutopilotHost::Search(const cluster::StartSearch& order,
                           const cluster::ClusterStatus& status) {
  searches_.Put([this, order, status] {
    // Linux threads have priorities of their own.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kSearchNice);
    cluster::SearchAnswer answer = options_.search(order, status);
    companion_.With([&](Autopilot& autopilot, Time now) {
      autopilot.SearchEnded(order.id, std::move(answer), now);
    });
    companion_.LookNow();
  });
}

}  // namespace millrace::ops
