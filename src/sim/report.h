// SimReport: what the runs of one deployment under one workload came to, over one or several seeds,
// for a person (a table), a program (JSON) and a spreadsheet (CSV). Pure functions of the runs; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "sim/service.h"
#include "sim/workload_file.h"

namespace millrace::sim {

// A mean over seeds and its 95 % confidence interval (Student's t); one value: the value itself.
struct Interval {
  double mean = 0, low = 0, high = 0;
};
Interval MeanInterval(std::span<const double> values);

// The service cannot keep up: requests without a token yet become more and more.
struct Saturation {
  double arrivals_per_s = 0;
  double growth_per_s = 0;  // of the queue, over the second half of the arrivals
};
// None while the queue only fluctuates, and where all requests come at once.
std::optional<Saturation> FindSaturation(std::span<const LoadSample> load);

struct InstanceSummary {
  std::string name;                                  // "instance 0", or of a plan's stage
  std::vector<double> busy_share;                    // per stage, mean over runs
  double batch = 0;                                  // mean sequences of a step
  double full_of_sequences = 0, full_of_tokens = 0;  // shares of the steps
  int kv_blocks = 0;
  double kv_share = 0, kv_share_peak = 0;  // of the blocks; mean over time
  uint64_t steps = 0, preemptions = 0;
};

struct LinkSummary {
  std::string name;  // "a100-0 to l4-3"
  double busy_share = 0;
};

struct SimReport {
  std::string deployment, cost_from, workload;  // for the reader
  std::optional<double> rate;                   // asked for; none: all at once
  SloTarget target;
  LatencyReport latency;  // of all runs together
  std::vector<uint64_t> seeds;
  std::vector<double> attainment;        // per seed
  std::optional<Saturation> saturation;  // of the worst seed
  std::vector<InstanceSummary> instances;
  std::vector<LinkSummary> links;  // of a plan, the busiest first
  uint64_t steps = 0;
  Quantiles kv_wait, kv_transfer;              // of hand-overs between instances
  std::optional<MembershipReport> membership;  // of all runs together
  double simulated_s = 0;                      // the same
  std::optional<double> usd_per_hour;  // of all instances; in the mean, where they come and go

  double requests_per_s() const;
  double output_tokens_per_s() const;
  double total_tokens_per_s() const;
  std::optional<double> usd_per_million_output_tokens() const;
  bool meets_target() const { return !saturation && target.MetBy(latency); }
  // Which resource ends first: "KV memory of instance 0 (...)", or that none does yet.
  std::string Bottleneck() const;
};

// Fills in everything that follows from the runs. Instances without a name get "instance N".
// REQUIRES: as many runs as seeds, at least one.
void Summarize(std::span<const ServiceReport> runs, SimReport& report);

std::string ReportTable(const SimReport& report);
Json ReportJson(const SimReport& report);
std::string ReportCsvHeader();
std::string ReportCsvRow(const SimReport& report);

}  // namespace millrace::sim
