// Tests of clients that close their sending half and wait for the reply, and of clients that
// disconnect.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "net/http/http_server.h"
#include "net/testing/raw_client.h"

namespace millrace::net {
namespace {

constexpr char kRequest[] = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi";
constexpr char kOldRequest[] = "POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi";

// A server that keeps the replies, so that the test sends them when it wants to.
class HoldingServer {
 public:
  HoldingServer() {
    auto started = HttpServer::Start({}, [this](HttpRequest, std::shared_ptr<HttpReply> reply) {
      reply->OnDisconnect([this] { ++gone; });
      std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
    });
    MR_CHECK(started.ok()) << started.status().ToString();
    server = std::move(started).value();
  }
  ~HoldingServer() { server->Stop(Duration()); }

  // Waits for reply `i`.
  std::shared_ptr<HttpReply> Reply(size_t i) {
    MR_CHECK(Eventually([&] {
      std::lock_guard lock(mutex_);
      return replies_.size() > i;
    }));
    std::lock_guard lock(mutex_);
    return replies_[i];
  }

  std::unique_ptr<HttpServer> server;
  std::atomic<int> gone{0};

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> replies_;
};

void SendAndCloseSending(RawClient& client, const std::string& request) {
  ASSERT_TRUE(client.Send(request));
  ASSERT_EQ(shutdown(client.fd(), SHUT_WR), 0);
}

// Waits for longer than the server takes to detect a disconnected client.
void WaitForDetection() { std::this_thread::sleep_for(std::chrono::milliseconds(700)); }

// Removes leading interim responses, as RFC 9110 section 15.2 requires of clients.
std::string WithoutInterim(std::string response) {
  while (response.starts_with(kContinue)) response.erase(0, kContinue.size());
  return response;
}

struct Parsed {
  int status = 0;
  std::string body;
};

// A response with Content-Length, or chunks without trailers.
Parsed Parse(const std::string& response) {
  const std::string rest = WithoutInterim(response);
  const size_t head_end = rest.find("\r\n\r\n");
  EXPECT_TRUE(rest.starts_with("HTTP/1.1 ") && head_end != std::string::npos) << response;
  Parsed parsed{std::atoi(rest.c_str() + 9), rest.substr(head_end + 4)};
  if (rest.find("Transfer-Encoding: chunked") > head_end) return parsed;
  EXPECT_TRUE(parsed.body.ends_with(kLastChunk)) << "the response is cut: " << response;
  std::string body;
  for (size_t at = 0; at < parsed.body.size();) {
    const size_t data = parsed.body.find("\r\n", at) + 2;
    const size_t bytes = std::strtoul(parsed.body.c_str() + at, nullptr, 16);
    if (bytes == 0) break;
    body += parsed.body.substr(data, bytes);
    at = data + bytes + 2;
  }
  parsed.body = body;
  return parsed;
}

TEST(HalfClose, AClientGetsItsReply) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  SendAndCloseSending(client, kRequest);
  const auto reply = holding.Reply(0);
  WaitForDetection();
  EXPECT_FALSE(reply->disconnected());
  reply->Send({200, {}, "the answer"});
  const Parsed parsed = Parse(client.ReadToEnd());
  EXPECT_EQ(parsed.status, 200);
  EXPECT_EQ(parsed.body, "the answer");
  EXPECT_TRUE(client.closed()) << "no further request can arrive";
  EXPECT_EQ(holding.gone, 0);
  EXPECT_TRUE(Eventually([&] { return holding.server->connections() == 0; }));
}

TEST(HalfClose, AClientGetsItsStream) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  ASSERT_TRUE(client.Send(kRequest));
  const auto reply = holding.Reply(0);
  reply->Start({200, {}, ""});
  EXPECT_TRUE(reply->Write("one "));
  ASSERT_EQ(shutdown(client.fd(), SHUT_WR), 0);
  WaitForDetection();  // the server probes in the middle of the stream
  EXPECT_TRUE(reply->Write("two "));
  EXPECT_TRUE(reply->Write("three"));
  reply->End();
  EXPECT_EQ(Parse(client.ReadToEnd()).body, "one two three");
  EXPECT_EQ(holding.gone, 0);
}

TEST(HalfClose, RequestsSentAheadAreAnsweredToo) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  SendAndCloseSending(client, std::string(kRequest) + kRequest);
  holding.Reply(0)->Send({200, {}, "first"});
  holding.Reply(1)->Send({200, {}, "second"});
  const std::string all = client.ReadToEnd();
  const size_t first = all.find("\r\n\r\nfirst");
  ASSERT_NE(first, std::string::npos) << all;
  EXPECT_NE(all.find("\r\n\r\nsecond", first), std::string::npos) << all;
  EXPECT_TRUE(client.closed());
}

// Between requests, the end of the input ends the connection.
TEST(HalfClose, AnIdleConnectionCloses) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  ASSERT_TRUE(client.Send(kRequest));
  holding.Reply(0)->Send({200, {}, "ok"});
  client.ReadResponse();
  ASSERT_EQ(shutdown(client.fd(), SHUT_WR), 0);
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_TRUE(client.closed());
}

TEST(HalfClose, ALaterDisconnectIsDetectedAtTheNextWrite) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  SendAndCloseSending(client, kRequest);
  const auto reply = holding.Reply(0);
  reply->Start({200, {}, ""});
  EXPECT_TRUE(reply->Write("one"));
  client.ReadUntil("one");
  WaitForDetection();
  EXPECT_EQ(holding.gone, 0);
  client.Close();
  reply->Write("two");
  EXPECT_TRUE(Eventually([&] { return holding.gone == 1; }));
  EXPECT_TRUE(Eventually([&] { return holding.server->connections() == 0; }));
}

// Without a write, the server probes again every few seconds.
TEST(HalfClose, ALaterDisconnectIsDetectedWithoutAWrite) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  SendAndCloseSending(client, kRequest);
  const auto reply = holding.Reply(0);
  WaitForDetection();
  EXPECT_FALSE(reply->disconnected());
  client.Close();
  EXPECT_TRUE(Eventually([&] { return holding.gone == 1; }));
}

// HTTP/1.0 has no interim responses, so such a client cannot be told from a disconnected one.
TEST(HalfClose, WithHttp10ItIsADisconnect) {
  HoldingServer holding;
  RawClient client(holding.server->port());
  SendAndCloseSending(client, kOldRequest);
  const auto reply = holding.Reply(0);
  EXPECT_TRUE(Eventually([&] { return holding.gone == 1; }));
  EXPECT_TRUE(reply->disconnected());
  EXPECT_EQ(client.ReadToEnd(), "");
}

}  // namespace
}  // namespace millrace::net
