// Tests of planes over sockets only; data_plane_conformance_test.cc has the rest.
#include "net/data/data_plane.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "net/data/plane_testing.h"

namespace millrace::net {
namespace {

using enum MessageClass;

TEST(DataPlane, ADecodeMessageOvertakesSixtyFourMegabytesOfBulk) {
  constexpr size_t kBulkBytes = 64 << 20;
  TcpDataPlaneOptions options = TestOptions();
  options.limits.window_bytes[static_cast<size_t>(kBulk)] = 2 * kBulkBytes + (1 << 20);
  options.limits.queue_bytes[static_cast<size_t>(kBulk)] = 2 * kBulkBytes;
  TestPlane a(options), b(options);
  const auto bulk = std::make_shared<std::vector<std::byte>>(kBulkBytes);
  ASSERT_TRUE(a.plane->Send(b.address(), kDecode, AsBytes("connect"), {}).ok());
  ASSERT_TRUE(b.diary->WaitForMessages(1));
  b.diary->Take();
  // Sent while some of the bulk is in transit. Repeated if this thread was too late.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const uint64_t frames = b.plane->stats().frames_received;
    ASSERT_TRUE(a.plane->Send(b.address(), kBulk, AsBytes("bulk"), Payload(bulk, *bulk)).ok());
    while (b.plane->stats().frames_received < frames + 4) usleep(50);
    ASSERT_TRUE(a.plane->Send(b.address(), kDecode, AsBytes("decode"), {}).ok());
    const uint64_t sent = a.plane->stats().frames_sent;
    const uint64_t seen = b.plane->stats().frames_received - frames;
    ASSERT_TRUE(b.diary->WaitForMessages(2));
    const auto messages = b.diary->Take();
    if (seen > kBulkBytes / (256 << 10) / 2) continue;
    EXPECT_EQ(messages[0].key, "decode") << "behind " << sent << " frames";
    EXPECT_EQ(messages[1].key, "bulk");
    EXPECT_EQ(messages[1].payload.size(), kBulkBytes);
    return;
  }
  FAIL() << "all of the bulk had always been sent before";
}

TEST(DataPlane, BothWaysAtOnceUseAConnectionEach) {
  TestPlane a, b;
  for (int i = 0; i < 100; ++i) {
    const auto key = std::to_string(i);
    ASSERT_TRUE(a.plane->Send(b.address(), kDecode, AsBytes(key), {}).ok());
    ASSERT_TRUE(b.plane->Send(a.address(), kDecode, AsBytes(key), {}).ok());
  }
  EXPECT_TRUE(a.diary->WaitForMessages(100));
  EXPECT_TRUE(b.diary->WaitForMessages(100));
  EXPECT_EQ(a.plane->stats().connections_made, 1u);
  EXPECT_EQ(a.plane->stats().connections_accepted, 1u);
}

TEST(DataPlane, ManyThreadsSendAtOnce) {
  TestPlane a, b;
  constexpr int kThreads = 4, kMessages = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kMessages; ++i) {
        const std::string key = std::to_string(t) + " " + std::to_string(i);
        const Status s = a.plane->SendWithin(Duration::Seconds(20), b.address(), kDecode,
                                             AsBytes(key), Payload::CopyOf(AsBytes(key)));
        MR_CHECK(s.ok()) << s.ToString();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(b.diary->WaitForMessages(kThreads * kMessages));
  std::array<int, kThreads> next = {};
  for (const auto& m : b.diary->Take()) {
    int t = 0, i = 0;
    ASSERT_EQ(std::sscanf(m.key.c_str(), "%d %d", &t, &i), 2);
    EXPECT_EQ(i, next[static_cast<size_t>(t)]++);
    EXPECT_EQ(AsText(m.payload.bytes()), m.key);
  }
}

TEST(DataPlane, NoListener) {
  TestPlane a;
  PeerAddress missing;
  missing.endpoint = "127.0.0.1:1";
  missing.incarnation = 77;
  // The attempt may fail before the message is queued: then Send says so.
  const Status sent = a.plane->Send(missing, kDecode, AsBytes("x"), {});
  EXPECT_TRUE(sent.ok() || sent.code() == StatusCode::kUnavailable) << sent.ToString();
  ASSERT_TRUE(Eventually([&] { return a.diary->lost() == 1; }));
  EXPECT_EQ(a.diary->lost(0).first, missing);
  EXPECT_EQ(a.diary->lost(0).second.code(), StatusCode::kUnavailable);
  EXPECT_EQ(a.plane->stats().messages_dropped, sent.ok() ? 1u : 0u);
  missing.endpoint = "no port";
  missing.incarnation = 78;
  (void)a.plane->Send(missing, kDecode, AsBytes("x"), {});
  EXPECT_TRUE(Eventually([&] { return a.diary->lost() == 2; }));
}

TEST(DataPlane, RefusesOptionsThatCannotWork) {
  const auto start = [](auto change) {
    TcpDataPlaneOptions options = TestOptions();
    change(options);
    return StartTcpDataPlane(options, {}).status().code();
  };
  using Options = TcpDataPlaneOptions;
  EXPECT_EQ(start([](Options&) {}), StatusCode::kOk);
  EXPECT_EQ(start([](Options& o) { o.token = ""; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(start([](Options& o) { o.limits.window_bytes[0] = 5; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(start([](Options& o) {
              o.tls = DataPlaneTls{"none.pem", "none.key", "none.pem"};
            }),
            StatusCode::kNotFound);
  TestPlane taken;
  const std::string& endpoint = taken.address().endpoint;
  const int port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  EXPECT_EQ(start([&](Options& o) { o.port = static_cast<uint16_t>(port); }),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace millrace::net
