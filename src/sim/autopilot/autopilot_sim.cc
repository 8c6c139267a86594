#include "sim/autopilot/autopilot_sim.h"

#include <utility>

namespace millrace::sim {
namespace {

constexpr Duration kLookEvery = Duration::Seconds(1);

}  // namespace

AutopilotSim::AutopilotSim(AutopilotSimOptions options, ClusterSim& cluster)
    : cluster_(cluster),
      pilot_(options.autopilot, {},
             {.search =
                  [search = std::move(options.search), took = options.search_time](
                      const cluster::StartSearch& order, const cluster::ClusterStatus& status) {
                    cluster::SearchAnswer answer = search(order, status);
                    answer.seconds = took.seconds();
                    return answer;
                  },
              .apply =
                  [this](WorkerPlan plan) {
                    return cluster_.ApplyPlan(std::move(plan.plan), std::move(plan.workers));
                  }}) {
  cluster_.on_arrival = [this](RequestId id, const SimRequest& request) {
    pilot_.autopilot().Arrived(id, request.prompt_tokens, request.arrival);
  };
  cluster_.on_output = [this](const RequestOutput& output, Time now) {
    pilot_.autopilot().Heard(output, now);
  };
  cluster_.on_tick = [this](Time now) { Tick(now); };
}

void AutopilotSim::Tick(Time now) {
  if (!pilot_.AnswerIsDue(now) && looked_ && now - *looked_ < kLookEvery) return;
  looked_ = now;
  pilot_.Tick(cluster_.controller().Describe(now), now);
}

}  // namespace millrace::sim
