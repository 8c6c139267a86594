// Work before the controller: bounded by what a request can use, shared among API keys, ended when
// the client leaves; and small requests do not wait behind large ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/body_pool.h"
#include "serve/http/fair_queue.h"
#include "serve/http/limits.h"
#include "serve/http/worker_pool.h"
#include "serve/stored/background_queue.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

using std::chrono::steady_clock;

std::string Repeated(std::string_view part, size_t bytes) {
  std::string text;
  text.reserve(bytes + part.size());
  while (text.size() < bytes) text += part;
  return text;
}

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

TEST(FairQueue, ClientsTakeTurnsByCost) {
  FairQueue<int> queue;
  for (int i = 0; i < 6; ++i) queue.Push("a", 10, i);
  queue.Push("b", 30, 100);
  queue.Push("b", 10, 101);
  std::vector<int> order;
  while (auto next = queue.Pop()) order.push_back(*next);
  EXPECT_EQ(order, (std::vector<int>{0, 100, 1, 2, 3, 101, 4, 5}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.cost(), 0);
}

TEST(FairQueue, WhoeverHoldsMostMakesRoom) {
  FairQueue<int> queue;
  for (int i = 0; i < 3; ++i) queue.Push("a", 10, i);
  queue.Push("b", 5, 10);
  EXPECT_EQ(queue.PushOut("c", 10), 2) << "the newest of a";
  EXPECT_EQ(queue.PushOut("a", 10), std::nullopt) << "a itself holds most";
  EXPECT_EQ(queue.PushOut("b", 100), std::nullopt) << "b would hold more than a";
  EXPECT_EQ(queue.TakeIf([](int thing) { return thing == 0 || thing == 10; }),
            (std::vector<int>{0, 10}));
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.size_of("b"), 0u);
  EXPECT_EQ(queue.cost(), 10);
}

// Counts what runs, and holds what waits.
struct Recorder {
  BodyTask Task(const std::string& owner, size_t bytes, const std::string& name) {
    return {.owner = owner,
            .bytes = bytes,
            .run =
                [this, name] {
                  Add("began " + name);
                  gate.Pass();
                  Add("ran " + name);
                },
            .unwanted = [this, name] { return name == gone; },
            .refuse = [this, name] { Add("refused " + name); }};
  }
  void Add(const std::string& what) {
    MutexLock lock(mutex);
    seen.push_back(what);
  }
  bool Wait(const std::string& what) {
    for (int i = 0; i < 10'000; ++i) {
      {
        MutexLock lock(mutex);
        if (std::ranges::find(seen, what) != seen.end()) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::vector<std::string> All() {
    MutexLock lock(mutex);
    return seen;
  }
  Gate gate;
  std::string gone;
  Mutex mutex;
  std::vector<std::string> seen;
};

TEST(BodyPool, ATaskWaitsOnlyBehindThoseOfItsSize) {
  Recorder recorder, open;
  BodyPool pool({100, 1000, 10'000}, 64, 1 << 20);
  recorder.gate.Close();
  for (int i = 0; i < 5; ++i) pool.Post(recorder.Task("", 5000, "large"));
  pool.Post(open.Task("", 500, "middle"));
  pool.Post(open.Task("", 50, "small"));
  EXPECT_TRUE(open.Wait("ran middle"));
  EXPECT_TRUE(open.Wait("ran small"));
  EXPECT_EQ(std::ranges::count(recorder.All(), "ran large"), 0);
  recorder.gate.Open();
}

TEST(BodyPool, KeysShareAThreadAndItsMemory) {
  Recorder recorder;
  {
    BodyPool pool({1000}, 64, 1000);
    recorder.gate.Close();
    pool.Post(recorder.Task("a", 100, "first"));
    ASSERT_TRUE(recorder.Wait("began first"));
    for (int i = 0; i < 9; ++i) pool.Post(recorder.Task("a", 100, fmt::format("a{}", i)));
    pool.Post(recorder.Task("b", 100, "b0"));
    EXPECT_EQ(recorder.All().size(), 1u) << "there is room for ten";
    pool.Post(recorder.Task("b", 100, "b1"));
    EXPECT_TRUE(recorder.Wait("refused a8")) << "a holds most";
    pool.Post(recorder.Task("a", 100, "a9"));
    EXPECT_TRUE(recorder.Wait("refused a9"));
    recorder.gone = "a0";  // its client leaves
    pool.Post(recorder.Task("a", 100, "a10"));
    EXPECT_TRUE(recorder.Wait("refused a0"));
    recorder.gate.Open();
  }
  const std::vector<std::string> all = recorder.All();
  EXPECT_EQ(std::ranges::count(all, "refused a10"), 0);
  const auto at = [&](const char* what) { return std::ranges::find(all, what) - all.begin(); };
  EXPECT_LT(at("ran b1"), at("ran a4")) << "b does not wait until a is done";
}

TEST(BodyPool, ATaskThatThrowsEndsAlone) {
  Recorder recorder;
  BodyPool pool({1000}, 64, 1 << 20);
  const auto held = std::make_shared<int>(0);
  pool.Post({.bytes = 1, .run = [held] { throw std::bad_alloc(); }});
  pool.PostAlways([held] { throw std::runtime_error("by design"); });
  pool.Post(recorder.Task("", 10, "next"));
  EXPECT_TRUE(recorder.Wait("ran next"));
  EXPECT_EQ(held.use_count(), 1) << "a reply would be dropped, which answers 500";
}

TEST(WorkerPool, ATaskThatThrowsEndsAlone) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(1, 8);
    pool.Post([] { throw std::bad_alloc(); });
    EXPECT_TRUE(pool.TryPost([&] { ++ran; }));
  }
  EXPECT_EQ(ran, 1);
}

// Its first part finds no memory.
class ThrowingReply : public RecordingReply {
 public:
  void Send(net::HttpResponse response) override {
    if (!std::exchange(thrown_, true)) throw std::bad_alloc();
    RecordingReply::Send(std::move(response));
  }

 private:
  bool thrown_ = false;
};

TEST(Exceptions, EndTheirRequestWith500AndNoOther) {
  TestServer server;
  for (const char* path : {"/v1/completions", "/v1/embeddings"}) {
    const Json body = {{"prompt", "a"}, {"max_tokens", 2}};
    const Json input = {{"input", "a"}};
    const bool text = std::string_view(path) == "/v1/completions";
    auto reply = std::make_shared<ThrowingReply>();
    server.service->Handler(Endpoint::kMain)({.method = "POST",
                                              .path = path,
                                              .headers = {{"content-type", "application/json"}},
                                              .body = DumpJson(text ? body : input)},
                                             reply);
    if (text) {
      ASSERT_TRUE(reply->WaitDone());
      EXPECT_EQ(reply->status(), 500) << reply->body();
    }
    EXPECT_TRUE(server.WaitUntilFree());
    server.Call("/v1/completions", body);
  }
}

TEST(BackgroundQueue, AJobThatThrowsGivesItsPlaceToTheNext) {
  BackgroundQueue queue(1, 10, Duration::Millis(1));
  std::atomic<int> ran = 0;
  queue.Post("", 1, [](auto) { throw std::bad_alloc(); });
  queue.Post("", 1, [](auto end) {
    end(BackgroundQueue::End::kDone);
    throw std::bad_alloc();
  });
  queue.Post("", 1, [&](auto end) {
    ++ran;
    end(BackgroundQueue::End::kDone);
  });
  queue.Start();
  for (int i = 0; i < 1000 && ran == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(ran, 1);
}

TEST(BackgroundQueue, AKeyWithAThousandJobsDoesNotHoldUpAnother) {
  BackgroundQueue queue(1, 2000, Duration::Millis(1));
  std::atomic<int> begun = 0, turn_of_b = -1;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(queue.TryPost("a", 10, [&](auto end) {
      ++begun;
      end(BackgroundQueue::End::kDone);
    }));
  }
  EXPECT_FALSE(queue.TryPost("a", 10, [](auto) {})) << "half of the places";
  ASSERT_TRUE(queue.TryPost("b", 10, [&](auto end) {
    turn_of_b = begun.load();
    end(BackgroundQueue::End::kDone);
  }));
  queue.Start();
  while (begun < 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(turn_of_b.load(), 0);
  EXPECT_LE(turn_of_b.load(), 2);
}

// Of all threads: a busy machine does not change it.
void ExpectCpuSecondsBelow(double limit_s, std::clock_t begin) {
#ifndef MILLRACE_SANITIZED  // sanitizers take time of their own
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, limit_s);
#else
  (void)limit_s, (void)begin;
#endif
}

// 16 MiB of text, of which 256 tokens are used. Tokenizing all of it would take many seconds and
// gigabytes.
TEST(LongTexts, AreCutBeforeTheyAreTokenizedAsAWhole) {
  TestServer server;
  const std::string text = Repeated("word abc and ", 15 << 20);
  const std::clock_t begin = std::clock();
  const Json cut =
      server.Call("/v1/embeddings",
                  {{"input", text}, {"truncate_prompt_tokens", -1}, {"truncation_side", "right"}});
  const Json end = server.Call("/v1/embeddings", {{"input", text}, {"truncate_prompt_tokens", -1}});
  ExpectCpuSecondsBelow(20, begin);
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 256);
  EXPECT_EQ(cut["data"], server.Call("/v1/embeddings", {{"input", text.substr(0, 256)}})["data"]);
  EXPECT_EQ(end["data"],
            server.Call("/v1/embeddings", {{"input", text.substr(text.size() - 256)}})["data"]);
}

TEST(LongTexts, AreRefusedOnEveryRouteBeforeTheyAreTokenizedAsAWhole) {
  TestServerOptions options;
  options.max_model_len = 63'000;  // 256 bytes per token: all of the text might fit
  options.num_blocks = 8192;
  TestServer server(options);
#ifdef MILLRACE_SANITIZED
  const std::string text = Repeated("word abc and ", 1 << 20);
#else
  const std::string text = Repeated("word abc and ", 15 << 20);
#endif
  const Json messages = {{{"role", "user"}, {"content", text}}};
  const std::clock_t begin = std::clock();
  for (const auto& [path, body] : std::vector<std::pair<std::string, Json>>{
           {"/v1/completions", {{"prompt", text}}},
           {"/v1/chat/completions", {{"messages", messages}}},
           {"/v1/embeddings", {{"input", text}}},
           {"/v1/score", {{"text_1", "a"}, {"text_2", text}}},
           {"/rerank", {{"query", text}, {"documents", {"a"}}}},
           {"/tokenize", {{"prompt", text}}},
           {"/tokenize", {{"messages", messages}}},
           {"/v1/messages/count_tokens", {{"messages", messages}}},
           {"/v1/responses", {{"input", text}}},
           {"/v1/responses", {{"input", text}, {"background", true}}}}) {
    const Json answer = server.Call(path, body, 400);
    const std::string message = answer["error"]["message"];
    EXPECT_NE(message.find("maximum context length is 63000 tokens"), std::string::npos) << path;
    EXPECT_NE(message.find("at least"), std::string::npos) << path << ": " << message;
  }
  ExpectCpuSecondsBelow(60, begin);
}

TEST(LongTexts, ThatCannotBeDividedHaveALimit) {
  TestServer server;
  const Json answer =
      server.Call("/v1/embeddings",
                  {{"input", std::string(2 << 20, 'x')}, {"truncate_prompt_tokens", -1}}, 400);
  EXPECT_EQ(answer["error"]["code"], "context_length_exceeded");
  EXPECT_NE(answer["error"]["message"].get<std::string>().find("the limit is 1048576"),
            std::string::npos)
      << answer;
}

TEST(LargeBodies, HaveALimitOfParts) {
  TestServer server;
  std::string body = R"({"prompt":"a","unknown":[)";
  while (body.size() < 4 << 20) body += "[],";
  const auto reply = server.Start("POST", "/v1/completions", body + "[]]}");
  ASSERT_TRUE(reply->WaitDone());
  EXPECT_EQ(reply->status(), 400);
  EXPECT_NE(reply->body().find("more than 1048576 strings, lists and objects"), std::string::npos);
}

TEST(LargeBodies, DoNotHoldUpSmallOnes) {
  TestServerOptions options;
  options.max_model_len = 60'000;
  options.num_blocks = 8192;
  TestServer server(options);
  const std::string large = DumpJson({{"prompt", Repeated("word abc and ", 15 << 20)}});
  std::vector<std::shared_ptr<RecordingReply>> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(server.Start("POST", "/tokenize", large));
  auto small = server.Start("POST", "/tokenize",
                            DumpJson({{"prompt", Repeated("word ", 4 * kInlineBodyBytesMax)}}));
  ASSERT_TRUE(small->WaitDone());
  EXPECT_EQ(small->status(), 200);
  EXPECT_TRUE(waiting.back()->body().empty()) << "all of the large ones were done before";
  for (auto& reply : waiting) reply->Disconnect();
}

TEST(LargeBodies, EndWhenTheirClientLeaves) {
  TestServerOptions options;
  options.max_model_len = 60'000;
  options.num_blocks = 8192;
  TestServer server(options);
  // 512 texts that all fit: seconds of work.
  const Json inputs(std::vector<Json>(512, Repeated("word abc and ", 30'000)));
  const std::string body = DumpJson({{"input", inputs}});
  const auto begin = steady_clock::now();
  std::vector<std::shared_ptr<RecordingReply>> gone;
  for (int i = 0; i < 6; ++i) gone.push_back(server.Start("POST", "/v1/embeddings", body));
  for (auto& reply : gone) reply->Disconnect();
  const Json answer =
      server.Call("/tokenize", {{"prompt", Repeated("word ", 2 << 20)}}, 400);  // of the same class
  const double freed_s = SecondsSince(begin);
  EXPECT_TRUE(server.WaitUntilFree());
  const auto stats = server.engine->Stats().scheduler;
  EXPECT_EQ(std::accumulate(std::begin(stats.requests_finished), std::end(stats.requests_finished),
                            uint64_t{0}),
            0u)
      << "none of it came to the engine";
  EXPECT_LT(freed_s, 15);
}

}  // namespace
}  // namespace millrace::serve
