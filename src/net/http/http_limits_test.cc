// Tests of the server with clients that break the rules, over real sockets.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "net/http/body_memory.h"
#include "net/http/http_server.h"
#include "net/listener.h"
#include "net/testing/raw_client.h"

namespace millrace::net {
namespace {

HttpServerOptions TightLimits() {
  HttpServerOptions options;
  options.head_timeout = Duration::Millis(400);
  options.idle_timeout = Duration::Millis(600);
  options.body_grace = Duration::Millis(400);
  options.body_bytes_per_second_min = 100'000;
  options.linger_timeout = Duration::Millis(200);
  options.limits.head_bytes_max = 4096;
  options.limits.target_bytes_max = 1024;
  options.limits.headers_max = 20;
  options.limits.body_bytes_max = 256 * 1024;
  return options;
}

class HttpLimitsTest : public testing::Test {
 protected:
  void Start(const HttpServerOptions& options) {
    auto server =
        HttpServer::Start(options, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
          ++handled_;
          reply->Send({200, {}, std::to_string(request.body.size())});
        });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
  }
  void ExpectHealthy() {
    RawClient client(server_->port());
    client.Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(StatusOf(client.ReadResponse()), 200);
  }

  std::atomic<int> handled_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpLimitsTest, BadRequestsGetAnErrorBodyAndAreClosed) {
  Start(TightLimits());
  const std::string host = "Host: t\r\n";
  const std::pair<std::string, int> manifest[] = {
      {"\x16\x03\x01\x02", 400},
      {"SSH-2.0-x\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
      {"CONNECT h:1 HTTP/1.1\r\n" + host + "\r\n", 405},
      {"POST / HTTP/1.1\r\n" + host + "Expect: x\r\n\r\n", 417},
      {"GET /" + std::string(65536, 'x') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(1 << 20, 'x') + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1000000000000\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nfffff\r\n", 413},
  };
  for (const auto& [bytes, status] : manifest) {
    RawClient client(server_->port());
    client.Send(bytes);
    const Time start = SteadyClock().Now();
    const std::string response = client.ReadToEnd();
    EXPECT_EQ(StatusOf(response), status) << bytes.substr(0, 60);
    EXPECT_TRUE(client.closed());
    EXPECT_LT((SteadyClock().Now() - start).seconds(), 5.0);
    const auto body = ParseJson(response.substr(response.find("\r\n\r\n") + 4));
    ASSERT_TRUE(body.ok()) << response;
    EXPECT_EQ((*body)["error"]["type"], status >= 500 ? "server_error" : "invalid_request_error");
    EXPECT_NE(response.find("\r\nConnection: close\r\n"), std::string::npos);
  }
  EXPECT_EQ(handled_, 0);
  ExpectHealthy();
}

TEST_F(HttpLimitsTest, ABodyOfOneByteChunksArrivesWhole) {
  Start(TightLimits());
  RawClient client(server_->port());
  std::string body = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 100'000; ++i) body += "1\r\nx\r\n";
  client.Send(body + "0\r\n\r\n");
  EXPECT_TRUE(client.ReadResponse().ends_with("\r\n\r\n100000"));
}

TEST_F(HttpLimitsTest, AnEndlessChunkedBodyIsStoppedAtTheLimit) {
  Start(TightLimits());
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "4000\r\n" + std::string(0x4000, 'x') + "\r\n";
  for (int i = 0; i < 64; ++i) client.Send(chunk);
  EXPECT_EQ(StatusOf(client.ReadToEnd()), 413);
}

TEST_F(HttpLimitsTest, AllBodiesTogetherAreLimitedToo) {
  HttpServerOptions options;
  options.body_bytes_in_all_max = 150'000;
  Start(options);
  const std::string part(100'000, 'x');
  const std::string head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100001\r\n\r\n";
  RawClient a(server_->port()), b(server_->port());
  a.Send(head + part);
  b.Send(head + part);
  // The request that crosses the limit is refused; the other one finishes.
  pollfd waits[2] = {{a.fd(), POLLIN, 0}, {b.fd(), POLLIN, 0}};
  ASSERT_EQ(poll(waits, 2, kTestPatienceMs), 1);
  RawClient& refused = waits[0].revents != 0 ? a : b;
  RawClient& taken = waits[0].revents != 0 ? b : a;
  EXPECT_EQ(StatusOf(refused.ReadResponse()), 503);
  taken.Send("x");
  EXPECT_EQ(StatusOf(taken.ReadResponse()), 200);
  RawClient later(server_->port());
  later.Send(head + part + "x");
  EXPECT_EQ(StatusOf(later.ReadResponse()), 200);
}

TEST_F(HttpLimitsTest, AllThreadsShareTheMemoryOfBodies) {
  HttpServerOptions options;
  options.io_threads = 4;
  options.body_bytes_in_all_max = 250'000;
  Start(options);
  const std::string begun =
      "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100001\r\n\r\n" + std::string(100'000, 'x');
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(begun);
  }
  int refused = 0, taken = 0;
  for (const auto& client : clients) {
    pollfd wait{client->fd(), POLLIN, 0};
    if (poll(&wait, 1, 500) == 1) {
      EXPECT_EQ(StatusOf(client->ReadResponse()), 503);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 2);
  for (const auto& client : clients) {
    if (client->Send("x") && StatusOf(client->ReadResponse()) == 200) ++taken;
  }
  EXPECT_EQ(taken, 2);
  ExpectHealthy();
}

TEST_F(HttpLimitsTest, AnAddressHasItsPartOfTheMemoryOfBodies) {
  HttpServerOptions options;
  options.body_bytes_per_address_max = 150'000;
  Start(options);
  const std::string head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100001\r\n\r\n";
  RawClient a(server_->port()), b(server_->port());
  a.Send(head + std::string(100'000, 'x'));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  b.Send(head + std::string(100'000, 'x'));
  const std::string refusal = b.ReadResponse();
  EXPECT_EQ(StatusOf(refusal), 503);
  EXPECT_NE(refusal.find("from this address"), std::string::npos) << refusal;
  a.Send("x");
  EXPECT_EQ(StatusOf(a.ReadResponse()), 200);
}

TEST_F(HttpLimitsTest, AFastBeginningIsNoCreditForALongWait) {
  Start(TightLimits());
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 250000\r\n\r\n" +
              std::string(249'000, 'x'));  // 2.5 s at the slowest rate
  const Time start = SteadyClock().Now();
  EXPECT_EQ(StatusOf(client.ReadToEnd()), 408);
  EXPECT_LT((SteadyClock().Now() - start).seconds(), 1.6) << "two windows of 0.4 s";
}

TEST(BodyMemory, CountsWhatRequestsHold) {
  BodyMemory memory(100, 60);
  BodyLease a(memory, "10.0.0.1:1"), b(memory, "10.0.0.1:2"), c(memory, "[::1]:3");
  EXPECT_EQ(a.Resize(40), BodyMemory::Room::kYes);
  EXPECT_EQ(b.Resize(21), BodyMemory::Room::kNoneForAddress);
  EXPECT_EQ(b.Resize(10), BodyMemory::Room::kYes) << "freeing is always possible";
  EXPECT_EQ(c.Resize(50), BodyMemory::Room::kYes);
  EXPECT_EQ(c.Resize(51), BodyMemory::Room::kNone);
  c.Resize(0);
  EXPECT_EQ(memory.held(), 50u);
}

TEST_F(HttpLimitsTest, ASlowHeadIsClosedInTime) {
  Start(TightLimits());
  RawClient silent(server_->port());
  RawClient slow(server_->port());
  const Time start = SteadyClock().Now();
  std::thread dripping([&] {
    for (const char c : std::string_view("GET / HTTP/1.1\r\nHost: t\r\nA: bbbbbbbbbbbbb")) {
      if (!slow.Send({&c, 1})) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
  });
  ExpectHealthy();
  EXPECT_EQ(StatusOf(slow.ReadToEnd()), 408);
  EXPECT_TRUE(slow.closed());
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_TRUE(silent.closed());
  EXPECT_GT((SteadyClock().Now() - start).seconds(), 0.35);
  dripping.join();
}

TEST_F(HttpLimitsTest, ASlowBodyIsClosedAndAFastOneMayTakeLong) {
  Start(TightLimits());
  RawClient slow(server_->port());
  slow.Send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\nx");
  std::thread dripping([&] {
    for (int i = 0; i < 40 && slow.Send("x"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
  });
  RawClient steady(server_->port());  // above the rate, and longer than the grace
  steady.Send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 200000\r\n\r\n");
  for (int i = 0; i < 20; ++i) {
    steady.Send(std::string(10'000, 'x'));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  EXPECT_TRUE(steady.ReadResponse().ends_with("\r\n\r\n200000"));
  EXPECT_EQ(StatusOf(slow.ReadToEnd()), 408);
  dripping.join();
}

TEST_F(HttpLimitsTest, AnIdleConnectionIsClosedQuietly) {
  Start(TightLimits());
  RawClient client(server_->port());
  client.Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadResponse()), 200);
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpLimitsTest, TooManyConnectionsAreRefusedWith503) {
  HttpServerOptions options;
  options.connections_max = 4;
  Start(options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<RawClient>(server_->port()));
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 4; }));
  RawClient refused(server_->port());
  refused.Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(StatusOf(refused.ReadToEnd()), 503);
  refused.Close();
  clients.clear();
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  ExpectHealthy();
}

#ifndef __SANITIZE_ADDRESS__  // a sanitizer needs a pipe for its report, and no descriptor is left
// Out of descriptors, the listener waits without spinning and recovers.
TEST_F(HttpLimitsTest, RunningOutOfDescriptorsDoesNotSpin) {
  Start({});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<RawClient>(server_->port()));
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 4; }));
  auto waiting = std::make_unique<RawClient>(0);  // takes its descriptor now, connects to nothing
  const UniqueFd next(dup(0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(waiting->fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::clock_t cpu_before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double cpu_s = static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC;
  EXPECT_EQ(server_->connections(), 4u);
  EXPECT_LT(cpu_s, 0.25);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  waiting->Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(StatusOf(waiting->ReadResponse()), 200);
}
#endif

TEST(HttpServerStart, ReportsWhyItCannotListen) {
  auto handler = [](HttpRequest, std::shared_ptr<HttpReply>) {};
  auto first = HttpServer::Start({}, handler);
  ASSERT_TRUE(first.ok());
  HttpServerOptions options;
  options.port = (*first)->port();
  auto second = HttpServer::Start(options, handler);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().message(),
            fmt::format("cannot listen on 127.0.0.1:{}: the port is in use; choose another one",
                        options.port));
  options.host = "256.0.0.1.invalid";
  EXPECT_FALSE(HttpServer::Start(options, handler).ok());
  options.host = "192.0.2.1";
  EXPECT_NE(HttpServer::Start(options, handler).status().message().find("choose one of its own"),
            std::string::npos);
}

// Clients that look up "localhost" try either address first.
TEST(HttpServerStart, LocalhostIsEveryLoopbackAddress) {
  auto sockets = ListenOnAll("localhost", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status().message();
  std::set<std::string> bound;
  std::set<uint16_t> ports;
  for (const UniqueFd& socket : *sockets) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ASSERT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    char host[NI_MAXHOST], port[NI_MAXSERV];
    ASSERT_EQ(getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, port,
                          sizeof port, NI_NUMERICHOST | NI_NUMERICSERV),
              0);
    bound.insert(host);
    ports.insert(static_cast<uint16_t>(std::stoi(port)));
  }
  EXPECT_TRUE(bound.contains("127.0.0.1"));
  EXPECT_EQ(ports.size(), 1u);
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET6;
  const bool six = getaddrinfo("localhost", nullptr, &hints, &found) == 0;
  if (six) freeaddrinfo(found);
  const UniqueFd probe(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  const bool has = bind(probe.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
  EXPECT_EQ(bound.contains("::1"), six && has);
}

}  // namespace
}  // namespace millrace::net
