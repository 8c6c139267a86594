#include "net/http/http_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "net/http/http_server.h"
#include "net/http/sse.h"
#include "net/listener.h"
#include "net/testing/raw_client.h"

namespace millrace::net {
namespace {

std::unique_ptr<HttpClient> StartClient(const HttpClientOptions& options = {}) {
  auto client = HttpClient::Start(options);
  MR_CHECK(client.ok()) << client.status().ToString();
  return std::move(client).value();
}

std::unique_ptr<HttpServer> StartServer(HttpHandler handler, const HttpServerOptions& o = {}) {
  auto server = HttpServer::Start(o, std::move(handler));
  MR_CHECK(server.ok()) << server.status().ToString();
  return std::move(server).value();
}

Url UrlOf(const HttpServer& server, const std::string& target) {
  return *ParseUrl(fmt::format("http://127.0.0.1:{}{}", server.port(), target));
}

TEST(HttpClient, CallsReuseTheConnection) {
  std::mutex mutex;
  std::vector<std::string> peers;
  auto server = StartServer([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    std::lock_guard lock(mutex);
    peers.push_back(request.peer);
    reply->Send({request.method == "POST" ? 201 : 404,
                 {{"X-Test", *request.Header("x-in") == "1" ? "yes" : "no"}},
                 request.path + request.body});
  });
  auto client = StartClient();
  for (int i = 0; i < 3; ++i) {
    auto response = client->Call({"POST", UrlOf(*server, "/a"), {{"X-In", "1"}}, "body"});
    ASSERT_TRUE(response.ok()) << response.status().ToString();
    EXPECT_EQ(response->status, 201);
    EXPECT_EQ(response->body, "/abody");
    EXPECT_EQ(FindHeader(response->headers, "x-test"), "yes");
  }
  EXPECT_EQ(client->Call({"HEAD", UrlOf(*server, "/"), {{"X-In", "0"}}, ""})->status, 404);
  EXPECT_EQ(client->Call({"GET", UrlOf(*server, "/b"), {{"X-In", "0"}}, ""})->body, "/b");
  for (const std::string& peer : peers) EXPECT_EQ(peer, peers.front());
}

TEST(HttpClient, AConnectionClosedWhileIdleIsReplaced) {
  HttpServerOptions options;
  options.idle_timeout = Duration::Millis(50);
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpReply> reply) {
        reply->Send({200, {}, "ok"});
      },
      options);
  auto client = StartClient();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client->Call({"GET", UrlOf(*server, "/"), {}, ""})->body, "ok");
    ASSERT_TRUE(Eventually([&] { return server->connections() == 0; }));
  }
}

TEST(HttpClient, ErrorsNameTheCause) {
  auto client = StartClient();
  uint16_t dead_port;
  {
    auto server = StartServer([](HttpRequest, std::shared_ptr<HttpReply>) {});
    dead_port = server->port();
  }
  const Url url = *ParseUrl(fmt::format("http://127.0.0.1:{}/", dead_port));
  const Status refused = client->Call({"GET", url, {}, ""}).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.message(),
            fmt::format("cannot connect to {}: Connection refused", url.ToString()));
  EXPECT_EQ(client->Call({"GET", url, {{"A", "b\r\nC: d"}}, ""}).status().code(),
            StatusCode::kInvalidArgument);

  auto server = StartServer([](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    reply->Write("part");  // then drops the reply, which cuts the stream
  });
  const Status cut = client->Call({"GET", UrlOf(*server, "/"), {}, ""}).status();
  EXPECT_TRUE(cut.code() == StatusCode::kInternal || cut.code() == StatusCode::kUnavailable)
      << cut.ToString();
}

// Answers each connection with `response` and closes it.
class FixedServer {
 public:
  explicit FixedServer(std::string response) : response_(std::move(response)) {
    fcntl(listening_.get(), F_SETFL, 0);  // accept waits
    thread_ = std::thread([this] {
      for (int fd; (fd = accept(listening_.get(), nullptr, nullptr)) >= 0;) {
        const UniqueFd connection(fd);
        char request[4096];
        (void)!read(fd, request, sizeof request);
        (void)send(fd, response_.data(), response_.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~FixedServer() {
    shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  Url url() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return *ParseUrl(fmt::format("http://127.0.0.1:{}/", ntohs(address.sin_port)));
  }

 private:
  const std::string response_;
  const UniqueFd listening_ = *ListenOnTcp("127.0.0.1", 0);
  std::thread thread_;
};

TEST(HttpClient, ResponsesAreReadOrRefused) {
  HttpClientOptions options;
  options.body_bytes_max = 8;
  auto client = StartClient(options);
  const auto call = [&](std::string response) {
    FixedServer server(std::move(response));
    return client->Call({"GET", server.url(), {}, ""});
  };
  const std::string head = "HTTP/1.1 201 Created\r\nA:  b \r\n";
  for (const std::string& response :
       {head + "Content-Length: 3\r\n\r\nabc", head + "\r\nabc",
        head + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\nT: u\r\n\r\n",
        "HTTP/1.1 100 Continue\r\nI: j\r\n\r\n" + head + "Content-Length: 3\r\n\r\nabc"}) {
    const auto read = call(response);
    ASSERT_TRUE(read.ok()) << read.status().ToString() << "\n" << response;
    EXPECT_EQ(read->status, 201);
    EXPECT_EQ(read->body, "abc");
    EXPECT_EQ(FindHeader(read->headers, "a"), "b");
    EXPECT_FALSE(FindHeader(read->headers, "i")) << "of an interim response";
    EXPECT_FALSE(FindHeader(read->headers, "t")) << "a trailer";
  }
  EXPECT_EQ(call("").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(call(head + "Content-Length: 3\r\n\r\nab").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(call("what\r\n\r\n").status().code(), StatusCode::kInternal);
  const Status long_body = call(head + "\r\n123456789").status();
  EXPECT_EQ(long_body.code(), StatusCode::kInternal);
  EXPECT_TRUE(long_body.message().ends_with("the body is larger than the limit of 8 bytes"));
  const Status long_head = call(head + "B: " + std::string(40'000, 'b') + "\r\n\r\n").status();
  EXPECT_EQ(long_head.code(), StatusCode::kInternal) << long_head.ToString();
}

TEST(HttpClient, HeadersAreSentAsGivenAndNoOthers) {
  std::promise<HttpHeaders> sent;
  auto server = StartServer([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    sent.set_value(request.headers);
    reply->Send({});
  });
  auto client = StartClient();
  ASSERT_TRUE(
      client->Call({"POST", UrlOf(*server, "/"), {{"Content-Type", "a/b"}, {"X-Empty", ""}}, "x"})
          .ok());
  HttpHeaders headers = sent.get_future().get();
  std::sort(headers.begin(), headers.end());
  EXPECT_EQ(headers, (HttpHeaders{{"Content-Length", "1"},
                                  {"Content-Type", "a/b"},
                                  {"Host", fmt::format("127.0.0.1:{}", server->port())},
                                  {"X-Empty", ""}}));
}

// A callback may begin another fetch, and that one ends too.
TEST(HttpClient, TheDestructorEndsFetchesThatItsCallbacksBegin) {
  std::atomic<int> ended{0};
  const Url url = *ParseUrl("http://127.0.0.1:9/");
  {
    auto client = StartClient();
    client->Fetch(
        {"GET", url, {{"A", "\n"}}, ""},
        {nullptr, nullptr, [&](Status) {
           ++ended;
           client->Fetch({"GET", url, {}, ""}, {nullptr, nullptr, [&](Status) { ++ended; }});
         }});
  }
  EXPECT_EQ(ended, 2);
}

TEST(HttpClient, GivesUpOnASilentServer) {
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpReply>> held;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    std::lock_guard lock(mutex);
    held.push_back(std::move(reply));
  });
  HttpClientOptions options;
  options.read_timeout = Duration::Millis(100);
  auto client = StartClient(options);
  EXPECT_EQ(client->Call({"GET", UrlOf(*server, "/"), {}, ""}).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(HttpClient, CancelNotifiesBothSides) {
  std::atomic<bool> gone{false};
  std::shared_ptr<HttpReply> held;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->OnDisconnect([&] { gone = true; });
    reply->Start({200, {}, ""});
    reply->Write("x");
    held = std::move(reply);
  });
  auto client = StartClient();
  std::promise<void> started;
  std::promise<Status> done;
  FetchCallbacks callbacks;
  callbacks.on_data = [&](std::string_view) { started.set_value(); };
  callbacks.on_done = [&](Status status) { done.set_value(status); };
  const FetchId id = client->Fetch({"GET", UrlOf(*server, "/"), {}, ""}, callbacks);
  started.get_future().wait();
  client->Cancel(id);
  EXPECT_EQ(done.get_future().get().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return gone.load(); }));
  client->Cancel(id);  // the fetch has already ended
}

TEST(HttpClient, TheDestructorCancelsFetchesInProgress) {
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpReply>> held;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    std::lock_guard lock(mutex);
    held.push_back(std::move(reply));
  });
  std::atomic<int> cancelled{0};
  {
    auto client = StartClient();
    for (int i = 0; i < 10; ++i) {
      client->Fetch({"GET", UrlOf(*server, "/"), {}, ""},
                    {nullptr, nullptr, [&](Status status) {
                       if (status.code() == StatusCode::kCancelled) ++cancelled;
                     }});
    }
  }
  EXPECT_EQ(cancelled, 10);
}

// One thread of the client drives a thousand event streams; each gets its own events in order.
TEST(HttpClient, DrivesAThousandStreamsAtOnce) {
  constexpr int kStreams = 1000, kEvents = 10;
  std::mutex mutex;
  std::vector<std::pair<std::string, std::shared_ptr<HttpReply>>> replies;
  auto server = StartServer([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {{"Content-Type", "text/event-stream"}}, ""});
    std::lock_guard lock(mutex);
    replies.emplace_back(request.body, std::move(reply));
  });
  auto client = StartClient();
  struct Stream {
    std::string name;
    int events = 0, wrong = 0;
    std::unique_ptr<SseParser> parser;
  };
  std::vector<Stream> streams(kStreams);
  std::atomic<int> done{0}, failed{0};
  for (int i = 0; i < kStreams; ++i) {
    Stream& s = streams[i];
    s.name = std::to_string(i);
    s.parser = std::make_unique<SseParser>([&s](std::string_view, std::string_view data) {
      if (data != fmt::format("{} {}", s.name, s.events++)) ++s.wrong;
    });
    client->Fetch({"POST", UrlOf(*server, "/"), {}, s.name}, {nullptr,
                                                              [&s](std::string_view part) {
                                                                if (!s.parser->Feed(part).ok())
                                                                  ++s.wrong;
                                                              },
                                                              [&](Status status) {
                                                                if (!status.ok()) ++failed;
                                                                ++done;
                                                              }});
  }
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return replies.size() == kStreams;
  }));
  for (int event = 0; event < kEvents; ++event) {
    for (auto& [name, reply] : replies) {
      EXPECT_TRUE(reply->Write(SseEvent(fmt::format("{} {}", name, event))));
    }
  }
  for (auto& [name, reply] : replies) reply->End();
  EXPECT_TRUE(Eventually([&] { return done == kStreams; }));
  EXPECT_EQ(failed, 0);
  for (const Stream& s : streams) {
    EXPECT_EQ(s.events, kEvents);
    EXPECT_EQ(s.wrong, 0);
  }
}

}  // namespace
}  // namespace millrace::net
