#include "apps/simulate/judge.h"

#include <algorithm>
#include <utility>

#include "apps/simulate/deployment.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::apps {
namespace {

// Per run: the requests of this time, within bounds. A short burst would fit any plan's memory.
constexpr double kJudged_s = 20;
constexpr double kJudgedRequestsMin = 400, kJudgedRequestsMax = 3000;
constexpr int kRunsMax = 8;
constexpr double kPrecise = 0.03;      // of the rate
constexpr double kRaise = 1.5;         // while all rates are kept
constexpr double kBeyondHint = 2;      // of a trace that is replayed faster
constexpr double kArrivalsMost = 1.5;  // of the mean time that the requests take to arrive
constexpr double kLongOutput = 6;      // of the mean output; few are longer
constexpr uint64_t kSeed = 1;

class Judge {
 public:
  Judge(const PlanInputs& inputs, const LatencyLimits& limits, std::function<bool()> out_of_time)
      : inputs_(inputs),
        limits_(limits),
        out_of_time_(std::move(out_of_time)),
        workload_(WorkloadOf(inputs)) {}

  Result<double> Score(const Plan& plan, const plan::JudgeHints& hints) const {
    if (!limits_.any()) return Throughput(plan, hints.most_estimated);
    double low = 0;
    std::optional<double> high;
    if (hints.best_score > 0) {  // a single run rejects most candidates that are not better
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, hints.best_score));
      if (!kept) return FailedPrecondition("not better than the best so far");
      low = hints.best_score;
    }
    double rate = std::max(hints.estimated, low * kRaise);
    for (int i = 0; i < kRunsMax && !(high && *high - low < kPrecise * *high); ++i) {
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, rate));
      if (kept) {
        low = rate;
      } else {
        high = rate;
      }
      rate = high ? (low + *high) / 2 : low * kRaise;
    }
    return low;
  }

  Result<bool> Keeps(const Plan& plan, double rate) const {
    sim::WorkloadSpec workload = workload_;
    const double requests = std::clamp(rate * kJudged_s, kJudgedRequestsMin, kJudgedRequestsMax);
    workload.requests = std::min(*workload.requests, static_cast<uint64_t>(requests));
    uint64_t arrived = 0;
    MR_ASSIGN_OR_RETURN(const sim::ClusterReport report, Run(plan, workload, rate, &arrived));
    return static_cast<double>(report.latency.met_both) >=
           limits_.share() * static_cast<double>(arrived);
  }

 private:
  static sim::WorkloadSpec WorkloadOf(const PlanInputs& inputs) {
    sim::WorkloadSpec spec;
    if (inputs.workload) {
      spec = *inputs.workload;
    } else {
      spec.prompt.a = inputs.goodput->prompt_tokens;
      spec.output.a = inputs.goodput->output_tokens;
      spec.rate = 1;
    }
    spec.duration_s.reset();
    spec.requests = spec.requests.value_or(static_cast<uint64_t>(kJudgedRequestsMax));
    return spec;
  }

  Result<double> Throughput(const Plan& plan, double hint) const {
    sim::WorkloadSpec at_once = workload_;
    at_once.requests = std::min(*at_once.requests, static_cast<uint64_t>(kJudgedRequestsMin));
    if (at_once.arrivals != sim::ArrivalKind::kTrace) {
      at_once.arrivals = sim::ArrivalKind::kAllAtOnce;
      at_once.rate.reset();
    }
    const auto rate = at_once.arrivals == sim::ArrivalKind::kTrace
                          ? std::optional(kBeyondHint * hint)
                          : std::nullopt;
    MR_ASSIGN_OR_RETURN(const sim::ClusterReport report, Run(plan, at_once, rate));
    const double seconds = report.latency.seconds();
    return seconds > 0 ? static_cast<double>(report.latency.requests) / seconds : 0;
  }

  // A run at a rate ends when the requests that keep their limits must have ended; `arrived` counts
  // all of them.
  Result<sim::ClusterReport> Run(const Plan& plan, const sim::WorkloadSpec& workload,
                                 std::optional<double> rate, uint64_t* arrived = nullptr) const {
    if (out_of_time_()) {
      return Status(StatusCode::kDeadlineExceeded, "no time left to simulate the plan");
    }
    DeploymentFlags flags;
    flags.prefix_caching = workload.SharesPrefixes();
    MR_ASSIGN_OR_RETURN(const Deployment deployment,
                        DeployPlan(plan, inputs_.cluster, inputs_.spec, inputs_.costs, flags));
    sim::ClusterSimOptions options = deployment.plan->options;  // its machines are `deployment`'s
    options.limits = limits_;
    if (arrived != nullptr && limits_.ttft_s && limits_.tpot_s) {
      const double arrivals_s = kArrivalsMost * static_cast<double>(*workload.requests) / *rate;
      const double stay_s =
          *limits_.ttft_s + kLongOutput * inputs_.goodput->output_tokens * *limits_.tpot_s;
      options.stop_at = Time{} + Duration::Seconds(arrivals_s + stay_s);
    }
    MR_ASSIGN_OR_RETURN(const auto cluster, sim::ClusterSim::Create(std::move(options)));
    if (arrived != nullptr) {
      cluster->on_arrival = [arrived](RequestId, const sim::SimRequest&) { ++*arrived; };
    }
    const auto requests = workload.Make(kSeed, rate);
    return cluster->Run(*requests);
  }

  const PlanInputs& inputs_;
  const LatencyLimits limits_;
  const std::function<bool()> out_of_time_;
  const sim::WorkloadSpec workload_;
};

}  // namespace

plan::Evaluator SimulatedGoodput(const PlanInputs& inputs, const LatencyLimits& limits,
                                 std::function<bool()> out_of_time) {
  return [judge = Judge(inputs, limits, std::move(out_of_time))](
             const Plan& plan, const plan::JudgeHints& hints) { return judge.Score(plan, hints); };
}

std::function<Result<bool>(const Plan&)> SimulatedRate(const PlanInputs& inputs,
                                                       const LatencyLimits& limits,
                                                       double requests_per_s) {
  return [judge = Judge(inputs, limits, [] { return false; }), requests_per_s](const Plan& plan) {
    return judge.Keeps(plan, requests_per_s);
  };
}

}  // namespace millrace::apps
