#include "apps/simulate/judge.h"

#include <algorithm>
#include <span>
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
constexpr double kJudgedRequestsMin = 300;
// Without limits: the end of a run, when the cluster is no longer full, must count for little.
constexpr double kAnsweredRequestsMin = 600;
constexpr uint64_t kAtOnceRequests = 400;
constexpr int kRunsMax = 8;
constexpr double kPrecise = 0.03;  // of the rate
// Of the best plan so far. A plan below it loses; its own rate need not be as precise.
constexpr double kFar = 0.7, kCoarse = 0.15;
constexpr double kRaise = 1.4, kLower = 0.7;  // until one rate is kept and another is not
// Without limits: the first rate, of the best estimate; and the share of the arriving requests that
// a plan that keeps up may leave unanswered.
constexpr double kBelowHint = 0.8, kGrowing = 0.1;
constexpr double kArrivalsMost = 1.5;  // of the mean time that the requests take to arrive
constexpr double kLongOutput = 6;      // of the mean output; few are longer
constexpr uint64_t kSeed = 1;

class PlanJudge {
 public:
  PlanJudge(const PlanInputs& inputs, const LatencyLimits& limits,
            std::function<bool()> out_of_time, const JudgeBounds& bounds)
      : inputs_(inputs),
        limits_(limits),
        out_of_time_(std::move(out_of_time)),
        bounds_(bounds),
        workload_(WorkloadOf(inputs, bounds.requests)) {}

  Result<double> Score(const Plan& plan, const plan::JudgeHints& hints) const {
    if (!limits_.any()) return Throughput(plan, hints);
    double low = 0;
    std::optional<double> high;
    double rate = hints.estimated;
    const auto not_better = FailedPrecondition("not better than the best so far");
    if (bounds_.requests_per_s) {
      high = *bounds_.requests_per_s;
      if (hints.best_score >= *high) return not_better;
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, *high));
      if (kept) return *high;
    }
    if (hints.best_score > 0) {  // a single run rejects most candidates that are not better
      low = hints.best_score * (1 + kPrecise);
      if (high && low >= *high) return not_better;
      MR_ASSIGN_OR_RETURN(const bool kept, Keeps(plan, low));
      if (!kept) return not_better;
      rate = std::max(rate, low * kRaise);
    }
    if (high && rate >= *high) rate = Between(low, *high);
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
      rate = high ? Between(low, *high) : low * kRaise;
    }
    return low;
  }

  Result<bool> Keeps(const Plan& plan, double rate) const {
    const sim::WorkloadSpec workload = Lasting(rate, Stay_s(), kJudgedRequestsMin);
    SteadyAttainment attained(limits_, *workload.requests);
    MR_RETURN_IF_ERROR(Run(plan, workload, rate, &attained).status());
    return attained.kept();
  }

 private:
  static double Between(double low, double high) {
    return low > 0 ? (low + high) / 2 : high * kLower;
  }
  static sim::WorkloadSpec WorkloadOf(const PlanInputs& inputs, double requests_most) {
    sim::WorkloadSpec spec;
    if (inputs.workload) {
      spec = *inputs.workload;
    } else {
      spec.prompt.a = inputs.goodput->prompt_tokens;
      spec.output.a = inputs.goodput->output_tokens;
      spec.rate = 1;
    }
    spec.duration_s.reset();
    const auto most = static_cast<uint64_t>(requests_most);
    // A trace has no more than its requests. Others are drawn, as many as are needed.
    const bool trace = spec.arrivals == sim::ArrivalKind::kTrace;
    spec.requests = trace ? spec.requests.value_or(most) : most;
    return spec;
  }

  // As many requests of the workload as a run has.
  sim::WorkloadSpec Lasting(double rate, double stay_s, double requests_min) const {
    sim::WorkloadSpec workload = workload_;
    const double requests = std::clamp(rate * std::max(kJudged_s, kStays * stay_s),
                                       std::min(requests_min, bounds_.requests), bounds_.requests);
    workload.requests = std::min(*workload.requests, static_cast<uint64_t>(requests));
    return workload;
  }

  // Answers per second from the first arrival to the last answer: at the workload's rate if the
  // plan does not keep up with it, else the most at higher rates until it does not.
  Result<double> Throughput(const Plan& plan, const plan::JudgeHints& hints) const {
    if (!workload_.MeanRate()) {
      sim::WorkloadSpec burst = workload_;
      burst.requests = std::min(*burst.requests, kAtOnceRequests);
      MR_ASSIGN_OR_RETURN(const sim::ClusterReport report, Run(plan, burst, std::nullopt));
      return Answered(report);
    }
    double rate = std::max(
        {inputs_.requests_per_s.value_or(0), hints.best_score, kBelowHint * hints.most_estimated});
    double most = 0;
    for (int i = 0; i < kRunsMax; ++i, rate *= kRaise) {
      const auto report = Run(plan, Lasting(rate, hints.stay_s, kAnsweredRequestsMin), rate);
      // What was reached at a lower rate counts.
      if (report.status().code() == StatusCode::kDeadlineExceeded && most > 0) break;
      MR_RETURN_IF_ERROR(report.status());
      const double answered = Answered(*report);
      const bool more = answered > most * (1 + kPrecise);
      most = std::max(most, answered);
      if (!more || !KeepsUp(report->load)) break;
    }
    return most;
  }

  static double Answered(const sim::ClusterReport& report) {
    const double seconds = report.latency.seconds();
    return seconds > 0 ? static_cast<double>(report.latency.requests) / seconds : 0;
  }

  // Whether the requests in the cluster hardly become more from the second third of the arrivals to
  // the last.
  static bool KeepsUp(std::span<const sim::LoadSample> load) {
    const size_t third = load.size() / 3;
    if (third == 0) return false;
    double more = 0;
    for (size_t i = load.size() - 2 * third; i < load.size(); ++i) {
      const auto alive = static_cast<double>(load[i].alive) / static_cast<double>(third);
      more += i < load.size() - third ? -alive : alive;
    }
    return more <= kGrowing * static_cast<double>(load.back().arrived) / 3;
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
    if (out_of_time_()) return OutOfTime();
    DeploymentFlags flags;
    flags.engine = inputs_.engine;
    flags.shares_prefixes = workload.SharesPrefixes();
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
    // One run of a large plan may take longer than the whole search.
    bool late = false;
    cluster->on_tick = [this, &late, sim = cluster.get()](Time) {
      late = late || out_of_time_();
      if (late) sim->Stop();
    };
    const auto requests = workload.Make(kSeed, rate);
    sim::ClusterReport report = cluster->Run(*requests);
    if (late) return OutOfTime();
    return report;
  }

  static Status OutOfTime() {
    return {StatusCode::kDeadlineExceeded, "no time left to simulate the plan"};
  }

  const PlanInputs& inputs_;
  const LatencyLimits limits_;
  const std::function<bool()> out_of_time_;
  const JudgeBounds bounds_;
  const sim::WorkloadSpec workload_;
};

}  // namespace

plan::Evaluator SimulatedGoodput(const PlanInputs& inputs, const LatencyLimits& limits,
                                 std::function<bool()> out_of_time, const JudgeBounds& bounds) {
  return [judge = PlanJudge(inputs, limits, std::move(out_of_time), bounds)](
             const Plan& plan, const plan::JudgeHints& hints) { return judge.Score(plan, hints); };
}

std::function<Result<bool>(const Plan&)> SimulatedRate(const PlanInputs& inputs,
                                                       const LatencyLimits& limits,
                                                       double requests_per_s,
                                                       const JudgeBounds& bounds) {
  return [judge = PlanJudge(
              inputs, limits, [] { return false; }, bounds),
          requests_per_s](const Plan& plan) { return judge.Keeps(plan, requests_per_s); };
}

}  // namespace millrace::apps
