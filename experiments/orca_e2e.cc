// Orca section 6.2: iteration-level against request-level scheduling, GPT-3 175B on 16 GPUs (two
// stages of eight), Poisson arrivals, inputs U(32, 512), outputs U(1, 128). The throughput at which
// the median of latency / generated tokens reaches 190 ms.
//
// The hardware is not available, so a stage's time is base + 0.14 ms per token. The base is FITTED:
// it is chosen between 30 and 35 ms because only there both systems come close to the published
// points. A roofline of reading the weights would give 14 ms.
#include <fmt/format.h>

#include <functional>

#include "base/check.h"
#include "experiments/list.h"
#include "sim/fast/service.h"
#include "sim/fast/static_batching.h"

namespace millrace::experiments {
namespace {

constexpr double kCriterion = 0.190;  // seconds per token, median
constexpr double kBase = 33e-3, kPerToken = 0.14e-3;
constexpr int kSlots = 50'000;
constexpr double kPaperOrca = 6.81, kPaperFt = 0.185;

class StageCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& b) const override {
    return kBase + kPerToken * static_cast<double>(b.tokens());
  }
};

std::unique_ptr<sim::Workload> OrcaWorkload(double rate, uint64_t requests) {
  using Kind = sim::LengthSpec::Kind;
  return sim::NewSynthetic({.requests = requests,
                            .rate = rate,
                            .prompt = {.kind = Kind::kUniform, .a = 32, .b = 512},
                            .output = {.kind = Kind::kUniform, .a = 1, .b = 128},
                            .seed = 3});
}

Result<double> OrcaMedian(double rate, int max_batch, uint64_t requests) {
  const StageCost cost;
  sim::InstanceOptions instance;
  instance.stages = {&cost, &cost};
  sched::SchedulerOptions& o = instance.scheduler;
  o.num_blocks = kSlots / o.block_size;
  o.max_num_seqs = max_batch;
  o.max_num_batched_tokens = max_batch * 512;  // Orca has no token budget
  o.max_model_len = 2048;
  o.max_waiting = 1 << 20;
  o.kv_policy = sched::KvPolicy::kOrca;
  o.prefix_caching = false;
  MR_ASSIGN_OR_RETURN(const auto service, sim::Service::Create({.instances = {instance}}));
  const auto workload = OrcaWorkload(rate, requests);
  return service->Run(*workload).latency.per_token.At(0.5);
}

Result<double> FtMedian(double rate, int max_batch, uint64_t requests) {
  const StageCost cost;
  const auto workload = OrcaWorkload(rate, requests);
  return sim::RunStaticBatching(
             {.stages = {&cost, &cost}, .max_batch = max_batch, .micro_batch = max_batch},
             *workload)
      .per_token.At(0.5);
}

// The highest rate at which the median meets the criterion, by bisection on the same arrivals.
Result<double> RateAtCriterion(const std::function<Result<double>(double)>& median) {
  double low = 0, high = 16;
  for (int i = 0; i < 14; ++i) {
    const double rate = (low + high) / 2;
    MR_ASSIGN_OR_RETURN(const double seconds, median(rate));
    (seconds <= kCriterion ? low : high) = rate;
  }
  return low;
}

Result<std::vector<Figure>> Run(const Context& context) {
  const uint64_t requests = context.quick ? 1'500 : 6'000;
  double ft_single = 0, ft_batched = 0;
  std::vector<Figure> figures;
  for (const int batch : {1, 8}) {
    MR_ASSIGN_OR_RETURN(const double rate, RateAtCriterion([&](double rate) {
                          return FtMedian(rate, batch, requests);
                        }));
    (batch == 1 ? ft_single : ft_batched) = rate;
    figures.push_back({.name = fmt::format("request-level, max_bs {0}, mbs {0}", batch),
                       .paper = batch == 1 ? Json(kPaperFt) : Json(nullptr),
                       .ours = rate,
                       .unit = "req/s",
                       .verdict = "baseline"});
  }
  double orca_best = 0;
  for (const int batch : {8, 16, 32}) {
    if (context.quick && batch != 32) continue;
    MR_ASSIGN_OR_RETURN(const double rate, RateAtCriterion([&](double rate) {
                          return OrcaMedian(rate, batch, requests);
                        }));
    orca_best = std::max(orca_best, rate);
    figures.push_back({.name = fmt::format("iteration-level, max_bs {}", batch),
                       .paper = batch == 32 ? Json(kPaperOrca) : Json(nullptr),
                       .ours = rate,
                       .unit = "req/s",
                       .verdict = "the production scheduler, KV policy orca"});
  }
  const double ratio = orca_best / ft_single;
  figures.push_back({.name = "ratio at 190 ms per token",
                     .paper = kPaperOrca / kPaperFt,
                     .ours = ratio,
                     .unit = "times",
                     .verdict = fmt::format(
                         "{}: bar 30 to 50 times; fitted cost, {:.0f} ms + {:.2f} ms per token "
                         "and stage",
                         ratio >= 30 && ratio <= 50 ? "reproduced" : "outside the bar", kBase * 1e3,
                         kPerToken * 1e3)});
  figures.push_back(
      {.name = "ratio to request-level with max_bs 8",
       .paper = nullptr,
       .ours = orca_best / ft_batched,
       .unit = "times",
       .verdict = "not in the paper: our batches of 8 pay no padding in a decode step and so gain "
                  "more than FasterTransformer's did"});
  return figures;
}

}  // namespace

Experiment OrcaE2eExperiment() {
  return {.name = "orca_e2e",
          .title = "Orca section 6.2: throughput at 190 ms per token, 175B on 16 GPUs",
          .needs_data = false,
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
