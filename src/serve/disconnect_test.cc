// Clients that disconnect at every stage and in every way: the controller frees everything.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

Json Body(bool stream, int n = 1, Json prompt = "abc") {
  return {{"prompt", prompt}, {"max_tokens", 200}, {"stream", stream}, {"n", n}};
}

TEST(Disconnect, WhileTheStepRuns) {
  TestServer server;
  for (bool stream : {true, false}) {
    for (int n : {1, 3}) {
      server.gate.Close();
      auto reply = server.Post("/v1/completions", Body(stream, n, {"abc", "de"}));
      reply->Disconnect();
      server.gate.Open();
      EXPECT_TRUE(server.WaitUntilFree()) << stream << n;
      EXPECT_EQ(reply->writes(), 0);
    }
  }
}

TEST(Disconnect, WhileWaitingInTheQueue) {
  TestServer server({.max_model_len = 256, .num_blocks = 20});
  server.gate.Close();
  auto running = server.Post("/v1/completions", Body(true));
  std::vector<std::shared_ptr<RecordingReply>> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(server.Post("/v1/completions", Body(i % 2 == 0)));
  for (auto& reply : waiting) reply->Disconnect();
  server.gate.Open();
  ASSERT_TRUE(running->WaitDone());
  EXPECT_EQ(running->status(), 200);
  EXPECT_TRUE(server.WaitUntilFree());
  const auto stats = server.engine->Stats().scheduler;
  EXPECT_EQ(stats.requests_finished[static_cast<size_t>(FinishReason::kAbort)], 8u);
  EXPECT_EQ(stats.generation_tokens, 200u) << "the waiting requests were never computed";
}

TEST(Disconnect, InTheMiddleOfAStream) {
  for (int after = 1; after <= 5; ++after) {
    TestServer server;
    auto reply = server.Post("/v1/completions", Body(true, 2));
    ASSERT_TRUE(reply->WaitWrites(after));
    reply->Disconnect();
    EXPECT_TRUE(server.WaitUntilFree()) << after;
  }
}

TEST(Disconnect, ASlowReaderThatWasCutOff) {
  TestServer server;
  auto slow = std::make_shared<RecordingReply>();
  slow->CutAfter(1);
  net::HttpRequest request{.method = "POST", .path = "/v1/completions"};
  request.body = DumpJson(Body(true));
  server.service->Handler()(std::move(request), slow);
  ASSERT_TRUE(slow->WaitWrites(1));
  EXPECT_TRUE(server.WaitUntilFree());
  EXPECT_EQ(slow->writes(), 1) << "no further writes after the disconnect";
  server.Call("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}});
}

TEST(Disconnect, BeforeTheHandlerRuns) {
  TestServer server;
  auto gone = std::make_shared<RecordingReply>();
  gone->Disconnect();
  net::HttpRequest request{.method = "POST", .path = "/v1/completions"};
  request.body = DumpJson(Body(false, 4, {"a", "b", "c"}));
  server.service->Handler()(std::move(request), gone);
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Disconnect, AfterTheEndHasNoEffect) {
  TestServer server;
  auto reply = server.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}});
  ASSERT_TRUE(reply->WaitDone());
  reply->Disconnect();
  EXPECT_TRUE(server.WaitUntilFree());
  const auto stats = server.engine->Stats().scheduler;
  EXPECT_EQ(stats.requests_finished[static_cast<size_t>(FinishReason::kAbort)], 0u);
}

TEST(Queue, WhenFullRequestsGet429) {
  TestServer server({.max_waiting = 4});
  server.gate.Close();
  std::vector<std::shared_ptr<RecordingReply>> taken;
  std::shared_ptr<RecordingReply> refused;
  for (int i = 0; i < 64 && !refused; ++i) {
    auto reply = server.Post("/v1/completions", Body(i % 2 == 0));
    if (reply->status() == 429) {
      refused = reply;
    } else {
      taken.push_back(reply);
    }
  }
  ASSERT_TRUE(refused) << "the queue is bounded";
  EXPECT_EQ(refused->Header("retry-after"), "1");
  EXPECT_EQ(refused->Header("x-should-retry"), "");
  EXPECT_EQ((*ParseJson(refused->body()))["error"]["code"], "rate_limit_exceeded");
  // If a batch does not fit as a whole, none of its prompts stays in the queue.
  auto batch = server.Post("/v1/completions", Body(false, 1, {"a", "b", "c", "d", "e", "f"}));
  EXPECT_EQ(batch->status(), 429);
  server.gate.Open();
  for (auto& reply : taken) ASSERT_TRUE(reply->WaitDone());
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Drain, FinishesRunningAndRefusesNewRequests) {
  TestServer server;
  auto stream = server.Post("/v1/completions", Body(true));
  EXPECT_TRUE(server.service->Drain(Duration::Seconds(10)));
  ASSERT_TRUE(stream->WaitDone());
  EXPECT_EQ(ParseEvents(stream->body()).back()["choices"][0]["finish_reason"], "length");
  const auto late = server.Post("/v1/completions", Body(false));
  EXPECT_EQ(late->status(), 503);
  EXPECT_EQ(late->Header("retry-after"), "5");
  EXPECT_EQ(server.Get("/ready", 503)["error"]["code"], "service_unavailable");
  EXPECT_EQ(server.Get("/health")["status"], "ok");
}

TEST(Drain, RequestsThatDoNotFinishInTimeGet503) {
  TestServer server;
  server.gate.Close();
  auto whole = server.Post("/v1/completions", Body(false));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.gate.Open();
  });
  EXPECT_FALSE(server.service->Drain(Duration::Millis(1)));
  opener.join();
  ASSERT_TRUE(whole->WaitDone());
  EXPECT_EQ(whole->status(), 503);
}

TEST(Drain, ARunningStreamEndsWithAnErrorEvent) {
  TestServer server;
  auto stream =
      server.Post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 250}, {"stream", true}});
  ASSERT_TRUE(stream->WaitWrites(1));
  server.gate.Close();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.gate.Open();
  });
  const bool whole = server.service->Drain(Duration::Millis(1));
  opener.join();
  ASSERT_TRUE(stream->WaitDone());
  // It finished before the gate closed, or while it was waited for.
  if (whole || stream->body().ends_with("[DONE]\n\n")) return;
  const auto events = ParseEvents(stream->body(), false);
  EXPECT_EQ(events.back()["error"]["code"], "service_unavailable");
}

// Many kinds of clients at once: each gets its whole text or disconnects, and everything is freed.
TEST(Concurrency, ManyClientsOfManyKinds) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 25;
  TestServer server({.max_waiting = 4096});
  std::atomic<int> whole = 0;
  auto client = [&](int id) {
    Rng rng(static_cast<uint64_t>(id));
    for (int i = 0; i < kRequests; ++i) {
      const bool stream = rng.Between(0, 1) == 0;
      const auto n = static_cast<int>(rng.Between(1, 3));
      Json body = {{"prompt", "abc"}, {"max_tokens", 11}, {"stream", stream}, {"n", n}};
      if (rng.Between(0, 3) == 0) body["stop"] = "wor";
      auto reply = server.Post("/v1/completions", body);
      if (rng.Between(0, 2) == 0) {
        reply->Disconnect();
        continue;
      }
      ASSERT_TRUE(reply->WaitDone());
      ASSERT_EQ(reply->status(), 200) << reply->body();
      const char* text = body.contains("stop") ? "hello " : "hello world";
      if (!stream) {
        EXPECT_EQ((*ParseJson(reply->body()))["choices"][0]["text"], text);
      } else {
        std::string joined;
        for (const Json& event : ParseEvents(reply->body())) {
          if (event["choices"][0]["index"] == 0) {
            joined += event["choices"][0]["text"].get<std::string>();
          }
        }
        EXPECT_EQ(joined, text);
      }
      ++whole;
      if (i % 5 == 0) server.Start("GET", "/metrics");
      if (i % 5 == 1) server.AdminGet("/debug/requests");
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(client, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(whole, 0);
  EXPECT_TRUE(server.WaitUntilFree());
  EXPECT_TRUE(server.service->Drain(Duration::Seconds(10)));
}

}  // namespace
}  // namespace millrace::serve
