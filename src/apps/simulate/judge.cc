#include "apps/simulate/judge.h"

#include <algorithm>
#include <utility>

#include "apps/simulate/deployment.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::apps {
namespace {

constexpr uint64_t kJudgedRequests = 400;  // per run
constexpr int kBisections = 6;
constexpr double kBeyondHint = 2;  // no plan exceeds this multiple of its estimate
constexpr uint64_t kSeed = 1;

class Judge {
 public:
  Judge(const PlanInputs& inputs, const LatencyLimits& limits, std::function<bool()> out_of_time)
      : inputs_(inputs),
        limits_(limits),
        out_of_time_(std::move(out_of_time)),
        workload_(WorkloadOf(inputs)) {}

  Result<double> Score(const Plan& plan, const plan::JudgeHints& hints) const {
    const double hint = hints.most_estimated;
    if (!limits_.any()) return Throughput(plan, hint);
    double low = hints.best_score, high = std::max(low, kBeyondHint * hint);
    if (low > 0) {  // a single run rejects most candidates that are not better
      MR_ASSIGN_OR_RETURN(const sim::ClusterReport report, Run(plan, workload_, low));
      if (!report.latency.Keeps(limits_)) {
        return FailedPrecondition("not better than the best so far");
      }
    }
    for (int i = 0; i < kBisections; ++i) {
      const double rate = (low + high) / 2;
      MR_ASSIGN_OR_RETURN(const sim::ClusterReport report, Run(plan, workload_, rate));
      (report.latency.Keeps(limits_) ? low : high) = rate;
    }
    return low;
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
    spec.requests = std::min(spec.requests.value_or(kJudgedRequests), kJudgedRequests);
    return spec;
  }

  Result<double> Throughput(const Plan& plan, double hint) const {
    sim::WorkloadSpec at_once = workload_;
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

  Result<sim::ClusterReport> Run(const Plan& plan, const sim::WorkloadSpec& workload,
                                 std::optional<double> rate) const {
    if (out_of_time_()) {
      return Status(StatusCode::kDeadlineExceeded, "no time left to simulate the plan");
    }
    DeploymentFlags flags;
    flags.prefix_caching = workload.SharesPrefixes();
    MR_ASSIGN_OR_RETURN(const Deployment deployment,
                        DeployPlan(plan, inputs_.cluster, inputs_.spec, inputs_.costs, flags));
    sim::ClusterSimOptions options = deployment.plan->options;  // its machines are `deployment`'s
    options.limits = limits_;
    MR_ASSIGN_OR_RETURN(const auto cluster, sim::ClusterSim::Create(std::move(options)));
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

}  // namespace millrace::apps
