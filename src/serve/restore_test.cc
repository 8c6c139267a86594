// Streams of the previous run: whichever part of a stream is recorded when the server dies, the
// next run writes the same events, from any position, and only to callers with the right key.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "serve/generation/stream_record.h"
#include "serve/testing/fixtures.h"
#include "serve/testing/wrapped_generator.h"

namespace millrace::serve {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

// Records what a journal would.
class RecordingGenerator final : public WrappedGenerator {
 public:
  Result<RequestId> Submit(cluster::GenerationRequest request, cluster::OutputSink sink) override {
    auto earlier = std::make_shared<cluster::RecoveredRequest>();
    earlier->external_id = request.external_id;
    earlier->front_end = request.front_end;
    earlier->prompt = request.prompt;
    earlier->params = request.params;
    earlier->priority = request.priority;
    earlier->cache_salt = request.cache_salt;
    earlier->joins = request.joins;
    requests.push_back(earlier);
    return WrappedGenerator::Submit(
        std::move(request), [this, earlier, sink = std::move(sink)](RequestOutput&& output) {
          {
            std::lock_guard lock(mutex_);
            // Other workers continue the request after two outputs.
            if (earlier->delivered.empty()) output.fingerprint = "fp_a";
            if (earlier->delivered.size() == 2) output.fingerprint = "fp_b";
            earlier->id = output.request;
            earlier->delivered.push_back(output);
            earlier->delivered_order.push_back(order_++);
          }
          sink(std::move(output));
        });
  }
  void Abort(RequestId request, std::optional<int> index) override {
    {
      std::lock_guard lock(mutex_);
      aborted_ = request;
    }
    WrappedGenerator::Abort(request, index);
  }
  std::optional<RequestId> aborted() {
    std::lock_guard lock(mutex_);
    return aborted_;
  }

  std::vector<std::shared_ptr<cluster::RecoveredRequest>> requests;

 private:
  std::mutex mutex_;
  std::optional<RequestId> aborted_;  // the latest one
  uint64_t order_ = 0;                // number of the next output
};

// The requests that a restarted controller recovers: their delivered output, and the rest of the
// output when the requests are resumed.
class Record final : public cluster::RecoveredRequests {
 public:
  // Adds a request of whose outputs all but the last `rest` were recorded.
  void Add(const cluster::RecoveredRequest& whole, size_t rest) {
    cluster::RecoveredRequest earlier = whole;
    for (size_t i = earlier.delivered.size() - rest; i < earlier.delivered.size(); ++i) {
      later_[earlier.delivered_order[i]] = earlier.delivered[i];
    }
    earlier.delivered.resize(earlier.delivered.size() - rest);
    earlier.delivered_order.resize(earlier.delivered.size());
    for (RequestOutput& output : earlier.delivered) output.times.reset();
    earlier.finished = rest == 0;
    unfinished_ += !earlier.finished;
    taken_.push_back(std::move(earlier));
  }
  // Adds the requests of one stream, of whose outputs all but the last `rest` were recorded.
  void Add(const std::vector<cluster::RecoveredRequest>& stream, size_t rest) {
    std::vector<uint64_t> all;
    for (const auto& request : stream) {
      all.insert(all.end(), request.delivered_order.begin(), request.delivered_order.end());
    }
    std::ranges::sort(all);
    const uint64_t lost = rest == 0 ? UINT64_MAX : all.at(all.size() - rest);
    for (const auto& request : stream) {
      const auto& order = request.delivered_order;
      Add(request, static_cast<size_t>(
                       std::ranges::count_if(order, [lost](uint64_t one) { return one >= lost; })));
    }
  }

  std::vector<cluster::RecoveredRequest> Take() override { return std::exchange(taken_, {}); }
  Status Resume(RequestId request, cluster::OutputSink sink) override {
    if (!refusal.ok()) return refusal;
    resumed.push_back(request);
    sinks[request] = std::move(sink);
    DeliverRest();
    return OkStatus();
  }
  void Drop(RequestId request) override {
    dropped.push_back(request);
    DeliverRest();
  }

  Status refusal;
  bool silent = false;  // resumed requests produce no output
  std::map<RequestId, cluster::OutputSink> sinks;
  std::vector<RequestId> resumed, dropped;

 private:
  // Delivers the rest in order, once every request is resumed or dropped.
  void DeliverRest() {
    if (silent || resumed.size() + dropped.size() < unfinished_) return;
    for (const auto& [order, output] : later_) {
      const auto sink = sinks.find(output.request);
      if (sink != sinks.end()) sink->second(RequestOutput(output));
    }
    sinks.clear();
  }

  std::vector<cluster::RecoveredRequest> taken_;
  size_t unfinished_ = 0;
  std::map<uint64_t, RequestOutput> later_;
};

TestServerOptions Options(std::vector<std::string> keys = {}) {
  TestServerOptions options;
  options.script = "hello the world é";
  options.service.resumable = {
      .enabled = true, .grace = Duration::Seconds(600), .retain = Duration::Seconds(600)};
  options.service.api_keys = *ApiKeys::Create(keys);
  options.ready = false;
  return options;
}

struct FirstRun {
  std::string id;
  std::string body;                   // the whole stream
  cluster::RecoveredRequest request;  // the first of `requests`
  std::vector<cluster::RecoveredRequest> requests;
  TestServerOptions options = Options();  // of the second run

  size_t output() const {
    size_t all = 0;
    for (const auto& one : requests) all += one.delivered.size();
    return all;
  }
};

FirstRun Live(const std::string& path, Json asked, const Headers& headers = {},
              const TestServerOptions& options = Options()) {
  RecordingGenerator generator;
  TestServer server(options);
  generator.inner = server.engine;
  server.MakeReady(&generator);
  asked["stream"] = true;
  asked["request_id"] = "r";
  auto reply = server.Start("POST", path, DumpJson(asked), headers);
  EXPECT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 200) << reply->body();
  EXPECT_TRUE(server.WaitUntilFree());
  server.service->Drain(Duration{});
  const std::string id = path == "/v1/completions" ? "cmpl-r" : "chatcmpl-r";
  FirstRun first{id, reply->body(), *generator.requests.at(0), {}, options};
  for (const auto& request : generator.requests) first.requests.push_back(*request);
  return first;
}

std::string After(const std::vector<std::string>& events, size_t seen) {
  std::string rest;
  for (size_t i = seen; i < events.size(); ++i) rest += events[i];
  return rest;
}

// The second run, with all but the last `rest` outputs recorded.
void ExpectTheSame(const FirstRun& first, const std::string& path, size_t rest) {
  Record record;
  record.Add(first.requests, rest);
  TestServer server(first.options);
  server.MakeReady(nullptr, &record);
  const std::vector<std::string> events = Events(first.body);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(record.resumed.size() + record.dropped.size() > 0, rest > 0);
  for (size_t seen = 0; seen < events.size(); ++seen) {
    const std::string last = first.id + ":" + std::to_string(seen);
    auto reply = server.Start("POST", path, "{}", {{"Last-Event-ID", last}});
    ASSERT_TRUE(reply->WaitDone());
    ASSERT_EQ(reply->status(), 200)
        << reply->body() << " event " << seen << ", " << rest << " outputs were not recorded";
    EXPECT_EQ(reply->Header("x-stream-id"), first.id);
    EXPECT_EQ(reply->body(), After(events, seen)) << rest << " outputs were not recorded";
  }
}

void ExpectTheSameAfterAnyCrash(const std::string& path, const Json& asked,
                                const TestServerOptions& options = Options()) {
  const FirstRun first = Live(path, asked, {}, options);
  for (const auto& request : first.requests) ASSERT_NE(request.front_end, "");
  for (size_t rest = 0; rest <= first.output(); ++rest) {
    ExpectTheSame(first, path, rest);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Restore, ACompletion) {
  ExpectTheSameAfterAnyCrash("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
}

TEST(Restore, AChatWithUsageInEveryChunk) {
  ExpectTheSameAfterAnyCrash(
      "/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
       {"max_tokens", 25},
       {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
}

TEST(Restore, SeveralChoicesAndAnEcho) {
  ExpectTheSameAfterAnyCrash("/v1/completions", {{"prompt", "abc"},
                                                 {"max_tokens", 12},
                                                 {"n", 3},
                                                 {"echo", true},
                                                 {"stream_options", {{"include_usage", true}}}});
}

TEST(Restore, AnEchoOfOneTokenWithItsLogprobs) {
  ExpectTheSameAfterAnyCrash(
      "/v1/completions",
      {{"prompt", {97}}, {"max_tokens", 5}, {"n", 2}, {"echo", true}, {"logprobs", 1}});
}

TEST(Restore, AStopStringFoundBeforeOrAfter) {
  ExpectTheSameAfterAnyCrash("/v1/completions",
                             {{"prompt", "abc"}, {"max_tokens", 60}, {"n", 2}, {"stop", "world"}});
}

TEST(Restore, AStopToken) {
  ExpectTheSameAfterAnyCrash("/v1/completions",
                             {{"prompt", "abc"}, {"max_tokens", 60}, {"stop_token_ids", {'w'}}});
}

// The ids of the calls, and their numbers in the conversation.
TEST(Restore, Calls) {
  for (const char* format : {"kimi_k2", "mistral"}) {
    TestServerOptions options = Options();
    options.tool_format = format;
    options.script = std::string(format) == "mistral"
                         ? "[TOOL_CALLS]f[ARGS]{\"s\": 1}<|eos|>"
                         : "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                           "<|tool_call_argument_begin|>{\"s\": 1}<|tool_call_end|><|eos|>";
    const Json call = {{"id", "call_1"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
    const Json messages = {{{"role", "user"}, {"content", "hi"}},
                           {{"role", "assistant"}, {"tool_calls", {call}}},
                           {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "r"}}};
    ExpectTheSameAfterAnyCrash("/v1/chat/completions",
                               {{"messages", messages},
                                {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
                                {"max_tokens", 100}},
                               options);
  }
}

// The journal records the order of the sequences' outputs, not how they were split.
TEST(Restore, OutputsMayBeSplitDifferently) {
  FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  std::vector<RequestOutput>& delivered = first.request.delivered;
  ASSERT_GT(delivered.size(), 20u);
  for (int i = 0; i < 15; ++i)
    delivered[0].tokens.push_back(delivered[static_cast<size_t>(i) + 1].tokens[0]);
  delivered.erase(delivered.begin() + 1, delivered.begin() + 16);
  ExpectTheSame(first, "/v1/completions", delivered.size() - 1);
  ExpectTheSame(first, "/v1/completions", delivered.size() - 3);
}

TEST(Restore, WithoutResumableStreamsAllAreDropped) {
  const FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  Record record;
  record.Add(first.request, 5);
  TestServerOptions options = Options();
  options.service.resumable.enabled = false;
  TestServer server(options);
  server.MakeReady(nullptr, &record);
  EXPECT_EQ(record.dropped, std::vector{first.request.id});
}

TEST(Restore, RequestsWithoutAStreamRecordAreDropped) {
  Record record;
  FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  std::vector<RequestId> ids;
  for (const char* front_end :
       {"", "{", "{}", "[]", "7", R"({"version":3})", R"({"version":1,"owner":7})"}) {
    first.request.id = RequestId(100 + ids.size());
    first.request.front_end = front_end;
    ids.push_back(first.request.id);
    record.Add(first.request, 5);
  }
  TestServer server(Options());
  server.MakeReady(nullptr, &record);
  std::ranges::reverse(ids);  // the newest is dropped first
  EXPECT_EQ(record.dropped, ids);
  EXPECT_TRUE(record.resumed.empty());
}

TEST(Restore, ANewerStreamReplacesOneOfTheSameName) {
  FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  Record record;
  first.request.id = RequestId(7);
  record.Add(first.request, 9);
  first.request.id = RequestId(8);
  record.Add(first.request, 5);
  TestServer server(Options());
  server.MakeReady(nullptr, &record);
  EXPECT_EQ(record.resumed, std::vector{RequestId(8)});
  EXPECT_EQ(record.dropped, std::vector{RequestId(7)});
}

TEST(Restore, Logprobs) {
  ExpectTheSameAfterAnyCrash("/v1/completions",
                             {{"prompt", "abc"}, {"max_tokens", 20}, {"logprobs", 3}, {"n", 2}});
  ExpectTheSameAfterAnyCrash("/v1/chat/completions",
                             {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                              {"max_tokens", 15},
                              {"logprobs", true},
                              {"top_logprobs", 2}});
}

TEST(Restore, AnEchoWithLogprobsOfThePrompt) {
  ExpectTheSameAfterAnyCrash(
      "/v1/completions",
      {{"prompt", "abc"}, {"max_tokens", 12}, {"logprobs", 2}, {"echo", true}, {"n", 2}});
}

TEST(Restore, SeveralPrompts) {
  ExpectTheSameAfterAnyCrash(
      "/v1/completions",
      {{"prompt", {"abc", "de", "fghi"}},
       {"max_tokens", 9},
       {"n", 2},
       {"echo", true},
       {"logprobs", 1},
       {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  ExpectTheSameAfterAnyCrash(
      "/v1/completions",
      {{"prompt", {"abc", "de"}}, {"max_tokens", 40}, {"n", 2}, {"stop", "world"}});
}

// The controller died between the prompts of a stream, before any event.
TEST(Restore, AStreamThatLacksAPromptIsDropped) {
  const FirstRun first =
      Live("/v1/completions", {{"prompt", {"abc", "de", "fghi"}}, {"max_tokens", 9}});
  for (size_t lacks = 0; lacks < 3; ++lacks) {
    Record record;
    for (size_t i = 0; i < 3; ++i) {
      if (i != lacks) record.Add(first.requests[i], first.requests[i].delivered.size());
    }
    TestServer server(Options());
    server.MakeReady(nullptr, &record);
    EXPECT_EQ(record.dropped.size(), 2u);
    EXPECT_TRUE(record.resumed.empty());
    auto reply = server.Start("GET", "/v1/streams/cmpl-r");
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 404);
  }
}

TEST(Restore, TooManyPromptLogprobsAreNotRecorded) {
  GenerationSpec spec;
  spec.resumable = true;
  spec.prompts.push_back({.tokens = std::vector<TokenId>(100'000)});
  spec.options.params.prompt_logprobs = 9;
  EXPECT_NE(EncodeStreamRecord(spec, 0), "");
  spec.options.params.prompt_logprobs = 10;
  EXPECT_EQ(EncodeStreamRecord(spec, 0), "");
}

// The client learns the stream's name before the first event.
TEST(Restore, TheHeadComesBeforeTheFirstEvent) {
  Gate gate;
  TestServer server(Options());
  server.MakeReady();
  server.gate.Close();
  auto reply = server.Start("POST", "/v1/completions",
                            R"({"prompt": "abc", "stream": true, "request_id": "r"})");
  for (int i = 0; i < 1000 && reply->status() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(reply->status(), 200);
  EXPECT_EQ(reply->Header("x-stream-id"), "cmpl-r");
  EXPECT_EQ(reply->body(), "");
  server.gate.Open();
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_FALSE(Events(reply->body()).empty());
}

TEST(Restore, OnlyTheOriginalKeyCanResume) {
  const std::vector<std::string> keys = {"mine", "theirs"};
  const Headers mine = {{"authorization", "Bearer mine"}};
  const FirstRun first =
      Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}}, mine, Options(keys));
  EXPECT_EQ(first.request.front_end.find("mine"), std::string::npos);
  struct Case {
    std::vector<std::string> keys;
    std::string key;
    int status;
  };
  for (const Case& c : {Case{{"theirs", "mine"}, "mine", 200}, Case{{"mine"}, "mine", 200},
                        Case{{"theirs", "mine"}, "theirs", 404}, Case{{"theirs"}, "theirs", 404},
                        Case{{}, "", 404}}) {
    Record record;
    record.Add(first.request, 5);
    TestServer server(Options(c.keys));
    server.MakeReady(nullptr, &record);
    auto reply =
        server.Start("GET", "/v1/streams/cmpl-r", "", {{"authorization", "Bearer " + c.key}});
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), c.status) << c.key << " of " << c.keys.size();
    const bool known = std::find(c.keys.begin(), c.keys.end(), "mine") != c.keys.end();
    EXPECT_EQ(record.dropped.empty(), known);
  }
}

TEST(Restore, WhileLoadingClientsGet503) {
  TestServer server(Options());
  for (const char* method : {"POST", "GET"}) {
    const std::string path =
        method == std::string("GET") ? "/v1/streams/cmpl-r" : "/v1/completions";
    auto reply = server.Start(method, path, "{}", {{"Last-Event-ID", "cmpl-r:1"}});
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 503);
    EXPECT_NE(reply->Header("retry-after"), "");
  }
}

TEST(Restore, AStreamThatCannotContinueEndsWithAnError) {
  const FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  Record record;
  record.Add(first.request, 5);
  record.refusal = ResourceExhausted("too many wait");
  TestServer server(Options());
  server.MakeReady(nullptr, &record);
  auto reply = server.Start("GET", "/v1/streams/cmpl-r");
  ASSERT_TRUE(reply->WaitDone());
  const auto events = Events(reply->body());
  EXPECT_NE(events.back().find("too many wait"), std::string::npos) << events.back();
  EXPECT_EQ(events.front(), Events(first.body).front());
}

TEST(Restore, WithoutAClientWithinTheGraceItIsAborted) {
  const FirstRun first = Live("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 40}});
  Record record;
  record.Add(first.request, 5);
  record.silent = true;
  TestServerOptions options = Options();
  options.service.resumable.grace = Duration::Millis(20);
  RecordingGenerator generator;
  TestServer server(options);
  generator.inner = server.engine;
  server.MakeReady(&generator, &record);
  for (int i = 0; i < 1000 && !generator.aborted(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(generator.aborted(), first.request.id);
  auto reply = server.Start("GET", "/v1/streams/cmpl-r");
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 404);
  record.sinks.clear();
}

}  // namespace
}  // namespace millrace::serve
