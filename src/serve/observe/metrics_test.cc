// /metrics: the text format, vLLM's names and buckets, and the sums that must match.
#include "serve/observe/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

// Returns "name{labels}" -> value; checks the format of every line.
std::map<std::string, double> Scrape(TestServer& server) {
  auto reply = server.Start("GET", "/metrics");
  EXPECT_EQ(reply->status(), 200);
  EXPECT_EQ(reply->Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  std::map<std::string, double> values;
  std::istringstream lines(reply->body());
  std::string line;
  const std::regex sample(R"(([a-zA-Z_:][a-zA-Z0-9_:]*(\{[^}]*\})?) (\S+))");
  while (std::getline(lines, line)) {
    if (line.rfind("# HELP ", 0) == 0 || line.rfind("# TYPE ", 0) == 0) continue;
    std::smatch match;
    EXPECT_TRUE(std::regex_match(line, match, sample)) << line;
    if (match.empty()) continue;
    EXPECT_TRUE(values.emplace(match[1], std::stod(match[3])).second) << "duplicate: " << line;
  }
  return values;
}

// The sum over every series of a name whose labels contain `part`.
double Sum(const std::map<std::string, double>& values, const std::string& name,
           const std::string& part = "") {
  double sum = 0;
  for (const auto& [key, value] : values) {
    if (key.substr(0, key.find('{')) == name && key.find(part) != std::string::npos) sum += value;
  }
  return sum;
}

double Balance(const std::map<std::string, double>& values) {
  return Sum(values, "millrace_requests_accepted_total") -
         Sum(values, "vllm:num_requests_running") - Sum(values, "vllm:num_requests_waiting") -
         Sum(values, "vllm:num_requests_swapped") - Sum(values, "millrace_requests_finished_total");
}

TEST(Metrics, RequestsAddUpAtEveryMoment) {
  TestServer server;
  EXPECT_EQ(Balance(Scrape(server)), 0);
  server.gate.Close();
  std::vector<std::shared_ptr<RecordingReply>> replies;
  for (int i = 0; i < 6; ++i) {
    replies.push_back(server.Post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 7}}));
  }
  auto values = Scrape(server);
  EXPECT_EQ(Balance(values), 0);
  EXPECT_EQ(Sum(values, "millrace_requests_accepted_total"), 6);
  EXPECT_EQ(Sum(values, "vllm:num_requests_running") + Sum(values, "vllm:num_requests_waiting"), 6);
  replies[0]->Disconnect();
  server.gate.Open();
  for (size_t i = 1; i < replies.size(); ++i) ASSERT_TRUE(replies[i]->WaitDone());
  ASSERT_TRUE(server.WaitUntilFree());
  server.service->Drain(Duration::Seconds(10));  // so that the last output is counted
  values = Scrape(server);
  EXPECT_EQ(Balance(values), 0);
  EXPECT_EQ(Sum(values, "vllm:request_success_total"), 6);
  EXPECT_EQ(Sum(values, "vllm:request_success_total", "length"), 5);
  EXPECT_EQ(Sum(values, "vllm:request_success_total", "abort"), 1);
  EXPECT_EQ(Sum(values, "vllm:num_requests_running"), 0) << "gauges are read at the scrape";
  EXPECT_EQ(Sum(values, "vllm:kv_cache_usage_perc"), 0);
}

TEST(Metrics, TokensAndLatenciesAddUp) {
  TestServer server;
  for (int i = 0; i < 3; ++i) {
    server.Call("/v1/completions", {{"prompt", "abcd"}, {"max_tokens", 6}});
  }
  server.Call("/v1/completions", {{"prompt", "abcd"}, {"max_tokens", 40}, {"stop", "wor"}});
  ASSERT_TRUE(server.WaitUntilFree());
  server.service->Drain(Duration::Seconds(10));
  const auto values = Scrape(server);
  EXPECT_EQ(Sum(values, "vllm:prompt_tokens_total"), 16);
  EXPECT_GE(Sum(values, "vllm:generation_tokens_total"), 3 * 6 + 9);
  EXPECT_EQ(Sum(values, "vllm:request_success_total", "\"stop\""), 1);
  EXPECT_EQ(Sum(values, "vllm:time_to_first_token_seconds_count"), 4);
  EXPECT_EQ(Sum(values, "vllm:inter_token_latency_seconds_count"), 3 * 5 + 8);
  EXPECT_EQ(Sum(values, "vllm:time_per_output_token_seconds_count"), 3 * 5 + 8);
  EXPECT_EQ(Sum(values, "vllm:e2e_request_latency_seconds_count"), 4);
  EXPECT_EQ(Sum(values, "vllm:request_generation_tokens_sum"), 3 * 6 + 9);
  EXPECT_EQ(Sum(values, "vllm:request_params_max_tokens_sum"), 3 * 6 + 40);
  EXPECT_EQ(Sum(values, "vllm:iteration_tokens_total_count"),
            Sum(values, "millrace_engine_steps_total"));
  EXPECT_EQ(Sum(values, "http_requests_total", "/v1/completions"), 4);
}

TEST(Metrics, NamesLabelsAndBucketsAreVllms) {
  TestServer server;
  server.Call("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}});
  auto reply = server.Start("GET", "/metrics");
  const std::string text = reply->body();
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
        "vllm:cache_config_info", "vllm:request_success_total"}) {
    EXPECT_NE(text.find(std::string("\n") + name + "{"), std::string::npos) << name;
  }
  EXPECT_NE(text.find("engine=\"0\",model_name=\"tiny\""), std::string::npos);
  const int blocks = static_cast<int>(Sum(Scrape(server), "millrace_kv_blocks"));
  EXPECT_GT(blocks, 0);
  EXPECT_NE(text.find("num_gpu_blocks=\"" + std::to_string(blocks) + '"'), std::string::npos);
  auto buckets = [&](const std::string& name) {
    std::string list;
    size_t at = 0;
    while ((at = text.find("\n" + name + "_bucket{", at)) != std::string::npos) {
      const size_t begin = text.find("le=\"", at) + 4;
      list += text.substr(begin, text.find('"', begin) - begin) + " ";
      ++at;
    }
    return list;
  };
  EXPECT_EQ(
      buckets("vllm:time_to_first_token_seconds"),
      "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 "
      "2560 +Inf ");
  EXPECT_EQ(buckets("vllm:inter_token_latency_seconds"),
            "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80 +Inf ");
  EXPECT_EQ(buckets("vllm:e2e_request_latency_seconds"),
            "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680 +Inf ");
  EXPECT_EQ(buckets("vllm:iteration_tokens_total"),
            "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 +Inf ");
  EXPECT_EQ(buckets("vllm:request_prompt_tokens"), "1 2 5 10 20 50 100 200 +Inf ");
}

TEST(Metrics, ClientsCannotAddSeries) {
  TestServer server;
  for (int i = 0; i < 50; ++i) {
    server.Start("METHOD" + std::to_string(i), "/path" + std::to_string(i));
  }
  const auto values = Scrape(server);
  int series = 0;
  for (const auto& [key, value] : values) series += key.rfind("http_requests_total", 0) == 0;
  EXPECT_EQ(series, 1);
  EXPECT_EQ(Sum(values, "http_requests_total", "handler=\"none\""), 50);
}

// vLLM's dashboards query status=~"5..", which matches "5xx". Routes of monitors are not counted.
TEST(Metrics, HttpRequestsAreCountedByClassOfStatusWithoutProbes) {
  TestServer server;
  server.Call("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}});
  server.Call("/v1/completions", {{"prompt", 5}}, 400);
  server.Call("/v1/completions", {{"prompt", "\x01"}, {"max_tokens", 1}}, 500);
  server.gate.Close();
  server.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}})->Disconnect();  // 499
  server.gate.Open();
  ASSERT_TRUE(server.WaitUntilFree());
  for (const char* path : {"/health", "/ready", "/version", "/metrics"}) server.Start("GET", path);
  server.service->Drain(Duration::Seconds(10));
  const auto values = Scrape(server);
  const std::string name = "http_requests_total";
  EXPECT_EQ(Sum(values, name), 4);
  EXPECT_EQ(Sum(values, name, "status=\"2xx\""), 1);
  EXPECT_EQ(Sum(values, name, "status=\"4xx\""), 2);
  EXPECT_EQ(Sum(values, name, "status=\"5xx\""), 1);
  EXPECT_EQ(Sum(values, "http_request_duration_seconds_count"), 4);
}

TEST(Metrics, SleepStateAndReasonsOfWaitingAreThere) {
  TestServer server({.num_blocks = 20});
  auto values = Scrape(server);
  const std::string sleep = "vllm:engine_sleep_state";
  EXPECT_EQ(Sum(values, sleep, "sleep_state=\"awake\""), 1);
  EXPECT_EQ(Sum(values, sleep, "sleep_state=\"weights_offloaded\""), 0);
  EXPECT_EQ(Sum(values, sleep, "sleep_state=\"discard_all\""), 0);
  EXPECT_EQ(Sum(values, sleep), 1);
  server.gate.Close();
  std::vector<std::shared_ptr<RecordingReply>> replies;
  for (int i = 0; i < 6; ++i) {
    replies.push_back(server.Post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 200}}));
  }
  values = Scrape(server);
  const std::string waiting = "vllm:num_requests_waiting_by_reason";
  EXPECT_EQ(Sum(values, waiting), Sum(values, "vllm:num_requests_waiting"));
  server.gate.Open();
  for (auto& reply : replies) ASSERT_TRUE(reply->WaitDone());

  cluster::GeneratorStats stats;
  stats.scheduler.waiting = 2;
  stats.scheduler.pulling = 3;
  std::map<std::string, double> of;
  for (const auto& family : ModelMetrics("m", 100, {}).Collect(stats)) {
    for (const auto& metric : family.metric) {
      std::string key = family.name;
      for (const auto& label : metric.label) {
        if (label.name == "reason") key += "/" + label.value;
      }
      of[key] = metric.gauge.value;
    }
  }
  EXPECT_EQ(of["vllm:num_requests_waiting"], 5);
  EXPECT_EQ(of[waiting + "/capacity"], 2);
  EXPECT_EQ(of[waiting + "/deferred"], 3);
}

TEST(Metrics, TheProcessIsDescribed) {
  TestServer server;
  const auto values = Scrape(server);
  EXPECT_GT(Sum(values, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(Sum(values, "process_cpu_seconds_total"), 0);
  EXPECT_GT(Sum(values, "process_open_fds"), 2);
  const double started = Sum(values, "process_start_time_seconds");
  EXPECT_NEAR(started, static_cast<double>(std::time(nullptr)), 3600);
}

TEST(Metrics, QueueAndPrefillCountAPreemptionInDecodeAsDecode) {
  ModelMetrics metrics("m", 100, {});
  auto at = [](double s) { return Time{} + Duration::Seconds(s); };
  FinishedRequest request{.reason = "stop", .generation_tokens = 3, .longest_generation_tokens = 3};
  request.times = RequestTimes{.arrived = at(0),
                               .first_scheduled = at(1),
                               .last_scheduled = at(5),
                               .first_token = at(2),
                               .last_token = at(8)};
  metrics.ObserveFinished(request);
  std::map<std::string, double> sums;
  for (const auto& family : metrics.Collect(cluster::GeneratorStats{})) {
    if (family.type != prometheus::MetricType::Histogram) continue;
    sums[family.name] = family.metric.front().histogram.sample_sum;
  }
  EXPECT_DOUBLE_EQ(sums["vllm:request_queue_time_seconds"], 1);
  EXPECT_DOUBLE_EQ(sums["vllm:request_prefill_time_seconds"], 1);
  EXPECT_DOUBLE_EQ(sums["vllm:request_decode_time_seconds"], 6);
  EXPECT_DOUBLE_EQ(sums["vllm:request_time_per_output_token_seconds"], 3);
}

}  // namespace
}  // namespace millrace::serve
