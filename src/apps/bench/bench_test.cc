#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "apps/bench/metrics.h"
#include "apps/bench/workload.h"
#include "base/statistics.h"
#include "sim/load/arrivals.h"
#include "sim/load/trace.h"

namespace millrace::apps {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Mean and variance of Gamma gaps: 1 / rate and 1 / (burstiness * rate^2).
TEST(Arrivals, GapsHaveTheMomentsOfTheirDistribution) {
  constexpr int kCount = 40000;
  for (double burstiness : {0.25, 1.0, 4.0}) {
    const auto times = sim::ArrivalTimes(kCount, 5, burstiness, 11);
    std::vector<double> gaps;
    double last = 0;
    for (double time : times) {
      EXPECT_GE(time, last);
      gaps.push_back(time - last);
      last = time;
    }
    EXPECT_NEAR(Mean(gaps) * 5, 1, 0.03) << burstiness;
    EXPECT_NEAR(StdDev(gaps) * 5 * std::sqrt(burstiness), 1, 0.05) << burstiness;
    if (burstiness == 1) {  // exponential gaps: P(gap > mean) = 1/e
      const auto over = std::count_if(gaps.begin(), gaps.end(), [](double g) { return g > 0.2; });
      EXPECT_NEAR(static_cast<double>(over) / kCount, std::exp(-1.0), 0.01);
    }
  }
  EXPECT_EQ(sim::ArrivalTimes(3, kInfinity, 1, 0), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(sim::ArrivalTimes(2, 4, kInfinity, 0), (std::vector<double>{0.25, 0.5}));
  EXPECT_EQ(sim::ArrivalTimes(9, 4, 0.5, 7), sim::ArrivalTimes(9, 4, 0.5, 7));
}

TEST(Trace, ReadsAzureTimesAndLengths) {
  auto entries = sim::ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-12-31 23:59:59.5000000,374,44\r\n"
      "2024-01-01 00:00:01.7500000,396,109\r\n",
      10);
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].input_tokens, 374);
  EXPECT_EQ((*entries)[1].output_tokens, 109);
  EXPECT_NEAR((*entries)[1].arrival_s, 2.25, 1e-6);
  sim::RescaleRate(*entries, 10);
  EXPECT_NEAR((*entries)[1].arrival_s, 0.1, 1e-9);
}

TEST(Trace, ReadsMooncakeLines) {
  auto entries = sim::ParseTrace(
      R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]})"
      "\n\n"
      R"({"timestamp": 3000, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]})",
      10);
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  EXPECT_EQ((*entries)[1].input_tokens, 700);
  EXPECT_DOUBLE_EQ((*entries)[1].arrival_s, 2);
}

TEST(Trace, ErrorsNameTheLine) {
  const auto error = [](std::string_view text) {
    return sim::ParseTrace(text, 10).status().message();
  };
  EXPECT_NE(error("a,b\n1,2\n").find("the columns must be"), std::string::npos);
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_NE(error(header + "2023-11-16 18:15:46,1,x\n").find("line 2: GeneratedTokens"),
            std::string::npos);
  EXPECT_NE(error(header + "2023-13-16 18:15:46,1,2\n").find("line 2: TIMESTAMP"),
            std::string::npos);
  EXPECT_NE(error(header + "2023-11-16 18:15:46,1\n").find("too few"), std::string::npos);
  EXPECT_NE(error("{\"timestamp\": \"x\"}\n").find("line 1: 'timestamp'"), std::string::npos);
  EXPECT_NE(error("{\"timestamp\": 1, \"input_length\": -5}\n").find("input_length"),
            std::string::npos);
  EXPECT_NE(error(header).find("holds no request"), std::string::npos);
}

TEST(Workload, RandomLengthsAreExactAndRepeatable) {
  WorkloadOptions options;
  options.num_prompts = 200;
  options.input_len = 100;
  options.output_len = 10;
  options.prefix_len = 7;
  options.range_ratio = 0.5;
  options.vocab_size = 50;
  const auto a = MakeWorkload(options), b = MakeWorkload(options);
  ASSERT_TRUE(a.ok());
  std::set<size_t> lengths;
  for (size_t i = 0; i < a->size(); ++i) {
    const BenchRequest& r = (*a)[i];
    EXPECT_EQ(r.prompt, (*b)[i].prompt);
    lengths.insert(r.prompt.size());
    EXPECT_GE(r.prompt.size(), 57u);
    EXPECT_LE(r.prompt.size(), 157u);
    EXPECT_GE(r.output_len, 5);
    EXPECT_LE(r.output_len, 15);
    EXPECT_TRUE(std::equal(r.prompt.begin(), r.prompt.begin() + 7, (*a)[0].prompt.begin()));
    for (TokenId id : r.prompt) EXPECT_TRUE(id >= 0 && id < 50);
  }
  EXPECT_GT(lengths.size(), 50u);
  options.seed = 1;
  EXPECT_NE((*MakeWorkload(options))[0].prompt, (*a)[0].prompt);
}

TEST(Workload, OrcaIsUniformIn32To512And1To128) {
  WorkloadOptions options;
  options.dataset = DatasetName::kOrca;
  options.num_prompts = 20000;
  const auto requests = MakeWorkload(options);
  ASSERT_TRUE(requests.ok());
  double input = 0, output = 0;
  size_t shortest = 1000, longest = 0;
  for (const BenchRequest& r : *requests) {
    input += static_cast<double>(r.prompt.size());
    output += r.output_len;
    shortest = std::min(shortest, r.prompt.size());
    longest = std::max(longest, r.prompt.size());
  }
  EXPECT_EQ(shortest, 32u);
  EXPECT_EQ(longest, 512u);
  EXPECT_NEAR(input / 20000, 272, 4);
  EXPECT_NEAR(output / 20000, 64.5, 1);
}

TEST(Workload, DefaultLengthsFitIntoASmallContext) {
  const auto fitted = [](int tokens, bool input_given, bool output_given, WorkloadOptions options) {
    const bool lowered = FitLengths(tokens, input_given, output_given, options);
    EXPECT_EQ(lowered, options.input_len != 1024 || options.output_len != 128);
    return std::pair(options.input_len, options.output_len);
  };
  EXPECT_EQ(fitted(1152, false, false, {}), std::pair(1024, 128));
  EXPECT_EQ(fitted(1024, false, false, {}), std::pair(896, 128));
  EXPECT_EQ(fitted(100, false, false, {}), std::pair(68, 32));
  EXPECT_EQ(fitted(1024, true, false, {}), std::pair(1024, 1)) << "the server refuses it";
  EXPECT_EQ(fitted(1024, false, true, {}), std::pair(896, 128));
  EXPECT_EQ(fitted(100, true, true, {}), std::pair(1024, 128));
  EXPECT_EQ(fitted(1024, false, false, {.prefix_len = 100}), std::pair(796, 128));
  EXPECT_EQ(fitted(1024, false, false, {.range_ratio = 0.5}), std::pair(554, 128));
  EXPECT_EQ(fitted(100, false, false, {.dataset = DatasetName::kOrca}), std::pair(1024, 128));
}

class WorkloadFile : public testing::Test {
 protected:
  WorkloadOptions Write(DatasetName dataset, const std::string& text) {
    WorkloadOptions options;
    options.dataset = dataset;
    options.path = testing::TempDir() + "/workload_test_" + std::to_string(getpid());
    std::ofstream(options.path) << text;
    return options;
  }
};

TEST_F(WorkloadFile, MooncakePromptsShareTokensWhereHashIdsAreEqual) {
  const auto requests = MakeWorkload(Write(
      DatasetName::kTrace,
      R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"timestamp": 1, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 4]})"));
  ASSERT_TRUE(requests.ok()) << requests.status().ToString();
  const auto& a = (*requests)[0].prompt;
  const auto& b = (*requests)[1].prompt;
  EXPECT_EQ(a.size(), 1100u);
  EXPECT_EQ(b.size(), 1030u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 1024, b.begin()));
  EXPECT_FALSE(std::equal(b.begin() + 1024, b.end(), a.begin() + 1024));
}

TEST_F(WorkloadFile, CustomLinesHoldTextsOrTokens) {
  const auto requests =
      MakeWorkload(Write(DatasetName::kCustom,
                         "{\"prompt\": \"hello\"}\n{\"prompt\": [1, 2], \"output_tokens\": 9}\n"));
  ASSERT_TRUE(requests.ok()) << requests.status().ToString();
  EXPECT_EQ((*requests)[0].prompt_text, "hello");
  EXPECT_EQ((*requests)[0].output_len, 256);
  EXPECT_EQ((*requests)[1].prompt, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ((*requests)[1].output_len, 9);
  for (const char* bad : {"{}\n", "[]\n", "{\"prompt\": []}\n", "{\"prompt\": [-1]}\n", "x\n", "",
                          "{\"prompt\": \"a\", \"output_tokens\": 0}\n"}) {
    EXPECT_FALSE(MakeWorkload(Write(DatasetName::kCustom, bad)).ok()) << bad;
  }
}

Outcome Done(double start, double ttft, std::vector<double> itls) {
  Outcome o;
  o.prompt_tokens = 10;
  o.output_tokens = 1 + static_cast<int>(itls.size());
  o.start_s = start;
  o.ttft_s = ttft;
  o.latency_s = ttft;
  for (double itl : itls) o.latency_s += itl;
  o.itls_s = std::move(itls);
  return o;
}

TEST(Metrics, CountsRequestsTokensAndTimes) {
  std::vector<Outcome> outcomes = {Done(0, 0.1, {0.1, 0.3}), Done(0.2, 0.5, {}),
                                   Done(2, 0.1, {0.1})};
  outcomes.push_back({});
  outcomes.back().error = "503: queue\nfull";
  ReportOptions options;
  options.duration_s = 4;
  options.request_rate = 2;
  options.max_concurrency = 8;
  options.goodput = *ParseGoodputLimits({"ttft:200", "tpot:150"});
  options.metrics = {"ttft", "tpot", "itl", "e2el"};
  options.percentiles = {50, 99.9};
  options.orca = true;
  const Report report = MakeReport(outcomes, options);
  const Json& json = report.json;
  EXPECT_EQ(json["completed"], 3);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["total_output_tokens"], 6);
  EXPECT_DOUBLE_EQ(json["request_throughput"], 0.75);
  EXPECT_DOUBLE_EQ(json["request_goodput"], 0.25);  // only the third meets both limits
  EXPECT_DOUBLE_EQ(json["attainment"], 0.25);       // the failed request counts
  EXPECT_DOUBLE_EQ(json["attainment_target"], 0.9);
  EXPECT_EQ(json["attainment_kept"], false);
  EXPECT_DOUBLE_EQ(json["total_token_throughput"], 9);
  EXPECT_EQ(json["max_concurrent_requests"], 2);
  EXPECT_EQ(json["max_output_tokens_per_s"], 4);
  // The answer with one token has no TPOT.
  EXPECT_NEAR(json["mean_tpot_ms"].get<double>(), 150, 1e-9);
  EXPECT_NEAR(json["median_e2el_ms"].get<double>(), 500, 1e-9);
  EXPECT_TRUE(json.contains("p99.9_itl_ms") && json.contains("p50_ttft_ms"));
  EXPECT_TRUE(json.contains("std_e2el_ms"));
  EXPECT_NEAR(json["median_normalized_latency_ms"].get<double>(), 500.0 / 3, 1e-9);
  EXPECT_EQ(json["errors"].size(), 4u);
  for (const char* line :
       {"Error 0: 503: queue\\nfull\n", "============ Serving Benchmark Result ============\n",
        "Successful requests:                     3         \n",
        "Request rate configured (RPS):           2.00      \n",
        "Maximum request concurrency:             8         \n",
        "Request goodput (req/s):                 0.25      \n",
        "Requests within the limits (%):          25.00     \n",
        "---------------Time to First Token----------------\n",
        "-----Time per Output Token (excl. 1st token)------\n",
        "P99.9 ITL (ms):", "==================================================\n"}) {
    EXPECT_NE(report.table.find(line), std::string::npos) << line << "\n" << report.table;
  }
}

TEST(Metrics, ARunWithoutSuccessesIsReported) {
  ReportOptions options;
  options.duration_s = 1;
  options.request_rate = kInfinity;
  const Report report = MakeReport({}, options);
  EXPECT_EQ(report.json["mean_ttft_ms"], 0);
  EXPECT_EQ(report.table.find("Request rate configured"), std::string::npos);
  EXPECT_TRUE(report.json["request_goodput"].is_null());
}

TEST(Metrics, OptionTextsAreChecked) {
  EXPECT_FALSE(ParseGoodputLimits({"ttft"}).ok());
  EXPECT_FALSE(ParseGoodputLimits({"ttft:x"}).ok());
  EXPECT_FALSE(ParseGoodputLimits({"itl:5"}).ok());
  EXPECT_FALSE(ParseGoodputLimits({"ttft:-1"}).ok());
  EXPECT_FALSE(ParseMetricNames("ttft,latency").ok());
  EXPECT_FALSE(ParsePercentiles("50,").ok());
  EXPECT_FALSE(ParsePercentiles("101").ok());
  EXPECT_EQ(*ParsePercentiles("25,50,99.9"), (std::vector<double>{25, 50, 99.9}));
}

}  // namespace
}  // namespace millrace::apps
