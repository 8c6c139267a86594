#include "apps/simulate/judge.h"

#include <algorithm>
#include <utility>

#include "apps/simulate/deployment.h"
#include "apps/simulate/steady_attainment.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::apps {
namespace {

// Per run: the requests of this time, or of this many times the longest stay of a request that
// keeps its limits, within bounds. Requests of a shorter time would fit any plan's memory, and the
// cluster would empty before it was full.
constexpr double kJudged_s = 60, kStays = 2.5;
constexpr double kJudgedRequestsMin = 300, kJudgedRequestsMax = 3000;
constexpr uint64_t kAtOnceRequests = 400;
constexpr int kRunsMax = 8;
constexpr double kPrecise = 0.03;  // of the rate
// Of the best plan so far. A plan below it loses; its own rate need not be as precise.
constexpr double kFar = 0.7, kCoarse = 0.15;
constexpr double kRaise = 1.4, kLower = 0.7;  // until one rate is kept and another is not
constexpr double kBeyondHint = 2;             // of a trace that is replayed faster
constexpr double kArrivalsMost = 1.5;         // of the mean time that the requests take to arrive
constexpr double kLongOutput = 6;             // of the mean output; few are longer
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
    double rate = hints.estimated;
    if (hints.best_score > 0) {  // a single run rejects most candidates that are not better
      low = hints.best_score * (1 + kPrecise);
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, low));
      if (!kept) return FailedPrecondition("not better than the best so far");
      rate = std::max(rate, low * kRaise);
    }
    const auto precise = [&] {
      const bool far = high && *high < kFar * hints.best_of_all;
      return high && *high - low < (far ? kCoarse : kPrecise) * *high;
    };
    for (int i = 0; i < kRunsMax && !precise(); ++i) {
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, rate));
      if (kept) {
        low = rate;
      } else {
        high = rate;
      }
      rate = !high ? low * kRaise : low > 0 ? (low + *high) / 2 : *high * kLower;
    }
    return low;
  }

  Result<bool> Keeps(const Plan& plan, double rate) const {
    sim::WorkloadSpec workload = workload_;
    const double requests = std::clamp(rate * std::max(kJudged_s, kStays * Stay_s()),
                                       kJudgedRequestsMin, kJudgedRequestsMax);
    workload.requests = std::min(*workload.requests, static_cast<uint64_t>(requests));
    SteadyAttainment attained(limits_, *workload.requests);
    MR_RETURN_IF_ERROR(Run(plan, workload, rate, &attained).status());
    return attained.kept();
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
    const auto most = static_cast<uint64_t>(kJudgedRequestsMax);
    // A trace has no more than its requests. Others are drawn, as many as are needed.
    const bool trace = spec.arrivals == sim::ArrivalKind::kTrace;
    spec.requests = trace ? spec.requests.value_or(most) : most;
    return spec;
  }

  Result<double> Throughput(const Plan& plan, double hint) const {
    sim::WorkloadSpec at_once = workload_;
    at_once.requests = std::min(*at_once.requests, kAtOnceRequests);
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

  // Of a request of the mean length that uses up the limits.
  double Stay_s() const {
    return limits_.ttft_s.value_or(0) + inputs_.goodput->output_tokens * limits_.tpot_s.value_or(0);
  }

  // A run with `attained` ends when its answer is known, or when the requests that keep their
  // limits must have ended.
  Result<sim::ClusterReport> Run(const Plan& plan, const sim::WorkloadSpec& workload,
                                 std::optional<double> rate,
                                 SteadyAttainment* attained = nullptr) const {
    if (out_of_time_()) {
      return Status(StatusCode::kDeadlineExceeded, "no time left to simulate the plan");
    }
    DeploymentFlags flags;
    flags.prefix_caching = workload.SharesPrefixes();
    MR_ASSIGN_OR_RETURN(const Deployment deployment,
                        DeployPlan(plan, inputs_.cluster, inputs_.spec, inputs_.costs, flags));
    sim::ClusterSimOptions options = deployment.plan->options;  // its machines are `deployment`'s
    options.limits = limits_;
    if (attained != nullptr && limits_.ttft_s && limits_.tpot_s) {
      const double arrivals_s = kArrivalsMost * static_cast<double>(*workload.requests) / *rate;
      const double stay_s =
          *limits_.ttft_s + kLongOutput * inputs_.goodput->output_tokens * *limits_.tpot_s;
      options.stop_at = Time{} + Duration::Seconds(arrivals_s + stay_s);
    }
    MR_ASSIGN_OR_RETURN(const auto cluster, sim::ClusterSim::Create(std::move(options)));
    if (attained != nullptr) {
      cluster->on_arrival = [attained](RequestId id, const sim::SimRequest& request) {
        attained->Arrived(id, request.arrival, request.output_tokens);
      };
      cluster->on_output = [attained, sim = cluster.get()](const RequestOutput& output, Time now) {
        attained->Heard(output, now);
        if (attained->decided()) sim->Stop();
      };
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
