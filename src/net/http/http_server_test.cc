#include "net/http/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "net/testing/raw_client.h"

namespace millrace::net {
namespace {

HttpServerOptions ShortTimeouts() {
  HttpServerOptions options;
  options.head_timeout = Duration::Millis(300);
  options.idle_timeout = Duration::Millis(400);
  options.body_grace = Duration::Millis(300);
  options.write_timeout = Duration::Millis(500);
  options.linger_timeout = Duration::Millis(200);
  options.limits.head_bytes_max = 4096;
  options.limits.target_bytes_max = 1024;
  options.limits.headers_max = 20;
  options.limits.body_bytes_max = 4096;
  return options;
}

// Answers "METHOD path query body".
void Echo(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  reply->Send({200,
               {{"Content-Type", "text/plain"}},
               request.method + " " + request.path + " " + request.query + " " + request.body});
}

std::unique_ptr<HttpServer> StartOrDie(const HttpServerOptions& options, HttpHandler handler) {
  auto server = HttpServer::Start(options, std::move(handler));
  MR_CHECK(server.ok()) << server.status().ToString();
  return std::move(server).value();
}

std::string Get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n";
}

std::string Post(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

TEST(HttpServer, AnswersManyRequestsOnOneConnection) {
  auto server = StartOrDie(ShortTimeouts(), Echo);
  RawClient client(server->port());
  for (int i = 0; i < 100; ++i) {
    client.Send(Post("/a%20b?x=%31", "body" + std::to_string(i)));
    const std::string response = client.ReadResponse();
    EXPECT_EQ(StatusOf(response), 200);
    EXPECT_TRUE(response.ends_with("POST /a b x=%31 body" + std::to_string(i))) << response;
    EXPECT_NE(response.find("\r\nServer: millrace\r\n"), std::string::npos);
    EXPECT_NE(response.find("\r\nDate: "), std::string::npos);
    EXPECT_NE(response.find("\r\nConnection: keep-alive\r\n"), std::string::npos);
  }
}

TEST(HttpServer, StreamsChunksFromAnotherThread) {
  std::vector<std::thread> threads;
  auto server = StartOrDie(ShortTimeouts(), [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    threads.emplace_back([reply] {
      reply->Start({200, {{"Content-Type", "text/event-stream"}}, ""});
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(reply->Write("data: " + std::to_string(i) + "\n\n"));
      reply->End();
    });
  });
  RawClient client(server->port());
  for (int round = 0; round < 3; ++round) {
    client.Send(Get("/"));
    const std::string response = client.ReadUntil("\r\n0\r\n\r\n");
    EXPECT_NE(response.find("\r\nTransfer-Encoding: chunked\r\n"), std::string::npos);
    EXPECT_TRUE(
        response.ends_with("\r\n\r\n9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n"
                           "9\r\ndata: 2\n\n\r\n9\r\ndata: 3\n\n\r\n"
                           "9\r\ndata: 4\n\n\r\n0\r\n\r\n"))
        << response;
  }
  for (auto& thread : threads) thread.join();
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrderOneAtATime) {
  std::atomic<int> at_once{0}, at_once_max{0};
  std::vector<std::thread> threads;
  auto server = StartOrDie(ShortTimeouts(), [&](HttpRequest r, std::shared_ptr<HttpReply> reply) {
    at_once_max = std::max(at_once_max.load(), ++at_once);
    threads.emplace_back([&, r = std::move(r), reply] {
      if (r.path.ends_with('3')) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      --at_once;
      reply->Send({200, {}, r.path});
    });
  });
  RawClient client(server->port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += Get("/" + std::to_string(i));
  client.Send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(client.ReadResponse().ends_with("\r\n\r\n/" + std::to_string(i)));
  }
  EXPECT_EQ(at_once_max, 1);
  for (auto& thread : threads) thread.join();
}

TEST(HttpServer, HeadGetsTheHeadOnly) {
  auto server = StartOrDie(ShortTimeouts(), Echo);
  RawClient client(server->port());
  client.Send("HEAD /x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const std::string response = client.ReadToEnd();
  EXPECT_NE(response.find("Content-Length: 9\r\n"), std::string::npos) << response;
  EXPECT_TRUE(response.ends_with("\r\n\r\n"));
}

TEST(HttpServer, AHandlerThatDoesNotAnswerGivesA500) {
  auto server = StartOrDie(ShortTimeouts(), [](HttpRequest, std::shared_ptr<HttpReply>) {});
  RawClient client(server->port());
  client.Send(Get("/"));
  EXPECT_EQ(StatusOf(client.ReadResponse()), 500);
}

TEST(HttpServer, AnAbandonedStreamIsCutAndNotEnded) {
  auto server = StartOrDie(ShortTimeouts(), [](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    reply->Write("part");
  });
  RawClient client(server->port());
  client.Send(Get("/"));
  const std::string response = client.ReadToEnd();
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(response.ends_with("4\r\npart\r\n")) << response;
}

TEST(HttpServer, AOneZeroClientGetsAStreamUntilClose) {
  auto server = StartOrDie(ShortTimeouts(), [](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    reply->Write("one");
    reply->Write("two");
    reply->End();
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.0\r\n\r\n");
  const std::string response = client.ReadToEnd();
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(response.ends_with("\r\n\r\nonetwo")) << response;
}

TEST(HttpServer, AOneZeroClientKeepsTheConnectionOnRequest) {
  auto server = StartOrDie(ShortTimeouts(), Echo);
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.Send("GET /" + std::to_string(i) + " HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    const std::string response = client.ReadResponse();
    EXPECT_NE(response.find("\r\nConnection: keep-alive\r\n"), std::string::npos) << response;
    EXPECT_NE(response.find("\r\nContent-Length: "), std::string::npos) << response;
    EXPECT_TRUE(response.ends_with("GET /" + std::to_string(i) + "  ")) << response;
  }
  client.Send("GET /last HTTP/1.0\r\n\r\n");
  const std::string last = client.ReadToEnd();
  EXPECT_NE(last.find("\r\nConnection: close\r\n"), std::string::npos) << last;
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, AOneZeroStreamEndsTheConnectionDespiteKeepAlive) {
  auto server = StartOrDie(ShortTimeouts(), [](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    reply->Write("part");
    reply->End();
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string response = client.ReadToEnd();
  EXPECT_TRUE(client.closed());
  EXPECT_NE(response.find("\r\nConnection: close\r\n"), std::string::npos) << response;
  EXPECT_TRUE(response.ends_with("\r\n\r\npart")) << response;
}

TEST(HttpServer, HeadersOfAReplyCannotBeForged) {
  auto server = StartOrDie(ShortTimeouts(), [](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Send({200, {{"x-id", "a\r\nEvil: 1"}, {"Content-Length", "99"}}, "ok"});
  });
  RawClient client(server->port());
  client.Send(Get("/"));
  const std::string response = client.ReadResponse();
  EXPECT_EQ(response.find("\r\nEvil"), std::string::npos);
  EXPECT_NE(response.find("x-id: a  Evil: 1\r\n"), std::string::npos);
  EXPECT_TRUE(response.ends_with("Content-Length: 2\r\nConnection: keep-alive\r\n\r\nok"));
}

TEST(HttpServer, ExpectContinueIsAnsweredBeforeTheBody) {
  auto server = StartOrDie(ShortTimeouts(), Echo);
  RawClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  EXPECT_TRUE(client.ReadResponse().ends_with("POST /  hi"));
}

// Expects that the handler is notified of a disconnect soon, streaming or not.
void ExpectDisconnectNoticed(bool streaming, bool reset) {
  std::mutex mutex;
  std::shared_ptr<HttpReply> held;
  std::atomic<bool> gone{false};
  auto server = StartOrDie({}, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->OnDisconnect([&] { gone = true; });
    if (streaming) reply->Start({200, {}, ""});
    if (streaming) reply->Write("first");
    std::lock_guard lock(mutex);
    held = std::move(reply);
  });
  RawClient client(server->port());
  client.Send(Get("/"));
  if (streaming) client.ReadUntil("first");
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return held != nullptr;
  }));
  EXPECT_FALSE(gone);
  EXPECT_FALSE(held->disconnected());
  const Time closed_at = SteadyClock().Now();
  reset ? client.Reset() : client.Close();
  ASSERT_TRUE(Eventually([&] { return gone.load(); }));
  EXPECT_LT((SteadyClock().Now() - closed_at).seconds(), 2.0);  // generous, for busy machines
  EXPECT_TRUE(held->disconnected());
  EXPECT_FALSE(held->Write("more"));
  held->Send({});
  held->End();
  bool at_once = false;
  held->OnDisconnect([&] { at_once = true; });
  EXPECT_TRUE(at_once);
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(HttpServer, ReportsADisconnectWhileStreaming) {
  ExpectDisconnectNoticed(/*streaming=*/true, /*reset=*/false);
  ExpectDisconnectNoticed(/*streaming=*/true, /*reset=*/true);
}

TEST(HttpServer, ReportsADisconnectWhileTheReplyIsPending) {
  ExpectDisconnectNoticed(/*streaming=*/false, /*reset=*/false);
  ExpectDisconnectNoticed(/*streaming=*/false, /*reset=*/true);
}

TEST(HttpServer, CutsOffAndReportsAReaderThatDoesNotRead) {
  HttpServerOptions options;
  options.send_buffer_bytes = 8 * 1024;
  options.unread_bytes_max = 32 * 1024;
  std::atomic<bool> gone{false}, refused{false};
  std::thread writer;
  auto server = StartOrDie(options, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->OnDisconnect([&] { gone = true; });
    reply->Start({200, {}, ""});
    writer = std::thread([&, reply] {
      const std::string part(1000, 'x');
      for (int i = 0; i < 100'000 && !refused; ++i) {
        if (!reply->Write(part)) refused = true;
        if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  });
  RawClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send(Get("/"));
  EXPECT_TRUE(Eventually([&] { return refused.load(); }));
  EXPECT_TRUE(Eventually([&] { return gone.load(); }));
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
  writer.join();
}

TEST(HttpServer, CutsOffAReaderThatReadsNothingForTheWriteTimeout) {
  HttpServerOptions options = ShortTimeouts();
  options.send_buffer_bytes = 8 * 1024;
  std::atomic<int> sent{0};
  auto server = StartOrDie(options, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Send({200, {}, std::string(8 << 20, 'x')});
    ++sent;
  });
  RawClient client(server->port(), 4096);
  client.Send(Get("/"));
  EXPECT_TRUE(Eventually([&] { return sent == 1; }));
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(HttpServer, ManyStreamsAtOnceAllComplete) {
  constexpr int kStreams = 64, kParts = 50;
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpReply>> replies;
  auto server = StartOrDie({}, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    std::lock_guard lock(mutex);
    replies.push_back(std::move(reply));
  });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->Send(Get("/"));
  }
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return replies.size() == kStreams;
  }));
  for (int part = 0; part < kParts; ++part) {
    for (auto& reply : replies) EXPECT_TRUE(reply->Write(fmt::format("<{}>", part)));
  }
  for (auto& reply : replies) reply->End();
  for (auto& client : clients) {
    const std::string response = client->ReadUntil("\r\n0\r\n\r\n");
    size_t at = 0;
    for (int part = 0; part < kParts; ++part) {
      at = response.find(fmt::format("<{}>", part), at);
      ASSERT_NE(at, std::string::npos) << part;
    }
  }
}

TEST(HttpServer, StopLetsRepliesInProgressFinish) {
  std::thread worker;
  auto server = StartOrDie({}, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Start({200, {}, ""});
    reply->Write("begin");
    worker = std::thread([reply] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      reply->Write("end");
      reply->End();
    });
  });
  RawClient idle(server->port());
  RawClient busy(server->port());
  busy.Send(Get("/"));
  busy.ReadUntil("begin");
  std::thread reader([&] { EXPECT_EQ(busy.ReadToEnd(), "\r\n3\r\nend\r\n0\r\n\r\n"); });
  const Time start = SteadyClock().Now();
  server->Stop(Duration::Seconds(30));
  EXPECT_LT((SteadyClock().Now() - start).seconds(), 15.0);
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(RawClient(server->port()).connected());
  reader.join();
  worker.join();
}

TEST(HttpServer, StopCutsRepliesAfterTheLimit) {
  std::shared_ptr<HttpReply> held;
  std::atomic<bool> gone{false}, started{false};
  auto server = StartOrDie({}, [&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->OnDisconnect([&] { gone = true; });
    held = std::move(reply);
    started = true;
  });
  RawClient client(server->port());
  client.Send(Get("/"));
  ASSERT_TRUE(Eventually([&] { return started.load(); }));
  server->Stop(Duration::Millis(50));
  EXPECT_TRUE(gone);
  EXPECT_EQ(client.ReadToEnd(), "");
  server.reset();
  held->Send({200, {}, "too late"});  // harmless after the server has been destroyed
  EXPECT_TRUE(held->disconnected());
}

}  // namespace
}  // namespace millrace::net
