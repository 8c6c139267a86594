#include "plan/roles/pool_latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace millrace::plan {
namespace {

constexpr double kKvUsable = 0.9;     // usable share of a node's KV memory
constexpr int kBatchSteps = 12;       // until batches and step times agree
constexpr double kMissed = 0.1;       // share of requests that may miss a limit
constexpr double kNormalTail = 1.28;  // standard deviations beyond which kMissed of a normal lies
// The same for the time per token, which a request averages over its whole answer, while others
// come and go.
constexpr double kBatchTail = 0.3;
constexpr double kSlowest_s = 1e3;  // a token that takes longer never comes

// Nine prompts in ten are at most this much longer than the mean, for a lognormal of this spread.
double LongPrompt(double spread) {
  const double variance = std::log(std::max(1.0, spread));
  return std::exp(kNormalTail * std::sqrt(variance) - variance / 2);
}

// The least time within which all but kMissed of the requests are served. `routes`: the time of
// each route and the share of the requests that take it.
double AllButMissed(std::vector<std::pair<double, double>>& routes) {
  std::ranges::sort(routes, std::ranges::greater());
  double beyond = 0;
  for (const auto& [seconds, share] : routes) {
    beyond += share;
    if (beyond > kMissed) return seconds;
  }
  return routes.empty() ? 0 : routes.back().first;
}

// Decoding at one rate. A stage decodes what has come since its last step. A route of several
// stages has as many steps in flight, so a sequence returns to a stage after all of them, or after
// the slowest if that is later.
class Decoding {
 public:
  Decoding(const RoleProblem& problem, const PoolFlow& pool, double rate)
      : problem_(problem), pool_(pool), rate_(rate), stages_(pool.stages.size()) {
    round_s_.resize(pool.routes.size(), 0);
  }

  // Batches are as long as rounds take, and rounds are as long as their batches.
  bool Settle() {
    for (int i = 0; i < kBatchSteps; ++i) {
      Batches(0);
      double slowest = 0;
      for (size_t r = 0; r < pool_.routes.size(); ++r) {
        round_s_[r] = RoundOf(r);
        slowest = std::max(slowest, round_s_[r]);
      }
      if (slowest > kSlowest_s) return false;
    }
    return true;
  }

  double Mean() const {
    double mean = 0;
    for (size_t r = 0; r < pool_.routes.size(); ++r) mean += pool_.routes[r].share * round_s_[r];
    return mean;
  }

  // REQUIRES: Settle. More sequences than the mean: rounds of that moment.
  double Tail() {
    Batches(kBatchTail);
    std::vector<std::pair<double, double>> routes;
    for (size_t r = 0; r < pool_.routes.size(); ++r) {
      routes.emplace_back(RoundOf(r), pool_.routes[r].share);
    }
    return AllButMissed(routes);
  }

  // Sequences in one step of the route that has the most.
  double MostInStep() const {
    double most = 0;
    for (size_t r = 0; r < pool_.routes.size(); ++r) most = std::max(most, InStep(r));
    return most;
  }

  // Sequences of the stage that are being decoded, on average (Little's law).
  double Running(size_t stage) const { return stages_[stage].running; }

 private:
  struct Stage {
    double running = 0;      // sequences
    double visit_s = 0;      // one step
    double steps_per_s = 0;  // of all routes
    double Busy() const { return std::min(1.0, steps_per_s * visit_s); }
  };

  double InStep(size_t r) const {
    const PoolFlow::Route& route = pool_.routes[r];
    const double running = rate_ * route.share * problem_.goodput->output_tokens * round_s_[r];
    return running / static_cast<double>(route.stages.size());
  }

  // Steps that the route has in flight: one for each stage, if it has as many sequences.
  double StepsInFlight(size_t r) const {
    const PoolFlow::Route& route = pool_.routes[r];
    const double running = rate_ * route.share * problem_.goodput->output_tokens * round_s_[r];
    return std::min(static_cast<double>(route.stages.size()), std::max(1.0, running));
  }

  // `deviations`: by how many standard deviations more sequences run than the mean.
  void Batches(double deviations) {
    const GoodputProblem& p = *problem_.goodput;
    for (Stage& stage : stages_) stage = {};
    std::vector<double> batch(stages_.size(), 0);
    for (size_t r = 0; r < pool_.routes.size(); ++r) {
      const PoolFlow::Route& route = pool_.routes[r];
      const double running = rate_ * route.share * p.output_tokens * round_s_[r];
      const double steps_per_s = round_s_[r] > 0 ? StepsInFlight(r) / round_s_[r] : 0;
      for (const int s : route.stages) {
        stages_[static_cast<size_t>(s)].running += running;
        stages_[static_cast<size_t>(s)].steps_per_s += steps_per_s;
        batch[static_cast<size_t>(s)] += running / static_cast<double>(route.stages.size());
      }
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      const PoolFlow::Stage& at = pool_.stages[s];
      const LayerRates& rates = p.rates[static_cast<size_t>(at.node)];
      double sequences = std::max(1.0, batch[s]);
      if (deviations > 0 && stage.running > 0) {
        sequences += deviations * batch[s] / std::sqrt(stage.running);
      }
      stage.visit_s = at.layers * (rates.decode_s_per_step + sequences * rates.decode_s_per_token) +
                      (at.last ? rates.HeadSeconds(sequences) : 0);
    }
  }

  double RoundOf(size_t r) const {
    const PoolFlow::Route& route = pool_.routes[r];
    double sum = route.latency_s + route.link_s_per_token, slowest = 0;
    const double own = round_s_[r] > 0 ? StepsInFlight(r) / round_s_[r] : 0;
    for (const int s : route.stages) {
      const Stage& stage = stages_[static_cast<size_t>(s)];
      // It may meet a step of another route, and waits for half of it on average.
      const double others = stage.steps_per_s > 0 ? 1 - std::min(1.0, own / stage.steps_per_s) : 0;
      sum += stage.visit_s * (1 + others * stage.Busy() / 2);
      slowest = std::max(slowest, stage.visit_s);
    }
    return std::max(sum, static_cast<double>(route.stages.size()) * slowest);
  }

  const RoleProblem& problem_;
  const PoolFlow& pool_;
  const double rate_;
  std::vector<Stage> stages_;
  std::vector<double> round_s_;  // by route: a token of each of its sequences
};

}  // namespace

std::string PoolLimit::Text(const RoleProblem& problem) const {
  if (what == nullptr) return "";
  if (!node) return what;
  return fmt::format("{} {}", what, problem.goodput->flow.nodes[static_cast<size_t>(*node)].name);
}

// Prompts queue at every stage. The wait of a route's busiest one has an exponential tail.
PoolLatency PrefillAt(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const GoodputProblem& p = *problem.goodput;
  struct Stage {
    double prompt_s = 0, wait_s = 0, extra_s = 0;
  };
  std::vector<Stage> stages;
  PoolLatency out;
  for (const PoolFlow::Stage& at : pool.stages) {
    const LayerRates& rates = p.rates[static_cast<size_t>(at.node)];
    Stage& stage = stages.emplace_back();
    stage.prompt_s = at.layers * p.prompt_tokens * rates.prefill_s_per_token +
                     (at.last ? rates.HeadSeconds(1) : 0);
    const double busy = rate * at.share * stage.prompt_s;
    if (busy > kBusyMax) {
      out.limit = {"prefill of", at.node};
      return out;
    }
    stage.wait_s = p.prompt_spread * busy * stage.prompt_s / (2 * (1 - busy));
    if (busy > kMissed) {
      stage.extra_s = std::max(0.0, stage.wait_s / busy * std::log(busy / kMissed) - stage.wait_s);
    }
  }
  const double longer = LongPrompt(p.prompt_spread) - 1;
  std::vector<std::pair<double, double>> routes;
  for (const PoolFlow::Route& route : pool.routes) {
    double service_s = 0, mean_s = route.latency_s + p.prompt_tokens * route.link_s_per_token;
    double extra_s = 0;
    for (const int s : route.stages) {
      const Stage& stage = stages[static_cast<size_t>(s)];
      service_s += stage.prompt_s;
      mean_s += stage.prompt_s + stage.wait_s;
      extra_s = std::max(extra_s, stage.extra_s);
    }
    out.mean_s += route.share * mean_s;
    routes.emplace_back(mean_s + extra_s + longer * service_s, route.share);
  }
  out.tail_s = AllButMissed(routes);
  return out;
}

PoolLatency DecodeAt(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const GoodputProblem& p = *problem.goodput;
  Decoding decoding(problem, pool, rate);
  PoolLatency out;
  const bool settled = decoding.Settle();
  out.mean_s = decoding.Mean();
  if (settled && decoding.MostInStep() > p.max_sequences) {
    out.limit = {"the sequences of a step", {}};
    return out;
  }
  for (size_t s = 0; s < pool.stages.size(); ++s) {
    const PoolFlow::Stage& at = pool.stages[s];
    const LayerRates& rates = p.rates[static_cast<size_t>(at.node)];
    const double tokens = rate * at.share * p.output_tokens;
    const double each_s =
        at.layers * rates.decode_s_per_token + (at.last ? rates.head_s_per_token : 0);
    if (!settled || tokens * each_s > kBusyMax) {
      out.limit = {"decode of", at.node};
      return out;
    }
    // Half of the output exists on average.
    const double running = decoding.Running(s);
    const double held = (running + kNormalTail * std::sqrt(running)) *
                        (p.prompt_tokens + p.output_tokens / 2) * at.layers;
    const int64_t kv =
        p.kv_token_layers[static_cast<size_t>(at.node)][static_cast<size_t>(at.layers) - 1] +
        (at.first || at.last ? 0 : p.end_token_layers);
    if (held > kKvUsable * static_cast<double>(kv)) {
      out.limit = {"KV of", at.node};
      return out;
    }
  }
  out.tail_s = decoding.Tail();
  return out;
}

PoolLimit PrefillLimit(const RoleProblem& problem, const PoolFlow& pool, double rate) {
  const PoolLatency ttft = PrefillAt(problem, pool, rate);
  if (ttft.limit.any()) return ttft.limit;
  const auto limit = problem.goodput->ttft_s;
  return limit && ttft.tail_s > *limit ? PoolLimit{"ttft", {}} : PoolLimit();
}

PoolLimit DecodeLimit(const RoleProblem& problem, const PoolFlow& pool, double rate, double kv_s) {
  const PoolLatency tpot = DecodeAt(problem, pool, rate);
  if (tpot.limit.any()) return tpot.limit;
  const auto limit = problem.goodput->tpot_s;
  // The KV arrives between the first token and the second.
  const double spread = kv_s / std::max(1.0, problem.goodput->output_tokens - 1);
  return limit && tpot.tail_s + spread > *limit ? PoolLimit{"tpot", {}} : PoolLimit();
}

}  // namespace millrace::plan
