#include "sim/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/statistics.h"
#include "cost/link_model.h"

namespace millrace::sim {
namespace {

// A queue grows if it took this share of the arrivals, and more than its own fluctuation.
constexpr double kGrowthShare = 0.02;
constexpr double kFluctuations = 3, kGrowthMin = 8;
constexpr size_t kLoadSamplesMin = 16;

constexpr double kKvFull = 0.9, kStepsFull = 0.5, kPreemptionsMany = 0.01, kBusyMany = 0.85;
// The mean TPOT as a share of its limit, from which on the limit holds prompts back.
constexpr double kAtTpotLimit = 0.9;

double MeanWaiting(std::span<const LoadSample> load) {
  double sum = 0;
  for (const LoadSample& s : load) sum += static_cast<double>(s.waiting);
  return sum / static_cast<double>(load.size());
}

double Over(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// The instance's part of all runs together.
InstanceSummary SummarizeInstance(std::span<const ServiceReport> runs, size_t index) {
  InstanceSummary summary;
  InstanceUse sum;
  double kv_capacity = 0;
  for (const ServiceReport& run : runs) {
    const InstanceUse& use = run.use[index];
    sum.steps += use.steps;
    sum.sequences += use.sequences;
    sum.full_of_sequences += use.full_of_sequences;
    sum.full_of_tokens += use.full_of_tokens;
    sum.kv_block_seconds += use.kv_block_seconds;
    sum.kv_blocks_peak = std::max(sum.kv_blocks_peak, use.kv_blocks_peak);
    summary.kv_blocks = std::max(summary.kv_blocks, use.kv_blocks);
    kv_capacity += use.kv_blocks * use.ready_s.value_or(run.simulated_s);
    summary.preemptions += use.preemptions + run.stats[index].preemptions_recompute +
                           run.stats[index].preemptions_swap;
    summary.busy_share.resize(run.busy_share[index].size());
    for (size_t s = 0; s < summary.busy_share.size(); ++s) {
      summary.busy_share[s] += run.busy_share[index][s] / static_cast<double>(runs.size());
    }
  }
  summary.steps = sum.steps;
  summary.batch = sum.MeanBatch();
  summary.full_of_sequences = Over(sum.full_of_sequences, sum.steps);
  summary.full_of_tokens = Over(sum.full_of_tokens, sum.steps);
  summary.kv_share = kv_capacity > 0 ? sum.kv_block_seconds / kv_capacity : 0;
  summary.kv_share_peak =
      summary.kv_blocks > 0 ? static_cast<double>(sum.kv_blocks_peak) / summary.kv_blocks : 0;
  return summary;
}

}  // namespace

Interval MeanInterval(std::span<const double> values) {
  if (values.empty()) return {};
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  const double half = ConfidenceHalfWidth(values);
  return {mean, mean - half, mean + half};
}

std::optional<Saturation> FindSaturation(std::span<const LoadSample> load) {
  if (load.size() < kLoadSamplesMin) return std::nullopt;
  const size_t quarter = load.size() / 4;
  const auto second = load.subspan(quarter, quarter), third = load.subspan(2 * quarter, quarter),
             fourth = load.subspan(3 * quarter, quarter);
  const double before = MeanWaiting(second), middle = MeanWaiting(third),
               after = MeanWaiting(fourth);
  const double seconds = (fourth.front().at - second.front().at).seconds();
  const auto arrived = static_cast<double>(fourth.front().arrived - second.front().arrived);
  const double growth = after - before;
  if (seconds <= 0 || !(before < middle && middle < after)) return std::nullopt;
  if (growth < kGrowthShare * arrived) return std::nullopt;
  if (growth < kFluctuations * std::sqrt(before) + kGrowthMin) return std::nullopt;
  return Saturation{arrived / seconds, growth / seconds};
}

std::optional<double> SimReport::prefix_hit_rate() const {
  if (prefix_query_tokens == 0) return std::nullopt;
  return Over(prefix_hit_tokens, prefix_query_tokens);
}

double SimReport::requests_per_s() const {
  const double seconds = latency.seconds();
  return seconds > 0 ? static_cast<double>(latency.requests) / seconds : 0;
}

double SimReport::output_tokens_per_s() const {
  const double seconds = latency.seconds();
  return seconds > 0 ? static_cast<double>(latency.output_tokens) / seconds : 0;
}

double SimReport::total_tokens_per_s() const {
  const double seconds = latency.seconds();
  return seconds > 0 ? static_cast<double>(latency.output_tokens + latency.prompt_tokens) / seconds
                     : 0;
}

std::optional<double> SimReport::usd_per_million_output_tokens() const {
  if (!usd_per_hour || output_tokens_per_s() <= 0) return std::nullopt;
  return cost::UsdPerMillionTokens(*usd_per_hour, output_tokens_per_s());
}

std::string SimReport::Bottleneck() const {
  size_t busiest = 0, stage = 0, fullest = 0, batches = 0;
  uint64_t preemptions = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    const InstanceSummary& at = instances[i];
    preemptions += at.preemptions;
    if (at.kv_share > instances[fullest].kv_share) fullest = i;
    if (at.full_of_sequences > instances[batches].full_of_sequences) batches = i;
    for (size_t s = 0; s < at.busy_share.size(); ++s) {
      if (at.busy_share[s] > instances[busiest].busy_share[stage]) busiest = i, stage = s;
    }
  }
  const double kv = instances[fullest].kv_share;
  if (kv > kKvFull || Over(preemptions, latency.requests) > kPreemptionsMany) {
    return fmt::format("KV memory of {} ({:.0f} % in use, {} preemptions in all)",
                       instances[fullest].name, kv * 100, preemptions);
  }
  if (!saturation) {
    return fmt::format("none at this load; the busiest stage has work {:.0f} % of the time",
                       instances[busiest].busy_share[stage] * 100);
  }
  const double full = instances[batches].full_of_sequences;
  if (full > kStepsFull) {
    return fmt::format(
        "the most sequences in a step, of {} ({:.0f} % of its steps are "
        "full); raise --max-num-seqs",
        instances[batches].name, full * 100);
  }
  // The step budget (sched/step_budget.h) is at work, or already at its least.
  if (limits.tpot_s && latency.tpot.mean() > kAtTpotLimit * *limits.tpot_s) {
    return fmt::format(
        "the limit tpot={:.3g}ms: steps are kept short for it, so prompts wait (mean TPOT {:.3g} "
        "ms); a looser limit, more machines, or machines for prompts alone help",
        1e3 * *limits.tpot_s, 1e3 * latency.tpot.mean());
  }
  const double busy = instances[busiest].busy_share[stage];
  const double link = links.empty() ? 0 : links.front().busy_share;
  if (std::max(busy, link) < kBusyMany) {
    return fmt::format(
        "no stage or link is full (the busiest {:.0f} %): steps wait for one "
        "another, for the links' latency, or for KV memory",
        std::max(busy, link) * 100);
  }
  if (link > busy) {
    return fmt::format("the link {} (busy {:.0f} %)", links.front().name, link * 100);
  }
  if (instances[busiest].busy_share.size() == 1) {
    return fmt::format("the time of {} (busy {:.0f} %)", instances[busiest].name, busy * 100);
  }
  return fmt::format("the time of stage {} of {} (busy {:.0f} %)", stage, instances[busiest].name,
                     busy * 100);
}

void Summarize(std::span<const ServiceReport> runs, SimReport& report) {
  MR_CHECK(!runs.empty() && runs.size() == report.seeds.size());
  report.latency = runs[0].latency;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) report.latency.Merge(runs[i].latency);
    report.steps += runs[i].steps;
    report.prefix_query_tokens += runs[i].prefix_query_tokens;
    report.prefix_hit_tokens += runs[i].prefix_hit_tokens;
    report.kv_wait.Merge(runs[i].kv_wait);
    report.kv_transfer.Merge(runs[i].kv_transfer);
    report.simulated_s += runs[i].simulated_s;
    if (runs[i].membership) {
      if (!report.membership) report.membership.emplace();
      report.membership->Merge(*runs[i].membership);
    }
    report.attainment.push_back(runs[i].latency.attainment());
    const auto found = FindSaturation(runs[i].load);
    if (found && (!report.saturation || found->growth_per_s > report.saturation->growth_per_s)) {
      report.saturation = found;
    }
  }
  for (size_t i = 0; i < runs[0].use.size(); ++i) {
    report.instances.push_back(SummarizeInstance(runs, i));
    report.instances.back().name = fmt::format("instance {}", i);
  }
}

}  // namespace millrace::sim
