#include "experiments/distserve_artifact.h"

#include <cmath>

#include "base/rng.h"
#include "base/statistics.h"
#include "experiments/lib/distserve/simdistserve.h"

namespace millrace::experiments {
namespace {

constexpr double kContainmentPercent = 90;

std::vector<distserve::SimDistServeRequest> Draw(const ArtifactRule& rule, double rate,
                                                 uint64_t seed) {
  Rng gaps(HashCounter(seed, 1)), picks(HashCounter(seed, 2));
  std::vector<distserve::SimDistServeRequest> requests;
  double at_ms = 0;
  for (int i = 0; i < rule.requests; ++i) {
    const auto& l = (*rule.lengths)[picks.Next() % rule.lengths->size()];
    requests.push_back({at_ms, l.prompt_tokens, l.output_tokens});
    at_ms += -std::log(1 - gaps.Uniform()) / rate * 1000;
  }
  return requests;
}

}  // namespace

plan::Goodput ArtifactGoodput(const ArtifactRule& rule, const plan::DistServeUnit& unit,
                              double guess) {
  const distserve::SimDistServeOptions options{
      .prefill = rule.engine->At(unit.prefill.tensor),
      .decode = rule.engine->At(unit.decode.tensor),
      .prefill_stages = unit.prefill.pipeline,
      .decode_stages = unit.decode.pipeline,
      .prefill_tokens_max = static_cast<int>(rule.engine->KindOf(unit.prefill).kv_tokens)};
  const auto trial = [&](double rate, uint64_t seed) -> plan::Attainment {
    const auto result = SimulateSimDistServe(options, Draw(rule, rate, seed));
    if (!result.ok()) return {};
    std::vector<double> ttft, tpot;
    for (const auto& t : result->times) {
      ttft.push_back(t.ttft_ms);
      tpot.push_back(t.tpot_ms);
    }
    const double ttft_met = Percentile(std::move(ttft), kContainmentPercent) < rule.ttft_ms ? 1 : 0;
    const double tpot_met = Percentile(std::move(tpot), kContainmentPercent) < rule.tpot_ms ? 1 : 0;
    return {std::min(ttft_met, tpot_met), ttft_met, tpot_met};
  };
  return plan::FindGoodput(
      trial, {.attainment = 1, .seeds = 1, .first_seed = rule.seed, .precision = rule.precision},
      guess);
}

}  // namespace millrace::experiments
