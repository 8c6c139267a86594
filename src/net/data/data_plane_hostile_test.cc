// Tests that strangers, restarts, crashes and damaged data do not disturb other peers of a data
// plane.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "net/data/crc32c.h"
#include "net/data/frame.h"
#include "net/data/hello.h"
#include "net/data/plane_testing.h"
#include "net/listener.h"
#include "net/testing/test_certificate.h"

namespace millrace::net {
namespace {

using enum MessageClass;

uint16_t PortOf(const PeerAddress& a) {
  return static_cast<uint16_t>(std::stoi(a.endpoint.substr(a.endpoint.rfind(':') + 1)));
}

// A peer that knows the token and then misbehaves as scripted. Blocking.
class Rogue {
 public:
  explicit Rogue(const PeerAddress& victim, uint64_t incarnation = RandomIncarnation(),
                 std::string_view token = kTestToken)
      : client_(PortOf(victim)) {
    const auto challenge = DecodeChallenge(ReadHello());
    MR_CHECK(challenge.ok());
    Answer answer;
    answer.nonce = RandomNonce();
    answer.expected_incarnation = victim.incarnation;
    answer.self.incarnation = incarnation;
    answer.self.endpoint = "127.0.0.1:" + std::to_string(1 + incarnation % 1000);
    const HelloBytes bytes = EncodeAnswer(answer, *challenge, {token, {}});
    Send(bytes);
    welcomed_ = !ReadHello().empty();
  }
  bool welcomed() const { return welcomed_; }
  void Send(std::span<const std::byte> bytes) { client_.Send(AsText(bytes)); }
  void SendFrame(const FrameHeader& header, std::span<const std::byte> payload = {}) {
    FrameHeader h = header;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    Send(EncodeHeader(h, Crc32c(payload), frames_++));
    Send(payload);
  }
  // True when the victim has closed the connection.
  bool Cut() {
    client_.ReadToEnd();
    return client_.closed();
  }
  RawClient& client() { return client_; }

 private:
  std::vector<std::byte> ReadHello() {
    std::string got;
    char c;
    while (true) {
      const auto length = HelloLength(AsBytes(got));
      MR_CHECK(length.ok());
      if (*length) break;
      pollfd wait{client_.fd(), POLLIN, 0};
      if (poll(&wait, 1, kTestPatienceMs) <= 0 || recv(client_.fd(), &c, 1, 0) != 1) return {};
      got.push_back(c);
    }
    const auto bytes = AsBytes(got);
    return {bytes.begin(), bytes.end()};
  }

  RawClient client_;
  bool welcomed_ = false;
  uint32_t frames_ = 0;
};

// Sends one message each way between two good peers and waits for it: neither was disturbed.
void ExpectUndisturbed(TestPlane& a, TestPlane& b) {
  const size_t before = b.diary->messages();
  const Status sent = a.plane->SendWithin(Duration::Seconds(10), b.address(), kDecode,
                                          AsBytes("still here"), Payload::CopyOf(AsBytes("x")));
  ASSERT_TRUE(sent.ok()) << sent.ToString();
  ASSERT_TRUE(b.diary->WaitForMessages(before + 1));
  EXPECT_EQ(a.diary->lost(), 0u);
}

TEST(DataPlaneHostile, GarbageAndWrongTokensAreCutOffBeforeAnyPayload) {
  TestPlane a, b;
  ExpectUndisturbed(a, b);
  Rng rng(3);
  for (int i = 0; i < 20; ++i) {
    RawClient stranger(PortOf(b.address()));
    std::string bytes = i == 0   ? "GET / HTTP/1.1\r\n\r\n"
                        : i == 1 ? std::string("MRDP\xff\xff")
                                 : "";
    for (int k = 0; k < 200; ++k) bytes.push_back(static_cast<char>(rng.Next()));
    stranger.Send(bytes);
    stranger.ReadToEnd();
    EXPECT_TRUE(stranger.closed());
  }
  for (int i = 0; i < 5; ++i) {
    Rogue wrong(b.address(), RandomIncarnation(), "another token");
    EXPECT_FALSE(wrong.welcomed());
    EXPECT_TRUE(wrong.Cut());
  }
  EXPECT_TRUE(Eventually([&] { return b.plane->stats().strangers_refused == 25; }))
      << b.plane->stats().strangers_refused;
  EXPECT_EQ(b.plane->stats().protocol_errors, 0u);
  ExpectUndisturbed(a, b);
}

TEST(DataPlaneHostile, TwoHundredIdleStrangers) {
  TcpDataPlaneOptions options = TestOptions();
  options.limits.hello_within = Duration::Seconds(60);  // the limit on strangers must be what ends
                                                        // them
  TestPlane a, b(options);
  ExpectUndisturbed(a, b);
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(std::make_unique<RawClient>(PortOf(b.address())));
    ASSERT_TRUE(strangers.back()->connected());
    if (i % 3 == 0) strangers.back()->Send("MRDP");  // half a hello
  }
  EXPECT_TRUE(Eventually(
      [&] { return b.plane->stats().strangers_refused == 200 - options.limits.strangers; }));
  ExpectUndisturbed(a, b);
  TestPlane late;  // a new peer is served as well
  ExpectUndisturbed(late, b);
}

TEST(DataPlaneHostile, NoHelloInTime) {
  TcpDataPlaneOptions options = TestOptions();
  options.limits.hello_within = Duration::Millis(50);
  TestPlane b(options);
  RawClient stranger(PortOf(b.address()));
  stranger.ReadToEnd();
  EXPECT_TRUE(stranger.closed());
  EXPECT_TRUE(Eventually([&] { return b.plane->stats().strangers_refused == 1; }));
}

TEST(DataPlaneHostile, MembersThatViolateTheProtocolAreCutOff) {
  TestPlane a, b(TestOptions(), [](const PeerAddress&, std::span<const std::byte>) {
    return Result<PullSource>(NotFound("nothing"));
  });
  ExpectUndisturbed(a, b);
  const std::vector<std::byte> some(100);
  using Act = std::function<void(Rogue&)>;
  const auto frame = [&](FrameHeader h, size_t bytes = 0) {
    return [h, &some, bytes](Rogue& r) { r.SendFrame(h, std::span(some).first(bytes)); };
  };
  const std::vector<std::pair<const char*, Act>> acts = {
      {"unknown type", frame({.type = static_cast<FrameType>(99)})},
      {"2^63 bytes of a message", frame({.type = FrameType::kMessage, .value = 1ull << 63})},
      {"more data than the message has", frame({.type = FrameType::kMessage, .value = 10}, 100)},
      {"a key longer than its frame",
       frame({.type = FrameType::kMessage, .small = 200, .value = 100}, 100)},
      {"a message out of order", frame({.type = FrameType::kMessage, .id = 7})},
      {"a part of no message", frame({.type = FrameType::kMore, .value = 0}, 100)},
      {"an owner's frame", frame({.type = FrameType::kPullData, .id = 1}, 100)},
      {"credit from the sender", frame({.type = FrameType::kCredit, .value = 5})},
      {"a pull cut short", frame({.type = FrameType::kPull, .id = 1}, 3)},
      {"a pull twice",
       [&](Rogue& r) {
         r.SendFrame({.type = FrameType::kPull, .id = 1, .value = 4}, std::span(some).first(20));
         r.SendFrame({.type = FrameType::kPull, .id = 1, .value = 4}, std::span(some).first(20));
       }},
      {"a direct pull from elsewhere",
       [&](Rogue& r) {
         std::array<std::byte, kPullHeadBytes> head;
         EncodePullHead({.limit_ms = 5, .direct = true}, head);
         r.SendFrame({.type = FrameType::kPull, .id = 1, .value = 4}, head);
       }},
      {"a payload with a flipped bit",
       [&](Rogue& r) {
         FrameHeader h{.type = FrameType::kMessage, .payload_bytes = 100, .value = 100};
         r.Send(EncodeHeader(h, Crc32c(some) ^ 1, 0));
         r.Send(some);
       }},
      {"a header that claims 2^32-1 bytes",
       [&](Rogue& r) {
         FrameHeader h{.type = FrameType::kMessage, .payload_bytes = UINT32_MAX, .value = 100};
         r.Send(EncodeHeader(h, 0, 0));
       }},
      {"a frame sent twice",
       [&](Rogue& r) {
         FrameHeader h{.type = FrameType::kPullCancel, .id = 5};
         const HeaderBytes bytes = EncodeHeader(h, 0, 0);
         r.Send(bytes);
         r.Send(bytes);
       }},
      {"noise", [&](Rogue& r) { r.Send(PatternBytes(5000, 9)); }},
  };
  for (const auto& [what, act] : acts) {
    Rogue rogue(b.address());
    ASSERT_TRUE(rogue.welcomed()) << what;
    act(rogue);
    EXPECT_TRUE(rogue.Cut()) << what;
  }
  EXPECT_TRUE(Eventually([&] {
    const DataPlaneStats s = b.plane->stats();
    return s.protocol_errors + s.checksum_errors == acts.size();
  }));
  EXPECT_EQ(b.plane->stats().checksum_errors, 3u);
  EXPECT_EQ(b.diary->messages(), 1u);
  ExpectUndisturbed(a, b);
}

TEST(DataPlaneHostile, MoreThanTheCreditIsCutOff) {
  TcpDataPlaneOptions options = TestOptions();
  options.limits.window_bytes = {16 << 10, 16 << 10, 16 << 10};
  TestPlane b(options);
  Rogue rogue(b.address());
  const std::vector<std::byte> some(6000);
  for (uint64_t i = 0; i < 3; ++i) {  // the diary keeps the payloads, so no credit is returned
    rogue.SendFrame({.type = FrameType::kMessage, .id = i, .value = some.size()}, some);
  }
  EXPECT_TRUE(rogue.Cut());
  EXPECT_EQ(b.plane->stats().protocol_errors, 1u);
  EXPECT_EQ(b.diary->messages(), 2u);
}

// Forwards bytes both ways; on request, flips one bit of the owner's data.
class FlippingProxy {
 public:
  explicit FlippingProxy(uint16_t to) : to_(to) {
    auto listener = Listener::Start("127.0.0.1", 0, [this](UniqueFd fd, std::string) {
      pumps_.emplace_back([this, fd = std::move(fd)]() mutable { Pump(std::move(fd)); });
    });
    MR_CHECK(listener.ok());
    listener_ = std::move(*listener);
  }
  ~FlippingProxy() {
    listener_->Stop();
    stop_ = true;
    for (auto& pump : pumps_) pump.join();
  }
  uint16_t port() const { return listener_->port(); }
  void FlipAfter(size_t bytes) { flip_after_ = bytes; }

 private:
  void Pump(UniqueFd reader) {
    RawClient owner(to_);
    std::vector<char> buffer(65536);
    size_t passed = 0;
    pollfd waits[2] = {{reader.get(), POLLIN, 0}, {owner.fd(), POLLIN, 0}};
    while (!stop_) {
      if (poll(waits, 2, 20) <= 0) continue;
      for (int i : {0, 1}) {
        if (waits[i].revents == 0) continue;
        const ssize_t n = recv(waits[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return;
        if (n < 0) continue;
        const auto size = static_cast<size_t>(n);
        if (i == 1 && passed <= flip_after_ && flip_after_ < passed + size) {
          buffer[flip_after_ - passed] ^= 4;
        }
        if (i == 1) passed += size;
        for (size_t at = 0; at < size;) {
          const ssize_t m = send(waits[1 - i].fd, &buffer[at], size - at, MSG_NOSIGNAL);
          if (m < 0 && errno != EAGAIN) return;
          if (m > 0) at += static_cast<size_t>(m);
        }
      }
    }
  }

  const uint16_t to_;
  std::atomic<bool> stop_ = false;
  std::atomic<size_t> flip_after_ = SIZE_MAX;
  std::vector<std::thread> pumps_;
  std::unique_ptr<Listener> listener_;
};

TEST(DataPlaneHostile, AFlippedBitInTransitIsDetected) {
  TcpDataPlaneOptions options = TestOptions();
  options.direct_reads = false;
  const auto bytes = std::make_shared<std::vector<std::byte>>(PatternBytes(3'000'000, 1));
  TestPlane owner(options, [&](const PeerAddress&, std::span<const std::byte>) {
    return Result<PullSource>(PullSegments{{*bytes}, bytes});
  });
  TestPlane reader(options);
  FlippingProxy proxy(PortOf(owner.address()));
  PeerAddress through = owner.address();
  through.endpoint = "127.0.0.1:" + std::to_string(proxy.port());
  std::vector<std::byte> got(bytes->size());
  PullWaiter first, second;
  reader.plane->Pull(through, {}, got, Duration::Seconds(20), first.Callback());
  ASSERT_TRUE(first.Wait().ok()) << first.Wait().ToString();
  EXPECT_EQ(got, *bytes);
  proxy.FlipAfter(2 * bytes->size() - 100'000);
  reader.plane->Pull(through, {}, got, Duration::Seconds(20), second.Callback());
  EXPECT_EQ(second.Wait().code(), StatusCode::kDataLoss) << second.Wait().ToString();
  EXPECT_EQ(reader.plane->stats().checksum_errors, 1u);
  ASSERT_TRUE(Eventually([&] { return reader.diary->lost() == 1; }));
  EXPECT_EQ(reader.diary->lost(0).second.code(), StatusCode::kDataLoss);
}

TEST(DataPlaneHostile, ARestartedPeerGetsOnlyItsOwnMessages) {
  TestPlane a;
  auto b = std::make_unique<TestPlane>();
  const PeerAddress old = b->address();
  TcpDataPlaneOptions same_port = TestOptions();
  same_port.port = PortOf(old);
  ASSERT_TRUE(a.plane->Send(old, kDecode, AsBytes("one"), {}).ok());
  ASSERT_TRUE(b->diary->WaitForMessages(1));
  ASSERT_TRUE(b->plane->Send(a.address(), kDecode, AsBytes("from the old"), {}).ok());
  ASSERT_TRUE(a.diary->WaitForMessages(1));
  b.reset();
  ASSERT_TRUE(Eventually([&] { return a.diary->lost() >= 2; }));  // from the link to it and the
                                                                  // link from it
  EXPECT_EQ(a.diary->lost(0).first.incarnation, old.incarnation);
  b = std::make_unique<TestPlane>(same_port);
  ASSERT_NE(b->address().incarnation, old.incarnation);
  // During the pause after a loss, Send fails immediately; then the new process is contacted and
  // has another incarnation.
  const uint64_t stale = a.plane->stats().stale_refused;
  ASSERT_TRUE(Eventually([&] {
    (void)a.plane->Send(old, kDecode, AsBytes("for the dead"), {});
    return a.plane->stats().stale_refused > stale;
  }));
  ASSERT_TRUE(a.plane->Send(b->address(), kDecode, AsBytes("two"), {}).ok());
  ASSERT_TRUE(b->diary->WaitForMessages(1));
  for (const auto& m : b->diary->Take()) EXPECT_EQ(m.key, "two");
  EXPECT_GE(a.plane->stats().reconnects, 1u);
}

TEST(DataPlaneHostile, AForgottenPeerCanNeitherSendNorReceive) {
  TestPlane a, b;
  ASSERT_TRUE(a.plane->Send(b.address(), kDecode, AsBytes("one"), {}).ok());
  ASSERT_TRUE(b.diary->WaitForMessages(1));
  b.plane->Forget(a.address().incarnation);
  ASSERT_TRUE(Eventually([&] { return a.diary->lost() == 1; }));
  ASSERT_TRUE(Eventually([&] {
    (void)a.plane->Send(b.address(), kDecode, AsBytes("zombie"), {});
    return b.plane->stats().stale_refused > 0;
  }));
  EXPECT_EQ(b.plane->Send(a.address(), kDecode, {}, {}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(b.diary->messages(), 1u);
}

TEST(DataPlaneHostile, AnOwnerKilledInTheMiddleOfAPull) {
  int announce[2];
  ASSERT_EQ(pipe(announce), 0);
  const pid_t child = fork();
  if (child == 0) {
    TestPlane owner(TestOptions(), [](const PeerAddress&, std::span<const std::byte>) {
      return Result<PullSource>(PullProducer{64 << 20, [](uint64_t offset, std::span<std::byte>) {
                                               if (offset > 4'000'000) pause();
                                               return OkStatus();
                                             }});
    });
    PeerAddress self = owner.address();
    const std::string line = self.endpoint + " " + std::to_string(self.incarnation) + "\n";
    [[maybe_unused]] const ssize_t n = write(announce[1], line.data(), line.size());
    pause();
    _exit(1);
  }
  char line[200] = "";
  ASSERT_GT(read(announce[0], line, sizeof(line) - 1), 0);
  PeerAddress owner;
  char endpoint[100];
  unsigned long incarnation = 0;  // NOLINT(google-runtime-int): scanf's type
  ASSERT_EQ(std::sscanf(line, "%99s %lu", endpoint, &incarnation), 2);
  owner.endpoint = endpoint;
  owner.incarnation = incarnation;
  TestPlane reader;
  std::vector<std::byte> got(64 << 20);
  PullWaiter pull;
  reader.plane->Pull(owner, {}, got, Duration::Seconds(60), pull.Callback());
  ASSERT_TRUE(Eventually([&] { return reader.plane->stats().frames_received > 10; }));
  kill(child, SIGKILL);
  EXPECT_EQ(pull.Wait().code(), StatusCode::kUnavailable) << pull.Wait().ToString();
  EXPECT_TRUE(Eventually([&] { return reader.diary->lost() == 1; }));
  waitpid(child, nullptr, 0);
  close(announce[0]);
  close(announce[1]);
}

TEST(DataPlaneHostile, WithTlsBothSidesPresentACertificate) {
  const std::string folder = testing::TempDir() + "data_plane_tls_" + std::to_string(getpid());
  const auto write_pair = [&](const std::string& name) {
    const TestCertificate made = MakeTestCertificate();
    std::ofstream(folder + name + ".pem") << made.certificate_pem;
    std::ofstream(folder + name + ".key") << made.key_pem;
    return DataPlaneTls{folder + name + ".pem", folder + name + ".key", folder + name + ".pem"};
  };
  TcpDataPlaneOptions options = TestOptions(), other = TestOptions();
  options.direct_reads = false;
  options.tls = write_pair("a");
  other.tls = write_pair("b");
  const auto bytes = std::make_shared<std::vector<std::byte>>(PatternBytes(5'000'000, 2));
  TestPlane a(options), b(options, [&](const PeerAddress&, std::span<const std::byte>) {
    return Result<PullSource>(PullSegments{{*bytes}, bytes});
  });
  const auto large = PatternBytes(2'000'000, 4);
  ASSERT_TRUE(a.plane->Send(b.address(), kBulk, AsBytes("large"), Payload::CopyOf(large)).ok());
  ASSERT_TRUE(b.diary->WaitForMessages(1));
  EXPECT_TRUE(std::ranges::equal(b.diary->Take()[0].payload.bytes(), large));
  std::vector<std::byte> got(bytes->size());
  PullWaiter pull;
  a.plane->Pull(b.address(), {}, got, Duration::Seconds(20), pull.Callback());
  ASSERT_TRUE(pull.Wait().ok()) << pull.Wait().ToString();
  EXPECT_EQ(got, *bytes);
  // Another authority's certificate, and none, both with the right token.
  TcpDataPlaneOptions without = TestOptions();
  without.limits.connect_within = Duration::Millis(200);  // each side waits for the other to speak
  TestPlane foreign(other), plain(without);
  for (TestPlane* stranger : {&foreign, &plain}) {
    const Status sent = stranger->plane->Send(b.address(), kDecode, AsBytes("no"), {});
    // It may have been refused before the message was queued.
    EXPECT_TRUE(sent.ok() || sent.code() == StatusCode::kUnavailable) << sent.ToString();
    EXPECT_TRUE(Eventually([&] { return stranger->diary->lost() == 1; }));
  }
  EXPECT_EQ(b.diary->messages(), 0u);
  EXPECT_TRUE(Eventually([&] { return b.plane->stats().strangers_refused == 2; }));
}

}  // namespace
}  // namespace millrace::net
