#include "apps/bench/load_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/json.h"
#include "net/http/http_server.h"

namespace millrace::apps {
namespace {

Time At(int64_t ms) { return Time{ms * 1'000'000}; }

std::string Chunk(const std::string& text) {
  return "data: " + Json{{"choices", {{{"text", text}}}}}.dump() + "\n\n";
}

constexpr char kUsage[] =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n";

TEST(StreamTimer, TimesEveryPieceForEverySplitOfTheBytes) {
  const std::string stream = Chunk("a") + Chunk("b") + Chunk("c") + kUsage + "data: [DONE]\n\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    StreamTimer timer(At(100), false);
    timer.Head(200);
    timer.Data(std::string_view(stream).substr(0, cut), At(150));
    timer.Data(std::string_view(stream).substr(cut), At(180));
    const Outcome outcome = timer.Finish(OkStatus(), At(500));
    EXPECT_EQ(outcome.error, "") << cut;
    EXPECT_EQ(outcome.text, "abc");
    EXPECT_EQ(outcome.output_tokens, 3);
    EXPECT_EQ(outcome.prompt_tokens, 7);
    EXPECT_EQ(outcome.itls_s.size(), 2u);
    const double sum = outcome.ttft_s + outcome.itls_s[0] + outcome.itls_s[1];
    EXPECT_NEAR(outcome.latency_s, sum, 1e-9);  // the time of the last piece, not of the end
  }
}

TEST(StreamTimer, AChatsRoleAndFinishReasonAreNotTokens) {
  StreamTimer timer(At(0), true);
  timer.Head(200);
  timer.Data("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
             At(10));
  timer.Data("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n", At(20));
  timer.Data("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", At(30));
  timer.Data("data: [DONE]\n\n", At(40));
  const Outcome outcome = timer.Finish(OkStatus(), At(50));
  EXPECT_NEAR(outcome.ttft_s, 0.02, 1e-9);
  EXPECT_EQ(outcome.output_tokens, 1);  // without usage, the pieces are counted
  EXPECT_TRUE(outcome.itls_s.empty());
}

TEST(StreamTimer, EveryFailureHasAReason) {
  const auto error = [](int status, const std::string& body, const Status& end = OkStatus()) {
    StreamTimer timer(At(0), false);
    timer.Head(status);
    timer.Data(body, At(1));
    return timer.Finish(end, At(2)).error;
  };
  EXPECT_EQ(error(429, R"({"error":{"message":"queue full"}})"), "HTTP 429: queue full");
  EXPECT_EQ(error(502, "<html>\n"), "HTTP 502: <html>\\n");
  EXPECT_EQ(error(200, Chunk("a")), "the stream ended before [DONE]");
  EXPECT_EQ(error(200, "data: [DONE]\n\n"), "the stream contained no token");
  EXPECT_EQ(error(200, "data: {\"error\":{\"message\":\"NaN\"}}\n\ndata: [DONE]\n\n"), "NaN");
  EXPECT_EQ(error(200, "data: x\n\ndata: [DONE]\n\n"), "an event of the stream is not JSON: x");
  EXPECT_EQ(error(200, Chunk("a"), Unavailable("connection lost")), "connection lost");
}

TEST(RequestBody, RequestsAStreamWithUsage) {
  LoadTarget target;
  target.model = "m";
  target.ignore_eos = true;
  BenchRequest request;
  request.prompt = {1, 2};
  request.output_len = 9;
  Json body = *ParseJson(RequestBody(target, request));
  EXPECT_EQ(body["prompt"], Json({1, 2}));
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["temperature"], 0);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["ignore_eos"], true);
  target.chat = true;
  request.prompt_text = "hello";
  body = *ParseJson(RequestBody(target, request));
  EXPECT_EQ(body["messages"][0]["content"], "hello");
  EXPECT_FALSE(body.contains("prompt"));
}

// Answers with three tokens at once and counts the requests that are open at the same time.
class FakeServer {
 public:
  FakeServer() {
    net::HttpServerOptions options;
    options.io_threads = 1;
    server_ = std::move(*net::HttpServer::Start(
        options, [this](net::HttpRequest request, std::shared_ptr<net::HttpReply> reply) {
          Answer(request, reply);
        }));
  }
  ~FakeServer() {
    server_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  uint16_t port() const { return server_->port(); }
  int open_max() const { return open_max_; }
  // "NAME=VALUE" of the headers of all requests.
  std::set<std::string> headers() {
    std::lock_guard lock(mutex_);
    return headers_;
  }

 private:
  void Answer(const net::HttpRequest& request, std::shared_ptr<net::HttpReply> reply) {
    {
      std::lock_guard lock(mutex_);
      for (const auto& [name, value] : request.headers) headers_.insert(name + "=" + value);
    }
    if (request.body.find("\"max_tokens\":13") != std::string::npos) {
      return reply->Send({400, {}, R"({"error":{"message":"unlucky"}})"});
    }
    const int open = ++open_;
    open_max_ = std::max<int>(open_max_, open);
    threads_.emplace_back([this, reply] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      --open_;
      reply->Start({200, {{"Content-Type", "text/event-stream"}}, ""});
      reply->Write(Chunk("a") + Chunk("b") + Chunk("c") + kUsage + "data: [DONE]\n\n");
      reply->End();
    });
  }

  std::mutex mutex_;
  std::set<std::string> headers_;
  std::atomic<int> open_ = 0, open_max_ = 0;
  std::vector<std::thread> threads_;  // written by the single I/O thread
  std::unique_ptr<net::HttpServer> server_;
};

TEST(LoadClient, SendsAllRequestsWithinTheConcurrencyLimit) {
  FakeServer server;
  const SteadyClock clock;
  auto http = net::HttpClient::Start({});
  ASSERT_TRUE(http.ok());
  LoadTarget target;
  target.url =
      *net::ParseUrl("http://127.0.0.1:" + std::to_string(server.port()) + "/v1/completions");
  target.headers = {{"Authorization", "Bearer sesame"}};
  LoadClient client(**http, target, clock);
  std::vector<BenchRequest> requests(30);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = {1, 2, 3};
    requests[i].output_len = i == 4 ? 13 : 3;
    requests[i].arrival_s = 0.002 * static_cast<double>(i);
  }
  int last_done = 0, last_failed = 0;
  const auto result = client.Run(requests, 3, [&](int done, int failed) {
    last_done = done;
    last_failed = failed;
  });
  EXPECT_EQ(last_done, 30);
  EXPECT_EQ(last_failed, 1);
  EXPECT_LE(server.open_max(), 3);
  for (const char* header : {"Authorization=Bearer sesame", "Content-Type=application/json"}) {
    EXPECT_TRUE(server.headers().contains(header)) << header;
  }
  EXPECT_GE(result.duration_s, 0.058);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Outcome& outcome = result.outcomes[i];
    EXPECT_EQ(outcome.error, i == 4 ? "HTTP 400: unlucky" : "");
    EXPECT_GE(outcome.start_s, requests[i].arrival_s);
    EXPECT_EQ(outcome.text, i == 4 ? "" : "abc");
  }
}

TEST(LoadClient, AnUnreachableServerFailsEachRequest) {
  const SteadyClock clock;
  auto http = net::HttpClient::Start({});
  LoadTarget target;
  target.url = *net::ParseUrl("http://127.0.0.1:1/v1/completions");
  LoadClient client(**http, target, clock);
  const auto result = client.Run(std::vector<BenchRequest>(3), {}, [](int, int) {});
  for (const Outcome& outcome : result.outcomes) EXPECT_NE(outcome.error, "");
}

}  // namespace
}  // namespace millrace::apps
