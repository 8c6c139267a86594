#include "plan/distserve/distserve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/distserve/distserve_candidates.h"

namespace millrace::plan {
namespace {

// Two plans closer than this are equal; the one with fewer devices wins.
constexpr double kSame = 1e-9;

Status CheckProblem(const DistServeProblem& p) {
  if (p.nodes < 1 || p.nodes > DistServeProblem::kNodesMax || p.devices_per_node < 1 ||
      p.devices_per_node > DistServeProblem::kDevicesPerNodeMax) {
    return InvalidArgument(fmt::format("{} nodes of {} devices: at most {} of {}", p.nodes,
                                       p.devices_per_node, DistServeProblem::kNodesMax,
                                       DistServeProblem::kDevicesPerNodeMax));
  }
  if (p.parallels.empty()) {
    return FailedPrecondition("no parallelism holds the model: more devices or memory are needed");
  }
  for (const Parallel& parallel : p.parallels) {
    if (parallel.tensor < 1 || parallel.pipeline < 1) {
      return InvalidArgument(
          fmt::format("parallelism TP{} PP{}", parallel.tensor, parallel.pipeline));
    }
  }
  if (p.requests_per_s && !(*p.requests_per_s > 0)) {
    return InvalidArgument(fmt::format("a rate of {} requests/s", *p.requests_per_s));
  }
  return {};
}

class Search {
 public:
  Search(const DistServeProblem& problem, const DistServeEvaluator& evaluator,
         const DistServeOptions& options)
      : problem_(problem), evaluator_(evaluator), options_(options), halves_(evaluator) {}

  Result<DistServePlan> Run();

 private:
  // The smallest number of devices that could carry the rate, if the promise holds with slack.
  int UnitsAtLeast(double per_unit) const {
    if (!problem_.requests_per_s) return 0;
    return WholeUnits(*problem_.requests_per_s / per_unit - kSame);
  }
  DistServeCandidate Bound(const Promise& promise) const;
  std::optional<DistServeCandidate> Evaluate(const Promise& promise);
  bool Better(const DistServeCandidate& a, const DistServeCandidate& b) const;
  bool Hopeless(const DistServeCandidate& bound) const;
  void Take(DistServeCandidate candidate);
  void Explain();
  Status WhyNone(const std::vector<Promise>& promises) const;

  const DistServeProblem& problem_;
  const DistServeEvaluator& evaluator_;
  const DistServeOptions options_;
  HalfGoodputs halves_;
  DistServePlan plan_;
  std::optional<DistServeCandidate> best_;
  std::vector<DistServeCandidate> losers_;
  double highest_ = 0;  // the highest goodput seen, sufficient or not
};

DistServeCandidate Search::Bound(const Promise& promise) const {
  DistServeCandidate c{.unit = promise.unit, .units = promise.units_max};
  const double per_unit = promise.per_unit * (promise.network ? 1 : options_.slack);
  if (problem_.requests_per_s) c.units = std::min(c.units, UnitsAtLeast(per_unit));
  c.requests_per_s = per_unit * c.units;
  if (promise.network) c.limited_by = "KV over the network";
  return c;
}

bool Search::Better(const DistServeCandidate& a, const DistServeCandidate& b) const {
  if (problem_.requests_per_s && a.devices() != b.devices()) return a.devices() < b.devices();
  if (std::abs(a.requests_per_s - b.requests_per_s) > kSame * b.requests_per_s) {
    return a.requests_per_s > b.requests_per_s;
  }
  return a.devices() < b.devices();
}

// Even its promise does not beat the best.
bool Search::Hopeless(const DistServeCandidate& bound) const {
  if (problem_.requests_per_s && bound.requests_per_s < *problem_.requests_per_s) return true;
  return best_ && !Better(bound, *best_);
}

// Adds units while they do not carry the rate and the promise says that more might.
std::optional<DistServeCandidate> Search::Evaluate(const Promise& promise) {
  DistServeCandidate c = Bound(promise);
  double guess = promise.per_unit * c.units;
  for (;;) {
    if (plan_.evaluations >= options_.evaluations_max) {
      plan_.complete = false;
      return std::nullopt;
    }
    ++plan_.evaluations;
    const Goodput goodput = evaluator_.goodput(c.unit, c.units, std::max(guess, kSame));
    c.requests_per_s = goodput.requests_per_s;
    c.half_width = goodput.half_width;
    c.limited_by = LimitingMetric(goodput.above);
    c.evaluated = true;
    highest_ = std::max(highest_, c.requests_per_s);
    if (!problem_.requests_per_s || c.requests_per_s >= *problem_.requests_per_s) return c;
    if (c.requests_per_s <= 0 || c.units == promise.units_max) return c;
    // Units together do at least as well as alone, so this many more could suffice.
    const int more = UnitsAtLeast(c.requests_per_s / c.units * options_.slack);
    c.units = std::clamp(more, c.units + 1, promise.units_max);
    guess = c.requests_per_s;
    if (best_ && c.devices() > best_->devices()) return c;
  }
}

void Search::Take(DistServeCandidate candidate) {
  const bool enough =
      candidate.requests_per_s > 0 &&
      (!problem_.requests_per_s || candidate.requests_per_s >= *problem_.requests_per_s);
  if (enough && (!best_ || Better(candidate, *best_))) {
    if (best_) losers_.push_back(*best_);
    best_ = std::move(candidate);
  } else {
    losers_.push_back(std::move(candidate));
  }
}

std::string WhyLost(const DistServeCandidate& c, const DistServeCandidate& best,
                    std::optional<double> rate) {
  const char* kind = c.evaluated ? "" : "at most ";
  if (c.requests_per_s <= 0) {
    return c.evaluated ? fmt::format("misses {} at any rate", c.limited_by)
                       : "one of its halves misses its limit at any rate";
  }
  const std::string limit = c.limited_by.empty() ? "" : ", limited by " + c.limited_by;
  if (rate && c.requests_per_s < *rate) {
    return fmt::format("carries {}{:.3g} of {:.3g} requests/s on {} devices{}", kind,
                       c.requests_per_s, *rate, c.devices(), limit);
  }
  if (rate && c.devices() > best.devices()) {
    return fmt::format("needs {} devices, {} more{}", c.devices(), c.devices() - best.devices(),
                       limit);
  }
  return fmt::format("{}{:.3g} requests/s, {:.1f} % less{}", kind, c.requests_per_s,
                     100 * (1 - c.requests_per_s / best.requests_per_s), limit);
}

void Search::Explain() {
  plan_.best = *best_;
  std::stable_sort(losers_.begin(), losers_.end(),
                   [&](const DistServeCandidate& a, const DistServeCandidate& b) {
                     if (a.evaluated != b.evaluated) return a.evaluated;
                     const double rate = problem_.requests_per_s.value_or(0);
                     const bool a_enough = a.requests_per_s >= rate;
                     const bool b_enough = b.requests_per_s >= rate;
                     if (a_enough != b_enough) return a_enough;
                     return Better(a, b);
                   });
  std::vector<ServingMode> shown = {plan_.best.unit.mode};
  for (DistServeCandidate& c : losers_) {
    const bool new_mode = std::find(shown.begin(), shown.end(), c.unit.mode) == shown.end();
    // Keeps the last places for modes not shown yet.
    if (!new_mode && plan_.others.size() + 2 >= DistServePlan::kOthersMax) continue;
    if (new_mode) shown.push_back(c.unit.mode);
    c.why_lost = WhyLost(c, plan_.best, problem_.requests_per_s);
    plan_.others.push_back(std::move(c));
  }
}

Status Search::WhyNone(const std::vector<Promise>& promises) const {
  if (highest_ > 0) {
    return FailedPrecondition(fmt::format(
        "{:.4g} requests/s within the limits do not fit {} nodes of {} devices: the "
        "most is about {:.4g}",
        problem_.requests_per_s.value_or(0), problem_.nodes, problem_.devices_per_node, highest_));
  }
  // No plan passes at any rate. Reports the idle latencies of the unit that exceeds the limits
  // least.
  double least = std::numeric_limits<double>::infinity();
  UnloadedLatency nearest;
  std::string unit;
  for (const Promise& promise : promises) {
    const UnloadedLatency idle = evaluator_.unloaded(promise.unit);
    const double excess = std::max(idle.ttft_s / problem_.ttft_s, idle.tpot_s / problem_.tpot_s);
    if (excess >= least) continue;
    least = excess;
    nearest = idle;
    unit = promise.unit.ToString();
  }
  return FailedPrecondition(
      fmt::format("no plan meets TTFT {:.4g} s and TPOT {:.4g} s even when idle; the nearest "
                  "limits that a plan meets are TTFT {:.4g} s and TPOT {:.4g} s ({})",
                  problem_.ttft_s, problem_.tpot_s, std::max(nearest.ttft_s, problem_.ttft_s),
                  std::max(nearest.tpot_s, problem_.tpot_s), unit));
}

Result<DistServePlan> Search::Run() {
  std::vector<Promise> promises = MakePromises(problem_, options_, halves_);
  plan_.candidates = static_cast<int>(promises.size());
  std::stable_sort(promises.begin(), promises.end(),
                   [&](const Promise& a, const Promise& b) { return Better(Bound(a), Bound(b)); });
  for (const Promise& promise : promises) {
    DistServeCandidate bound = Bound(promise);
    if (Hopeless(bound)) {
      highest_ = std::max(highest_, bound.requests_per_s / options_.slack);
      losers_.push_back(std::move(bound));
      continue;
    }
    auto candidate = Evaluate(promise);
    if (!candidate) break;
    Take(std::move(*candidate));
  }
  if (!best_) return WhyNone(promises);
  Explain();
  return std::move(plan_);
}

}  // namespace

const char* ServingModeName(ServingMode mode) {
  switch (mode) {
    case ServingMode::kDisaggregated: return "disaggregated";
    case ServingMode::kColocated: return "colocated";
    case ServingMode::kChunked: return "chunked prefill";
  }
  return "?";
}

int DistServeUnit::devices() const {
  if (mode != ServingMode::kDisaggregated) return prefills * prefill.devices();
  return prefills * prefill.devices() + decodes * decode.devices();
}

std::string DistServeUnit::ToString() const {
  if (mode != ServingMode::kDisaggregated) {
    return fmt::format("{} x TP{} PP{}, {}", prefills, prefill.tensor, prefill.pipeline,
                       ServingModeName(mode));
  }
  return fmt::format("{} x prefill TP{} PP{} + {} x decode TP{} PP{}, KV {}{}", prefills,
                     prefill.tensor, prefill.pipeline, decodes, decode.tensor, decode.pipeline,
                     kv_across_nodes ? "over the network" : "inside nodes",
                     segments > 1 ? fmt::format(" in {} segments", segments) : "");
}

Result<DistServePlan> SearchDistServe(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator,
                                      const DistServeOptions& options) {
  MR_RETURN_IF_ERROR(CheckProblem(problem));
  return Search(problem, evaluator, options).Run();
}

Result<PublishedPlacement> Algorithm1(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator) {
  MR_RETURN_IF_ERROR(CheckProblem(problem));
  const NodeGrid grid{problem.nodes, problem.devices_per_node};
  HalfGoodputs halves(evaluator);
  PublishedPlacement found;
  double best_prefill = 0, best_decode = 0, prefill_rate = 0, decode_rate = 0;
  for (const Parallel& parallel : problem.parallels) {
    if (MaxInstances(grid, parallel) == 0) continue;
    const double prefill = halves.Prefill(parallel, 1), decode = halves.Decode(parallel, 1);
    if (prefill / parallel.devices() > best_prefill) {
      best_prefill = prefill / parallel.devices();
      prefill_rate = prefill;
      found.unit.prefill = parallel;
    }
    if (decode / parallel.devices() > best_decode) {
      best_decode = decode / parallel.devices();
      decode_rate = decode;
      found.unit.decode = parallel;
    }
  }
  if (prefill_rate <= 0 || decode_rate <= 0) {
    return FailedPrecondition("no instance meets the limits at any rate");
  }
  const double rate = problem.requests_per_s.value_or(std::min(prefill_rate, decode_rate));
  found.unit.prefills = WholeUnits(rate / prefill_rate);
  found.unit.decodes = WholeUnits(rate / decode_rate);
  found.unit.kv_across_nodes = true;
  return found;
}

Result<PublishedPlacement> Algorithm2(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator) {
  MR_RETURN_IF_ERROR(CheckProblem(problem));
  PublishedPlacement found;
  double best_per_device = 0, best_rate = 0;
  for (int segments = 1; segments <= problem.nodes; ++segments) {
    for (const Parallel& prefill : problem.parallels) {
      for (const Parallel& decode : problem.parallels) {
        if (prefill.pipeline % segments != 0 || decode.pipeline % segments != 0) continue;
        const DistServeUnit unit{.prefill = prefill, .decode = decode, .segments = segments};
        if (unit.devices() / segments > problem.devices_per_node) continue;
        const double guess = std::max(best_per_device * unit.devices(), kSame);
        const double rate = evaluator.goodput(unit, 1, guess).requests_per_s;
        if (rate / unit.devices() <= best_per_device) continue;
        best_per_device = rate / unit.devices();
        best_rate = rate;
        found.unit = unit;
      }
    }
  }
  if (best_rate <= 0)
    return FailedPrecondition("no pair of instances meets the limits at any rate");
  if (problem.requests_per_s) {
    found.units = WholeUnits(*problem.requests_per_s / best_rate);
  }
  return found;
}

}  // namespace millrace::plan
