#include "serve/observe/slo_metrics.h"

#include <gtest/gtest.h>

#include <map>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using Values = std::map<std::string, double>;

// Without the prefix "millrace_slo_", with the labels' values: "requests_missed_total/ttft/queue".
Values ValuesOf(const prometheus::Registry& registry) {
  Values values;
  for (const auto& family : registry.Collect()) {
    for (const auto& metric : family.metric) {
      std::string key = family.name.substr(std::string("millrace_slo_").size());
      for (const auto& label : metric.label) key += "/" + label.value;
      values[key] =
          family.type == prometheus::MetricType::Gauge ? metric.gauge.value : metric.counter.value;
    }
  }
  return values;
}

AnsweredRequest Answer(double queue_s, double prefill_s, double hold_s, double transfer_s,
                       double decode_s, int tokens) {
  const auto seconds = [](double s) { return Duration::Seconds(s); };
  return {.ttft = seconds(queue_s + prefill_s),
          .after_first = seconds(hold_s + transfer_s + decode_s),
          .tokens = tokens,
          .phases = {seconds(queue_s), seconds(prefill_s), seconds(hold_s), seconds(transfer_s),
                     seconds(decode_s)}};
}

TEST(SloMetrics, CountsWhatWasKeptAndWhatAMissWasSpentOn) {
  prometheus::Registry registry;
  SloMetrics slo({.ttft_s = 1, .tpot_s = 0.1, .attainment = 0.95}, {}, registry);
  slo.Answered(Answer(0.2, 0.3, 0, 0, 0.9, 10));  // keeps both
  slo.Answered(Answer(0.2, 0.3, 0, 0, 9, 1));     // one token has no TPOT
  slo.Answered(Answer(0.8, 0.3, 0, 0, 0.9, 10));
  slo.Answered(Answer(0.1, 2, 0, 0, 0.9, 10));
  slo.Answered(Answer(0.1, 0.2, 0, 0, 2, 11));
  slo.Answered(Answer(0.1, 0.2, 2, 0.5, 1, 11));
  slo.Answered(Answer(5, 0.2, 0.5, 2, 1, 11));  // misses both
  slo.Failed();
  slo.Refused();
  const Values values = ValuesOf(registry);
  const Values expected = {{"requests_total", 9},
                           {"requests_kept_total", 2},
                           {"requests_missed_total/ttft/queue", 2},
                           {"requests_missed_total/ttft/prefill", 1},
                           {"requests_missed_total/ttft/failed", 1},
                           {"requests_missed_total/ttft/refused", 1},
                           {"requests_missed_total/tpot/decode", 1},
                           {"requests_missed_total/tpot/hold", 1},
                           {"requests_missed_total/tpot/transfer", 1},
                           {"requests_missed_total/tpot/failed", 1},
                           {"requests_missed_total/tpot/refused", 1},
                           {"limit_seconds/ttft", 1},
                           {"limit_seconds/tpot", 0.1},
                           {"attainment_target", 0.95}};
  EXPECT_EQ(values, expected);
}

TEST(SloMetrics, OneLimitAloneIsCounted) {
  prometheus::Registry registry;
  SloMetrics slo({.tpot_s = 1}, {}, registry);
  slo.Answered(Answer(100, 100, 0, 0, 1, 10));
  slo.Refused();
  const Values values = ValuesOf(registry);
  EXPECT_EQ(values.at("requests_kept_total"), 1);
  EXPECT_EQ(values.at("requests_missed_total/tpot/refused"), 1);
  EXPECT_FALSE(values.contains("requests_missed_total/ttft/refused"));
}

TEST(EarlyRefusal, SaysWhenToTryAgain) {
  const LatencyLimits limits{.ttft_s = 2};
  EXPECT_FALSE(EarlyRefusal(limits, 1.5, Duration::Seconds(3)));
  const auto refused = EarlyRefusal(limits, 1.5, Duration::Seconds(7.2));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->code, "rate_limit_exceeded");
  EXPECT_EQ(refused->retry_after_s, 5);
  EXPECT_EQ(refused->message,
            "The server is overloaded: the first token is predicted after 7.2 s, and requests are "
            "refused beyond 3 s; try again in 5 s.");
}

TEST(EarlyRefusal, TheServerJudgesAndRefuses) {
  TestServerOptions options;
  options.service.limits = {.ttft_s = 1e-9, .tpot_s = 1e9};
  options.service.refuse_beyond = 1;
  TestServer server(options);
  const Json asked = {{"prompt", std::string(100, 'a')}, {"max_tokens", 3}};
  server.Call("/v1/completions", asked);  // no rate is known
  auto reply = server.Post("/v1/completions", asked);
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 429);
  EXPECT_EQ(reply->Header("retry-after"), "1");
  auto scrape = server.Start("GET", "/metrics");
  for (const char* line :
       {"millrace_slo_requests_total{", "} 2\n", "limit=\"ttft\",phase=\"refused\"} 1\n",
        "limit=\"tpot\",phase=\"refused\"} 1\n"}) {
    EXPECT_NE(scrape->body().find(line), std::string::npos) << line << scrape->body();
  }
}

TEST(AnswerMetrics, TellWhatTheTimeWentInto) {
  TestServer server;
  Json asked = {{"prompt", "abc"}, {"max_tokens", 8}, {"return_metrics", true}};
  EXPECT_FALSE(server.Call("/v1/completions", {{"prompt", "abc"}}).contains("metrics"));
  const Json whole = server.Call("/v1/completions", asked);
  ASSERT_TRUE(whole.contains("metrics")) << whole;
  asked["stop"] = "o";  // its end follows the stop string
  const Json stopped = server.Call("/v1/completions", asked);
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  asked.erase("stop");
  asked["stream_options"] = {{"include_usage", true}};
  const Json last = server.Stream("/v1/completions", asked).back();
  for (const Json& answer : {whole, stopped, last}) {
    const Json& metrics = answer["metrics"];
    EXPECT_EQ(metrics.size(), 7u) << answer;
    double sum = 0;
    for (const char* phase : {"queue_s", "prefill_s", "hold_s", "transfer_s", "decode_s"}) {
      EXPECT_GE(metrics[phase].get<double>(), 0);
      sum += metrics[phase].get<double>();
    }
    EXPECT_GT(sum, 0);
    EXPECT_LE(sum, metrics["e2e_s"].get<double>()) << "it began and ended within the front end's";
    EXPECT_LE(metrics["ttft_s"].get<double>(), metrics["e2e_s"].get<double>());
  }
}

TEST(AnswerMetrics, AreOfOnePromptAndInAnEventOfTheirOwn) {
  TestServer server;
  Json asked = {{"prompt", {"a", "b"}}, {"return_metrics", true}};
  server.Call("/v1/completions", asked, 400);
  asked["prompt"] = "a";
  asked["stream"] = true;
  server.Call("/v1/completions", asked, 400);
  asked["return_metrics"] = 1;
  server.Call("/v1/completions", asked, 400);
}

}  // namespace
}  // namespace millrace::serve
