// Clients that reconnect for the rest of a stream: they get the same bytes, each event once, and
// only with the key that began the stream.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "net/http/sse.h"
#include "serve/answer/stream_keeper.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

constexpr Duration kLong = Duration::Seconds(600);

TestServerOptions Resumable(Duration grace = kLong, Duration retain = kLong) {
  TestServerOptions options;
  options.service.resumable = {.enabled = true, .grace = grace, .retain = retain};
  return options;
}

std::string Body(int max_tokens = 120, int n = 1) {
  return DumpJson({{"prompt", "abc"},
                   {"max_tokens", max_tokens},
                   {"stream", true},
                   {"n", n},
                   {"request_id", "r"},
                   {"stream_options", {{"include_usage", true}}}});
}

std::shared_ptr<RecordingReply> StartStream(TestServer& server, const std::string& body = Body()) {
  return server.Start("POST", "/v1/completions", body);
}

std::shared_ptr<RecordingReply> Fetch(TestServer& server, const std::string& last_event_id = "",
                                      Headers headers = {}) {
  if (!last_event_id.empty()) headers.emplace_back("Last-Event-ID", last_event_id);
  return server.Start("GET", "/v1/streams/cmpl-r", "", headers);
}

std::string IdOf(const std::string& event) {
  EXPECT_TRUE(event.starts_with("id: ")) << event;
  return event.substr(4, event.find('\n') - 4);
}

std::string WithoutIds(const std::string& body) {
  std::string out;
  for (const std::string& event : Events(body)) out += event.substr(event.find('\n') + 1);
  return out;
}

std::string TextOf(const std::string& body) {
  std::string text;
  for (const Json& chunk : ParseEvents(WithoutIds(body))) {
    for (const Json& choice : chunk["choices"]) text += choice["text"].get<std::string>();
  }
  return text;
}

TEST(Resume, WithoutResumableStreamsEventsHaveNoNumbers) {
  TestServer server;
  auto reply = server.Start("POST", "/v1/completions", Body(), {{"Last-Event-ID", "cmpl-r:1"}});
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 200);
  EXPECT_EQ(reply->body().find("id: "), std::string::npos);
  auto none = Fetch(server);
  ASSERT_TRUE(none->WaitDone());
  EXPECT_EQ(none->status(), 404);
}

TEST(Resume, EveryEventHasItsNumberUpToDone) {
  TestServer server(Resumable());
  auto reply = StartStream(server);
  ASSERT_TRUE(reply->WaitDone());
  const auto events = Events(reply->body());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(IdOf(events[i]), "cmpl-r:" + std::to_string(i + 1));
  }
  EXPECT_TRUE(events.back().ends_with("data: [DONE]\n\n"));
  TestServer plain;
  auto same = StartStream(plain);
  ASSERT_TRUE(same->WaitDone());
  std::string text;
  for (const Json& chunk : ParseEvents(same->body())) {
    for (const Json& choice : chunk["choices"]) text += choice["text"].get<std::string>();
  }
  EXPECT_EQ(TextOf(reply->body()), text);
}

TEST(Resume, TheRestHasTheSameBytesFromAnyEventOnEitherRoute) {
  TestServer server(Resumable());
  auto reply = StartStream(server, Body(30, 8));  // eight choices: at least as many events
  ASSERT_TRUE(reply->WaitDone());
  const std::string whole = reply->body();
  const auto events = Events(whole);
  ASSERT_GT(events.size(), 8u);
  size_t bytes = 0;
  for (const std::string& event : events) {
    bytes += event.size();
    auto got = Fetch(server, IdOf(event));
    auto posted = server.Start("POST", "/v1/completions", Body(), {{"last-event-id", IdOf(event)}});
    ASSERT_TRUE(got->WaitDone());
    ASSERT_TRUE(posted->WaitDone());
    EXPECT_EQ(got->body(), whole.substr(bytes));
    EXPECT_EQ(posted->body(), whole.substr(bytes));
    EXPECT_EQ(got->Header("content-type"), "text/event-stream; charset=utf-8");
  }
  auto all = Fetch(server);
  ASSERT_TRUE(all->WaitDone());
  EXPECT_EQ(all->body(), whole);
  EXPECT_EQ(server.engine->Stats().scheduler.requests_accepted, 1u) << "no request ran twice";
}

TEST(Resume, AStreamRunsOnWithoutItsClient) {
  TestServer server(Resumable());
  auto first = StartStream(server);
  ASSERT_TRUE(first->WaitWrites(2));
  first->Disconnect();
  ASSERT_TRUE(server.WaitUntilFree());
  const auto seen = Events(first->body());
  auto rest = Fetch(server, IdOf(seen.back()));
  ASSERT_TRUE(rest->WaitDone());
  auto whole = Fetch(server);
  ASSERT_TRUE(whole->WaitDone());
  EXPECT_EQ(first->body() + rest->body(), whole->body());
  EXPECT_EQ(
      server.engine->Stats().scheduler.requests_finished[static_cast<size_t>(FinishReason::kAbort)],
      0u);
}

// Reconnects at random moments, sometimes before the old connection has ended.
TEST(Resume, AClientThatReconnectsOftenGetsEachEventOnce) {
  Rng rng(5);
  for (int round = 0; round < 8 * TestScale(); ++round) {
    TestServer server(Resumable());
    auto reply = StartStream(server, Body(200, 2));
    std::vector<std::string> seen;
    std::string last = "cmpl-r:0";
    while (true) {
      ASSERT_TRUE(reply->WaitWrites(static_cast<int>(rng.Between(1, 6))));
      if (rng.Between(0, 2) > 0) reply->Disconnect();
      for (std::string& event : Events(reply->body())) {
        last = IdOf(event);
        seen.push_back(std::move(event));
      }
      if (seen.back().ends_with("[DONE]\n\n")) break;
      reply = Fetch(server, last);
    }
    auto whole = Fetch(server);
    ASSERT_TRUE(whole->WaitDone());
    std::string together;
    for (const std::string& event : seen) together += event;
    ASSERT_EQ(together, whole->body());
  }
}

TEST(Resume, ADisconnectBeforeTheFirstEventFreesTheEngine) {
  TestServer server(Resumable());
  server.gate.Close();
  auto reply = StartStream(server);
  reply->Disconnect();
  server.gate.Open();
  EXPECT_TRUE(server.WaitUntilFree());
}

TEST(Resume, AnEndedStreamIsKeptForItsTime) {
  TestServer server(Resumable(kLong, Duration::Millis(1)));
  auto reply = StartStream(server);
  ASSERT_TRUE(reply->WaitDone());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int status = 200;
  while (status == 200 && std::chrono::steady_clock::now() < deadline) {
    auto fetched = Fetch(server);
    ASSERT_TRUE(fetched->WaitDone());
    status = fetched->status();
  }
  EXPECT_EQ(status, 404);
}

TEST(Resume, AnotherKeyCannotResume) {
  TestServerOptions options = Resumable();
  options.service.api_keys = *ApiKeys::Create({"mine", "theirs"});
  TestServer server(options);
  const Headers mine = {{"Authorization", "Bearer mine"}};
  const Headers theirs = {{"Authorization", "Bearer theirs"}};
  auto reply = server.Start("POST", "/v1/completions", Body(), mine);
  ASSERT_TRUE(reply->WaitDone());
  for (const auto& [headers, status] :
       {std::pair{mine, 200}, std::pair{theirs, 404}, std::pair{Headers{}, 401}}) {
    auto fetched = Fetch(server, "cmpl-r:1", headers);
    ASSERT_TRUE(fetched->WaitDone());
    EXPECT_EQ(fetched->status(), status);
  }
}

TEST(Resume, BadPositionsAreRefused) {
  TestServer server(Resumable());
  auto reply = StartStream(server);
  ASSERT_TRUE(reply->WaitDone());
  for (const char* bad : {"x", "cmpl-r", "cmpl-r:", ":1", "cmpl-r:-1", "cmpl-r:1x", "cmpl-r:9999",
                          "cmpl-r:99999999999999999999999"}) {
    auto fetched = Fetch(server, bad);
    auto posted = server.Start("POST", "/v1/completions", Body(), {{"Last-Event-ID", bad}});
    ASSERT_TRUE(fetched->WaitDone());
    ASSERT_TRUE(posted->WaitDone());
    EXPECT_EQ(fetched->status(), 400) << bad;
    EXPECT_EQ(posted->status(), 400) << bad;
  }
  auto unknown = server.Start("POST", "/v1/completions", Body(), {{"Last-Event-ID", "cmpl-q:1"}});
  ASSERT_TRUE(unknown->WaitDone());
  EXPECT_EQ(unknown->status(), 404);
}

TEST(Resume, StreamsOverTheLimitsEndWithTheirConnection) {
  TestServerOptions small = Resumable();
  small.service.resumable.stream_bytes_max = 600;
  TestServer server(small);
  auto whole = StartStream(server, Body(30, 8));
  ASSERT_TRUE(whole->WaitDone());
  EXPECT_TRUE(whole->body().ends_with("data: [DONE]\n\n")) << "the stream itself continues";
  auto fetched = Fetch(server, "cmpl-r:1");
  ASSERT_TRUE(fetched->WaitDone());
  EXPECT_EQ(fetched->status(), 404);

  TestServerOptions none = Resumable();
  none.service.resumable.streams_max = 0;
  TestServer plain(none);
  auto stream = StartStream(plain);
  ASSERT_TRUE(stream->WaitDone());
  EXPECT_EQ(stream->body().find("id: "), std::string::npos);
}

TEST(Resume, TheOldestEndedStreamIsDroppedFirst) {
  TestServerOptions options = Resumable();
  options.service.resumable.streams_max = 2;
  TestServer server(options);
  auto fetch = [&](const std::string& id) {
    auto reply = server.Start("GET", "/v1/streams/cmpl-" + id);
    EXPECT_TRUE(reply->WaitDone());
    return reply->status();
  };
  for (const char* id : {"a", "b", "c"}) {
    auto reply =
        server.Post("/v1/completions",
                    {{"prompt", "abc"}, {"max_tokens", 5}, {"stream", true}, {"request_id", id}});
    ASSERT_TRUE(reply->WaitDone());
  }
  EXPECT_EQ(fetch("a"), 404);
  EXPECT_EQ(fetch("b"), 200);
  EXPECT_EQ(fetch("c"), 200);
}

TEST(Resume, ChatStreamsResumeToo) {
  TestServer server(Resumable());
  const std::string body = DumpJson({{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                     {"max_tokens", 30},
                                     {"stream", true},
                                     {"request_id", "r"}});
  auto reply = server.Start("POST", "/v1/chat/completions", body);
  ASSERT_TRUE(reply->WaitDone());
  auto rest =
      server.Start("POST", "/v1/chat/completions", body, {{"Last-Event-ID", "chatcmpl-r:1"}});
  ASSERT_TRUE(rest->WaitDone());
  const std::string first = Events(reply->body()).front();
  EXPECT_EQ(first + rest->body(), reply->body());
}

// The keeper alone; the test writes the events.
class Keeper : public ::testing::Test {
 protected:
  void Make(ResumableStreams limits) { keeper_ = std::make_unique<StreamKeeper>(limits, clock_); }
  std::shared_ptr<net::HttpReply> Begin(std::shared_ptr<net::HttpReply> client) {
    auto producer = keeper_->Keep("me", "s", std::move(client));
    producer->OnDisconnect([this] { cancelled_ = true; });
    return producer;
  }
  int Resume(uint64_t after, std::shared_ptr<net::HttpReply> client) {
    const auto error = keeper_->Resume("me", {"s", after}, std::move(client));
    return error ? error->status : 200;
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }

  const SteadyClock clock_{};
  std::atomic<bool> cancelled_ = false;
  std::unique_ptr<StreamKeeper> keeper_;
};

TEST_F(Keeper, WithoutAClientWithinTheGraceTheAnswerIsCancelled) {
  Make({.enabled = true, .grace = Duration::Millis(50), .retain = kLong});
  auto client = std::make_shared<RecordingReply>();
  auto producer = Begin(client);
  producer->Start({});
  ASSERT_TRUE(producer->Write("data: 1\n\n"));
  const auto left = std::chrono::steady_clock::now();
  client->Disconnect();
  EXPECT_TRUE(producer->Write("data: 2\n\n")) << "the stream runs on";
  ASSERT_TRUE(Eventually([&] { return cancelled_.load(); }));
  EXPECT_GE(std::chrono::steady_clock::now() - left, std::chrono::milliseconds(50));
  EXPECT_FALSE(producer->Write("data: 3\n\n"));
  EXPECT_EQ(Resume(1, std::make_shared<RecordingReply>()), 404);
}

TEST_F(Keeper, AClientThatReconnectsInTimeReplacesTheOldConnection) {
  Make({.enabled = true, .grace = kLong, .retain = kLong});
  auto first = std::make_shared<RecordingReply>();
  auto second = std::make_shared<RecordingReply>();
  auto producer = Begin(first);
  producer->Start({});
  producer->Write("data: 1\n\ndata: 2\n\n");
  ASSERT_EQ(Resume(1, second), 200);  // the first connection is still open
  EXPECT_EQ(first.use_count(), 1) << "released, which closes a real connection";
  first->Disconnect();  // too late: it no longer reads this stream
  producer->Write("data: 3\n\n");
  producer->Write("data: [DONE]\n\n");
  producer->End();
  EXPECT_EQ(Resume(5, std::make_shared<RecordingReply>()), 400);
  ASSERT_TRUE(second->WaitDone());
  EXPECT_EQ(first->body(), "id: s:1\ndata: 1\n\nid: s:2\ndata: 2\n\n");
  EXPECT_EQ(second->body(), "id: s:2\ndata: 2\n\nid: s:3\ndata: 3\n\nid: s:4\ndata: [DONE]\n\n");
  EXPECT_FALSE(cancelled_);
}

// After a restart a client may come before all that it has is written again, and to a controller
// that was stopped it may come with what the next controller has sent.
TEST_F(Keeper, AStreamMayBeBehindItsClient) {
  Make({.enabled = true});
  auto before = std::make_shared<RecordingReply>();
  auto producer = Begin(before);
  producer->Start({});
  ASSERT_TRUE(producer->Write("data: 1\n\ndata: 2\n\n"));
  auto client = std::make_shared<RecordingReply>();
  ASSERT_EQ(Resume(4, client), 200);
  ASSERT_TRUE(producer->Write("data: 3\n\n"));
  ASSERT_TRUE(producer->Write("data: 4\n\ndata: 5\n\n"));
  ASSERT_TRUE(producer->Write("data: 6\n\n"));
  EXPECT_EQ(client->body(), "id: s:5\ndata: 5\n\nid: s:6\ndata: 6\n\n");
  producer->End();
  EXPECT_EQ(Resume(7, std::make_shared<RecordingReply>()), 400);
  EXPECT_EQ(Resume(6, std::make_shared<RecordingReply>()), 200);
}

// The rest may be at another controller.
TEST_F(Keeper, AClientThatIsAheadOfAStreamThatFailedGetsItsError) {
  Make({.enabled = true, .grace = kLong, .retain = kLong});
  auto producer = Begin(std::make_shared<RecordingReply>());
  producer->Start({});
  producer->Write("data: 1\n\n");
  producer->Write("data: {\"error\":{}}\n\n");
  producer->End();
  auto client = std::make_shared<RecordingReply>();
  ASSERT_EQ(Resume(4, client), 200);
  ASSERT_TRUE(client->WaitDone());
  EXPECT_EQ(client->body(), "data: {\"error\":{}}\n\n");
}

TEST_F(Keeper, AStreamThatGrewTooLongEndsWithItsConnection) {
  Make({.enabled = true, .grace = kLong, .retain = kLong, .stream_bytes_max = 40});
  auto client = std::make_shared<RecordingReply>();
  auto producer = Begin(client);
  producer->Start({});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(producer->Write("data: 1\n\n"));
  EXPECT_EQ(Resume(1, std::make_shared<RecordingReply>()), 404);
  client->Disconnect();
  EXPECT_FALSE(producer->Write("data: 1\n\n"));
  EXPECT_TRUE(Eventually([&] { return cancelled_.load(); }));
}

TEST_F(Keeper, AnUnfinishedAnswerThatIsDroppedDisconnectsItsClient) {
  Make({.enabled = true, .grace = kLong, .retain = kLong});
  auto client = std::make_shared<RecordingReply>();
  auto producer = Begin(client);
  producer->Start({});
  producer->Write("data: 1\n\n");
  producer.reset();
  EXPECT_EQ(client.use_count(), 1);
  EXPECT_EQ(Resume(1, std::make_shared<RecordingReply>()), 404);
}

TEST_F(Keeper, EndedStreamsAreDroppedToFreeBytes) {
  Make({.enabled = true, .grace = kLong, .retain = kLong, .bytes_max = 4000});
  const std::string part = "data: " + std::string(1000, 'x') + "\n\n";
  for (int i = 0; i < 20; ++i) {
    auto producer = keeper_->Keep("me", std::to_string(i), std::make_shared<RecordingReply>());
    producer->Start({});
    producer->Write(part);
    producer->End();
    // The sweep frees bytes before the next stream begins.
    ASSERT_FALSE(keeper_->Resume("me", {std::to_string(i), 0}, std::make_shared<RecordingReply>()));
    ASSERT_TRUE(Eventually([&] {
      return i < 2 ||
             keeper_->Resume("me", {std::to_string(i - 2), 0}, std::make_shared<RecordingReply>());
    }));
  }
}

// An error is not part of the answer: it has no number, and a client that reconnects gets it again.
TEST(Resume, AnErrorHasNoNumber) {
  TestServer server(Resumable());
  server.gate.Close();
  auto reply = StartStream(server);
  std::thread opener([&] {  // running requests are aborted, but the current step has to end
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.gate.Open();
  });
  const bool whole = server.service->Drain(Duration{});
  opener.join();
  ASSERT_FALSE(whole);
  ASSERT_TRUE(reply->WaitDone());
  const auto events = Events(reply->body());
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(events.back().starts_with("data: {\"error\":")) << events.back();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(IdOf(events[i]), "cmpl-r:" + std::to_string(i + 1));
  }
  auto again = Fetch(server, "cmpl-r:" + std::to_string(events.size() - 1));
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->body(), events.back());
}

// HEAD does not affect the client that reads the stream.
TEST(Resume, HeadShowsTheHeadAndLeavesTheStreamAlone) {
  TestServer server(Resumable());
  server.gate.Close();
  auto reading = StartStream(server);
  auto head = server.Start("HEAD", "/v1/streams/cmpl-r");
  ASSERT_TRUE(head->WaitDone());
  EXPECT_EQ(head->status(), 200);
  EXPECT_EQ(head->Header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(head->Header("x-stream-id"), "cmpl-r");
  EXPECT_EQ(head->body(), "");
  EXPECT_EQ(server.Start("HEAD", "/v1/streams/cmpl-other")->status(), 404);
  server.gate.Open();
  ASSERT_TRUE(reading->WaitDone());
  EXPECT_EQ(
      server.Start("HEAD", "/v1/streams/cmpl-r", "", {{"Last-Event-ID", "cmpl-r:999"}})->status(),
      400);
  EXPECT_FALSE(reading->body().empty());
  EXPECT_TRUE(reading->body().ends_with("[DONE]\n\n"));
}

}  // namespace
}  // namespace millrace::serve
