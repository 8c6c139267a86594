// SimReport: the results of one deployment under one workload over one or several seeds, as a
// table, JSON or CSV. Pure functions of the runs; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "sim/fast/service.h"
#include "sim/load/workload_file.h"

namespace millrace::sim {

// A mean over seeds and its 95 % confidence interval (Student's t). With one seed, the value
// itself.
struct Interval {
  double mean = 0, low = 0, high = 0;
};
Interval MeanInterval(std::span<const double> values);

// The service cannot keep up: the number of requests without a token grows steadily.
struct Saturation {
  double arrivals_per_s = 0;
  double growth_per_s = 0;  // growth of the queue in the second half of the arrivals
};
// None if the queue only fluctuates, or if all requests arrive at once.
std::optional<Saturation> FindSaturation(std::span<const LoadSample> load);

struct InstanceSummary {
  std::string name;                                  // "instance 0", or of a plan's stage
  std::vector<double> busy_share;                    // per stage, mean over runs
  double batch = 0;                                  // mean sequences of a step
  double full_of_sequences = 0, full_of_tokens = 0;  // shares of the steps
  int kv_blocks = 0;
  double kv_share = 0, kv_share_peak = 0;  // share of the blocks; mean over time
  uint64_t steps = 0, preemptions = 0;
};

struct LinkSummary {
  std::string name;  // "a100-0 to l4-3"
  double busy_share = 0;
};

struct SimReport {
  std::string deployment, cost_from, workload;  // shown to the reader
  std::vector<std::string> clients;             // their names, if the workload has several
  std::optional<double> rate;                   // requested rate; none: all at once
  LatencyLimits limits;
  LatencyReport latency;  // of all runs together
  std::vector<uint64_t> seeds;
  std::vector<double> attainment;        // per seed
  std::optional<Saturation> saturation;  // of the worst seed
  std::vector<InstanceSummary> instances;
  std::vector<LinkSummary> links;  // of a plan, busiest first
  uint64_t steps = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // looked up in prefix caches, and found
  Quantiles kv_wait, kv_transfer;                           // of hand-overs between instances
  std::optional<MembershipReport> membership;               // of all runs together
  double simulated_s = 0;                                   // of all runs together
  std::optional<double> usd_per_hour;  // of all instances; the average if they come and go

  // The share of the looked-up prompt tokens that were cached. None: nothing was looked up.
  std::optional<double> prefix_hit_rate() const;
  double requests_per_s() const;
  double output_tokens_per_s() const;
  double total_tokens_per_s() const;
  std::optional<double> usd_per_million_output_tokens() const;
  bool meets_target() const { return !saturation && latency.Keeps(limits); }
  // The first resource to run out: "KV memory of instance 0 (...)", or a statement that none does
  // yet.
  std::string Bottleneck() const;
};

// Fills in everything that is computed from the runs. Unnamed instances become "instance N".
// REQUIRES: one run per seed, at least one.
void Summarize(std::span<const ServiceReport> runs, SimReport& report);

std::string ReportTable(const SimReport& report);
Json ReportJson(const SimReport& report);
std::string ReportCsvHeader();
std::string ReportCsvRow(const SimReport& report);

}  // namespace millrace::sim
