// Trace contexts, and the spans of a request.
#include "serve/observe/request_spans.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace millrace::serve {
namespace {

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, FollowsAValidParent) {
  const TraceContext trace = TraceOf(kParent, {0xabc, 1, 2});
  EXPECT_EQ(trace.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(trace.parent_id, "b7ad6b7169203331");
  EXPECT_EQ(trace.span_id, "0000000000000abc");
  EXPECT_EQ(trace.Header(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000abc-01");
  std::string unsampled(kParent);
  unsampled.back() = '2';
  EXPECT_FALSE(TraceOf(unsampled, {1, 1, 1}).sampled) << "only the lowest bit counts";
  EXPECT_TRUE(TraceOf(kParent, {1, 1, 1}).sampled);
  const std::string later = "cc" + std::string(kParent).substr(2) + "-more";
  EXPECT_EQ(TraceOf(later, {1, 1, 1}).parent_id, "b7ad6b7169203331") << "of a later version";
}

TEST(TraceContext, BeginsATraceIfTheParentIsNotValid) {
  for (const std::string& wrong :
       {std::string(), std::string("00"), std::string(kParent).substr(0, 54),
        std::string(kParent) + "0", std::string(kParent) + "-more",
        "ff" + std::string(kParent).substr(2),
        std::string("00-00000000000000000000000000000000-b7ad6b7169203331-01"),
        std::string("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"),
        std::string("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"),
        std::string("00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}) {
    const TraceContext trace = TraceOf(wrong, {7, 0x11, 0x22});
    EXPECT_EQ(trace.trace_id, "00000000000000110000000000000022") << wrong;
    EXPECT_EQ(trace.parent_id, "") << wrong;
    EXPECT_TRUE(trace.sampled);
  }
  EXPECT_EQ(TraceOf({}, {0, 0, 0}).span_id, "0000000000000001") << "ids are never 0";
}

Time At(int64_t ms) { return Time{} + Duration::Millis(ms); }

RegistryEntry Ended() {
  TimeAccount account(At(1010));
  account.Spend(TimeUse::kQueue, TimeCause::kBlocks, At(1100));
  account.NewEpisode();
  account.Spend(TimeUse::kPrefill, TimeCause::kNone, At(1150)).tokens = 12;
  account.Spend(TimeUse::kDecode, TimeCause::kNone, At(1400)).steps = 9;
  RegistryEntry entry{.id = RequestId(17),
                      .response_id = "cmpl-1",
                      .route = "/v1/completions",
                      .prompt_tokens = 12,
                      .arrived = At(1000),
                      .asked = {.max_tokens = 10, .temperature = 0.5, .top_p = 0.9},
                      .trace = TraceOf(kParent, {0xabc, 1, 2})};
  entry.finish_reason = "length";
  entry.generation_tokens = 10;
  entry.times = RequestTimes{.arrived = At(1010),
                             .first_scheduled = At(1100),
                             .last_scheduled = At(1100),
                             .first_token = At(1150),
                             .last_token = At(1400)};
  entry.account = std::make_shared<const TimeAccount>(account);
  entry.delivered = At(1405);
  return entry;
}

std::map<std::string, Json> AttributesOf(const Json& span) {
  std::map<std::string, Json> attributes;
  for (const Json& a : span["attributes"]) attributes[a["key"]] = a["value"];
  return attributes;
}

TEST(RequestSpans, SayWhatTheRequestWasAndWhereItsTimeWent) {
  constexpr int64_t kZero = 1'700'000'000'000'000'000;
  const std::vector<Json> spans = SpansOf(Ended(), "demo", kZero);
  ASSERT_EQ(spans.size(), 6u);
  const Json& root = spans[0];
  EXPECT_EQ(root["name"], "llm_request");
  EXPECT_EQ(root["kind"], 2);
  EXPECT_EQ(root["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(root["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(root["spanId"], "0000000000000abc");
  EXPECT_EQ(root["startTimeUnixNano"], "1700000001000000000");
  EXPECT_EQ(root["endTimeUnixNano"], "1700000001405000000");
  EXPECT_FALSE(root.contains("status"));
  const auto attributes = AttributesOf(root);
  EXPECT_EQ(attributes.at("gen_ai.request.id")["stringValue"], "cmpl-1");
  EXPECT_EQ(attributes.at("gen_ai.request.model")["stringValue"], "demo");
  EXPECT_EQ(attributes.at("gen_ai.request.max_tokens")["intValue"], "10");
  EXPECT_EQ(attributes.at("gen_ai.request.temperature")["doubleValue"], 0.5);
  EXPECT_EQ(attributes.at("gen_ai.request.top_p")["doubleValue"], 0.9);
  EXPECT_EQ(attributes.at("gen_ai.request.n")["intValue"], "1");
  EXPECT_EQ(attributes.at("gen_ai.usage.prompt_tokens")["intValue"], "12");
  EXPECT_EQ(attributes.at("gen_ai.usage.completion_tokens")["intValue"], "10");
  const auto latency = [&](const char* what) {
    return attributes.at(std::string("gen_ai.latency.") + what)["doubleValue"].get<double>();
  };
  EXPECT_DOUBLE_EQ(latency("e2e"), 0.405);
  EXPECT_DOUBLE_EQ(latency("time_to_first_token"), 0.150);
  EXPECT_DOUBLE_EQ(latency("time_in_queue"), 0.090);
  EXPECT_DOUBLE_EQ(latency("time_in_model_prefill"), 0.050);
  EXPECT_DOUBLE_EQ(latency("time_in_model_decode"), 0.250);
  EXPECT_DOUBLE_EQ(latency("time_in_model_inference"), 0.300);

  std::set<std::string> ids;
  int64_t sum = 0;
  std::string names;
  for (const Json& span : spans) {
    EXPECT_EQ(span["traceId"], root["traceId"]);
    EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
    ids.insert(span["spanId"]);
    if (&span == &root) continue;
    EXPECT_EQ(span["parentSpanId"], root["spanId"]);
    EXPECT_EQ(span["kind"], 1);
    names += span["name"].get<std::string>() + " ";
    sum += std::stoll(span["endTimeUnixNano"].get<std::string>()) -
           std::stoll(span["startTimeUnixNano"].get<std::string>());
  }
  EXPECT_EQ(ids.size(), spans.size());
  EXPECT_EQ(names, "prepare queue prefill decode deliver ");
  EXPECT_EQ(sum, Duration::Millis(405).ns) << "the spans below add up";
  EXPECT_EQ(AttributesOf(spans[2]).at("millrace.cause")["stringValue"], "kv_blocks");
  EXPECT_EQ(AttributesOf(spans[3]).at("millrace.tokens")["intValue"], "12");
}

TEST(RequestSpans, FurtherPromptsOfABatchAreBelowTheFirst) {
  RegistryEntry second = Ended();
  second.prompt_index = 1;
  const std::vector<Json> spans = SpansOf(second, "demo", 0);
  EXPECT_EQ(spans[0]["parentSpanId"], "0000000000000abc");
  EXPECT_NE(spans[0]["spanId"], "0000000000000abc");
  EXPECT_EQ(spans[1]["parentSpanId"], spans[0]["spanId"]);
}

TEST(RequestSpans, AFailedRequestIsAnError) {
  RegistryEntry entry = Ended();
  entry.finish_reason = "error";
  EXPECT_EQ(SpansOf(entry, "demo", 0)[0]["status"]["code"], 2);
}

}  // namespace
}  // namespace millrace::serve
