#include "sim/report/report.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace::sim {
namespace {

class TenMillis : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& batch) const override { return batch.empty() ? 0 : 0.01; }
};

// One sequence per step of 10 ms: one-token requests form an M/D/1 queue with 100 per second.
ServiceReport RunQueue(double rate, uint64_t requests, uint64_t seed, int output_tokens = 1) {
  static const TenMillis cost;
  InstanceOptions instance;
  instance.stages = {&cost};
  instance.scheduler.num_blocks = 64;
  instance.scheduler.max_num_seqs = 1;
  instance.scheduler.max_num_batched_tokens = 256;
  instance.scheduler.max_model_len = 512;
  instance.scheduler.max_waiting = 1 << 20;
  instance.scheduler.prefix_caching = false;
  const LatencyLimits limits{.ttft_s = 0.05};
  auto service = Service::Create({.instances = {instance}, .limits = limits});
  EXPECT_TRUE(service.ok());
  return (*service)->Run(*NewSynthetic({.requests = requests,
                                        .rate = rate,
                                        .prompt = {.a = 16},
                                        .output = {.a = static_cast<double>(output_tokens)},
                                        .seed = seed}));
}

SimReport ReportOf(double rate, uint64_t requests, std::vector<uint64_t> seeds) {
  std::vector<ServiceReport> runs;
  for (const uint64_t seed : seeds) runs.push_back(RunQueue(rate, requests, seed, 2));
  SimReport report;
  report.deployment = "a queue";
  report.cost_from = "a constant";
  report.workload = "a stream";
  report.rate = rate;
  report.seeds = std::move(seeds);
  report.limits = {.ttft_s = 0.05, .attainment = 0.9};
  report.usd_per_hour = 3.6;
  Summarize(runs, report);
  return report;
}

TEST(SaturationTest, TellsAFullQueueFromAFluctuatingOne) {
  int alarms = 0, missed = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const double load : {0.3, 0.8, 0.95}) {
      alarms += FindSaturation(RunQueue(100 * load, 4000, seed).load).has_value();
    }
    for (const double load : {1.1, 1.5, 4.0}) {
      missed += !FindSaturation(RunQueue(100 * load, 4000, seed).load).has_value();
    }
  }
  EXPECT_LE(alarms, 1) << "of 60";
  EXPECT_EQ(missed, 0) << "of 60";
}

TEST(SaturationTest, TheGrowthIsWhatIsNotServed) {
  const auto found = FindSaturation(RunQueue(150, 8000, 1).load);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->arrivals_per_s, 150, 10);
  EXPECT_NEAR(found->growth_per_s, 50, 8);
  EXPECT_FALSE(FindSaturation({}));
  EXPECT_FALSE(FindSaturation(RunQueue(std::numeric_limits<double>::infinity(), 4000, 1).load));
}

TEST(MeanIntervalTest, IsStudents) {
  EXPECT_EQ(MeanInterval({}).mean, 0);
  const std::vector<double> one = {3}, four = {1, 2, 3, 4};
  EXPECT_EQ(MeanInterval(one).low, 3);
  const Interval i = MeanInterval(four);  // s = 1.29099, t(3) = 3.182
  EXPECT_DOUBLE_EQ(i.mean, 2.5);
  EXPECT_NEAR(i.high - i.mean, 3.182 * 1.2909944 / 2, 1e-6);
  EXPECT_NEAR(i.mean - i.low, i.high - i.mean, 1e-12);
}

TEST(ReportTest, AddsSeedsUp) {
  const SimReport report = ReportOf(20, 3000, {1, 2, 3});
  EXPECT_EQ(report.latency.requests, 9000u);
  EXPECT_EQ(report.attainment.size(), 3u);
  EXPECT_FALSE(report.saturation);
  EXPECT_NEAR(report.requests_per_s(), 20, 1);
  EXPECT_NEAR(report.output_tokens_per_s(), 40, 2);
  EXPECT_NEAR(*report.usd_per_million_output_tokens(), 25, 1.5);  // 0.001 USD/s over 40 tokens/s
  EXPECT_NEAR(report.instances[0].busy_share[0], 0.4, 0.02);
  EXPECT_EQ(report.instances[0].batch, 1);
  EXPECT_TRUE(report.meets_target());
  const Json json = ReportJson(report);
  EXPECT_EQ(json["requests"], 9000);
  EXPECT_EQ(json["saturated"], false);
  EXPECT_NEAR(json["tpot_ms"]["mean"].get<double>(), 10, 0.01);
  EXPECT_EQ(json["slo"]["kept"], true);
  const std::string table = ReportTable(report);
  EXPECT_NE(table.find("TTFT within 50 ms"), std::string::npos) << table;
  EXPECT_NE(table.find("Bottleneck: none at this load; the busiest stage has"), std::string::npos)
      << table;
}

TEST(ReportTest, SaysHowMuchThePrefixCacheFound) {
  SimReport report = ReportOf(20, 500, {1});
  EXPECT_EQ(ReportTable(report).find("Prefix cache"), std::string::npos) << "it was off";
  EXPECT_TRUE(ReportJson(report)["prefix_hit_rate"].is_null());
  report.prefix_query_tokens = 4000;
  report.prefix_hit_tokens = 1500;
  EXPECT_NE(ReportTable(report).find("Prefix cache: 37.50 % of 4,000 prompt tokens found"),
            std::string::npos);
  EXPECT_EQ(ReportJson(report)["prefix_hit_rate"], 0.375);
}

TEST(ReportTest, SaysSaturatedInsteadOfALatency) {
  const SimReport report = ReportOf(100, 3000, {1});
  ASSERT_TRUE(report.saturation);
  EXPECT_FALSE(report.meets_target());
  const std::string table = ReportTable(report);
  EXPECT_NE(table.find("SATURATED"), std::string::npos);
  EXPECT_NE(table.find("TTFT                   -  (the queue grows"), std::string::npos) << table;
  EXPECT_NE(table.find("Bottleneck: the most sequences in a step"), std::string::npos) << table;
  EXPECT_TRUE(ReportJson(report)["ttft_ms"].is_null());
  EXPECT_FALSE(ReportJson(report)["tpot_ms"].is_null());
}

// "The time of stage 0" would send its reader to buy machines.
TEST(ReportTest, ATightLimitOfTpotIsTheBottleneckThatItIs) {
  SimReport report = ReportOf(100, 3000, {1});
  ASSERT_TRUE(report.saturation);
  report.instances[0].full_of_sequences = 0.1;
  EXPECT_EQ(report.Bottleneck().find("the time of instance 0"), 0u) << report.Bottleneck();
  report.limits.tpot_s = 0.0105;
  EXPECT_EQ(
      report.Bottleneck().find("the limit tpot=10.5ms: steps are kept short for it, so prompts "
                               "wait (mean TPOT 10 ms); "),
      0u)
      << report.Bottleneck();
}

TEST(ReportTest, CsvRowsHaveTheHeadersColumns) {
  const auto commas = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  for (const double rate : {20.0, 100.0}) {
    const std::string row = ReportCsvRow(ReportOf(rate, 1500, {1}));
    EXPECT_EQ(commas(row), commas(ReportCsvHeader())) << row;
    EXPECT_EQ(row.substr(0, row.find(',')), rate == 20 ? "20" : "100");
  }
}

}  // namespace
}  // namespace millrace::sim
