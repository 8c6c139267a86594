#include "experiments/pilot_runs.h"

#include <algorithm>
#include <unordered_map>

#include "apps/simulate/deployment.h"
#include "base/log_mute.h"
#include "sim/autopilot/autopilot_sim.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::experiments {
namespace {

// Whether each request was answered within the limits, by when it arrived.
class GoodAnswers {
 public:
  GoodAnswers(const LatencyLimits& limits, double window_s, PilotRun& run)
      : limits_(limits), window_s_(window_s), run_(run) {}

  void Arrived(RequestId id, Time at) {
    ++WindowOf(at).requests;
    ++run_.requests;
    alive_.emplace(id, Alive{at, {}, {}, 0});
  }

  void Heard(const RequestOutput& output, Time now) {
    const auto found = alive_.find(output.request);
    if (found == alive_.end()) return;
    Alive& request = found->second;
    if (!output.tokens.empty()) {
      if (request.tokens == 0) request.first = now;
      request.last = now;
      request.tokens += static_cast<int>(output.tokens.size());
    }
    if (!output.finish) return;
    const bool failed =
        output.finish == FinishReason::kError || output.finish == FinishReason::kAbort;
    if (!failed && Good(request)) {
      ++WindowOf(request.arrival).good;
      ++run_.good;
    }
    alive_.erase(found);
  }

 private:
  struct Alive {
    Time arrival, first, last;
    int tokens = 0;
  };
  bool Good(const Alive& request) const {
    if (request.tokens == 0) return false;
    const int gaps = std::max(1, request.tokens - 1);
    return limits_.KeepsTtft((request.first - request.arrival).seconds()) &&
           limits_.KeepsTpot((request.last - request.first).seconds() / gaps);
  }
  PilotRun::Window& WindowOf(Time at) {
    const auto index = static_cast<size_t>((at - Time{}).seconds() / window_s_);
    if (run_.windows.size() <= index) run_.windows.resize(index + 1);
    return run_.windows[index];
  }

  const LatencyLimits limits_;
  const double window_s_;
  PilotRun& run_;
  std::unordered_map<RequestId, Alive> alive_;
};

std::vector<std::string> NodeNames(const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const NodeSpec& node : cluster.nodes) names.push_back(node.name);
  return names;
}

// Applies each plan of a schedule when its time has come.
class Schedule {
 public:
  Schedule(const std::vector<PlanAt>& plans, const ClusterSpec& cluster, sim::ClusterSim& sim)
      : plans_(plans), names_(NodeNames(cluster)), sim_(sim) {}
  void Tick(Time now) {
    while (next_ + 1 < plans_.size() && plans_[next_ + 1].at <= now) ++next_;
    if (next_ == plans_.size() || plans_[next_].at > now) return;
    (void)sim_.ApplyPlan(plans_[next_].plan, names_);  // one that is refused changes nothing
    ++next_;
  }

 private:
  const std::vector<PlanAt>& plans_;
  const std::vector<std::string> names_;
  sim::ClusterSim& sim_;
  size_t next_ = 0;
};

void Observe(const PilotSetup& setup, sim::ClusterSim& sim, GoodAnswers& answers,
             Schedule& schedule, PilotRun& run) {
  sim.on_arrival = [&answers, inner = std::move(sim.on_arrival)](RequestId id,
                                                                 const sim::SimRequest& request) {
    answers.Arrived(id, request.arrival);
    if (inner) inner(id, request);
  };
  sim.on_output = [&answers, inner = std::move(sim.on_output)](const RequestOutput& output,
                                                               Time now) {
    answers.Heard(output, now);
    if (inner) inner(output, now);
  };
  const SteadyClock clock;
  sim.on_tick = [&, clock, begin = clock.Now(), inner = std::move(sim.on_tick)](Time now) {
    schedule.Tick(now);
    run.took_s = (clock.Now() - begin).seconds();
    if (setup.limit_s && run.took_s > *setup.limit_s) {
      run.stopped = true;
      sim.Stop();
    }
    if (setup.progress) setup.progress(now);
    if (inner) inner(now);
  };
}

}  // namespace

PilotRun::Window PilotRun::Between(double from_s, double to_s, double window_s) const {
  Window sum;
  for (size_t i = 0; i < windows.size(); ++i) {
    const double begin_s = static_cast<double>(i) * window_s;
    if (begin_s < from_s || begin_s >= to_s) continue;
    sum.requests += windows[i].requests;
    sum.good += windows[i].good;
  }
  return sum;
}

Result<PilotRun> RunPilot(const PilotSetup& setup, const Plan& first, const Policy& policy) {
  const LogMute mute;  // what a simulated controller logs has happened to nobody
  apps::DeploymentFlags flags;
  flags.by_node = true;
  flags.membership.load_s = setup.load_time.seconds();
  MR_ASSIGN_OR_RETURN(const apps::Deployment deployment, setup.search->Deploy(first, flags));
  sim::ClusterSimOptions options = deployment.plan->options;
  options.limits = setup.workload.limits;
  options.membership = setup.membership;
  MR_ASSIGN_OR_RETURN(const auto sim, sim::ClusterSim::Create(std::move(options)));

  PilotRun run;
  std::optional<sim::AutopilotSim> pilot;
  if (policy.autopilot) {
    pilot.emplace(sim::AutopilotSimOptions{.autopilot = *policy.autopilot,
                                           .search =
                                               [&](const auto& order, const auto& status) {
                                                 ++run.searches;
                                                 return (*setup.search)(order, status);
                                               }},
                  *sim);
  }
  GoodAnswers answers(setup.workload.limits, setup.window_s, run);
  Schedule schedule(policy.schedule, setup.search->cluster(), *sim);
  Observe(setup, *sim, answers, schedule, run);
  const auto requests = setup.workload.Make(setup.seed);
  const sim::ClusterReport report = sim->Run(*requests);
  run.refused = report.latency.refused;
  run.simulated_s = report.simulated_s;
  run.changes = report.controller.plans_applied - 1;
  const ClusterSpec& cluster = setup.search->cluster();
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const double here_s = setup.membership.empty() ? report.simulated_s : report.node_paid_s[i];
    run.usd += here_s / 3600 * cluster.nodes[i].price_usd_per_hour;
  }
  if (pilot) {
    const auto& decisions = pilot->autopilot().decisions();
    run.decisions.assign(decisions.begin(), decisions.end());
  }
  return run;
}

}  // namespace millrace::experiments
