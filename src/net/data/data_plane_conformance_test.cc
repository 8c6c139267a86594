// Tests the guarantees of a data plane, with direct reading and over the socket alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "net/data/message_queue.h"
#include "net/data/plane_testing.h"

namespace millrace::net {
namespace {

using enum MessageClass;

enum class Kind { kSocket, kSocketOnly };

std::string NameOf(Kind kind) { return kind == Kind::kSocket ? "Socket" : "SocketOnly"; }

class DataPlaneConformance : public testing::TestWithParam<Kind> {
 protected:
  struct Node {
    std::unique_ptr<Diary> diary = std::make_unique<Diary>();
    std::unique_ptr<DataPlane> plane;
    DataPlane* operator->() const { return plane.get(); }
    const PeerAddress& address() const { return plane->self(); }
  };

  Node Start(PullHandler on_pull = nullptr, DataPlaneLimits limits = {}) {
    Node node;
    DataPlaneEvents events = node.diary->Events(std::move(on_pull));
    TcpDataPlaneOptions options = TestOptions();
    options.limits = limits;
    options.direct_reads = GetParam() == Kind::kSocket;
    auto plane = StartTcpDataPlane(options, std::move(events));
    MR_CHECK(plane.ok()) << plane.status().ToString();
    node.plane = std::move(*plane);
    return node;
  }
};

TEST_P(DataPlaneConformance, KeepsOrderWithinAClassAndContent) {
  Node a = Start(), b = Start();
  constexpr int kMessages = 300;
  std::vector<std::thread> senders;  // one per class
  for (int c = 0; c < kMessageClasses; ++c) {
    senders.emplace_back([&, c] {
      for (int i = 0; i < kMessages; ++i) {
        const auto bytes = PatternBytes(static_cast<size_t>(i * i), static_cast<uint64_t>(i + c));
        MR_CHECK(a->SendWithin(Duration::Seconds(20), b.address(), static_cast<MessageClass>(c),
                               AsBytes(std::to_string(i)), Payload::CopyOf(bytes))
                     .ok());
      }
    });
  }
  for (auto& sender : senders) sender.join();
  ASSERT_TRUE(b.diary->WaitForMessages(kMessageClasses * kMessages));
  std::array<int, kMessageClasses> next = {};
  for (const auto& m : b.diary->Take()) {
    const auto c = static_cast<size_t>(m.message_class);
    const int i = next[c]++;
    ASSERT_EQ(m.key, std::to_string(i));
    EXPECT_EQ(m.from, a.address());
    EXPECT_TRUE(std::ranges::equal(
        m.payload.bytes(), PatternBytes(static_cast<size_t>(i * i), static_cast<uint64_t>(i) + c)));
  }
}

TEST_P(DataPlaneConformance, AReaderThatStallsStopsOnlyItsSender) {
  DataPlaneLimits limits;
  limits.window_bytes = {1 << 20, 1 << 20, 1 << 20};
  limits.queue_bytes = {1 << 20, 1 << 20, 2 << 20};
  Node a = Start(nullptr, limits), b = Start(nullptr, limits);
  const Payload block = Payload::CopyOf(PatternBytes(256 << 10, 1));
  const size_t cost = block.size() + kMessageCost;
  const auto send = [&] { return a->Send(b.address(), kBulk, {}, block); };
  // The diary keeps what arrives: credit for three blocks, then the queue fills.
  size_t taken = 0;
  Status status;
  ASSERT_TRUE(Eventually([&] {
    while ((status = send()).ok()) ++taken;
    return b.diary->messages() == 3 && taken >= 3 + (2 << 20) / cost;
  }));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(b.diary->messages(), 3u);
  // Credit for the last block may be returned only now: a lasting refusal is the sign.
  while ((status = a->SendWithin(Duration::Millis(30), b.address(), kBulk, {}, block)).ok())
    ++taken;
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_LE(taken * cost, (1 << 20) + (2 << 20) + 2 * cost);
  EXPECT_GE(a->stats().queue_full, 1u);
  EXPECT_GE(a->stats().stalls + b->stats().stalls, 1u);
  // Another class overtakes the blocked one.
  ASSERT_TRUE(a->Send(b.address(), kDecode, AsBytes("urgent"), {}).ok());
  ASSERT_TRUE(b.diary->WaitForMessages(4));
  // Releasing returns credit; every accepted message arrives.
  size_t received = 0;
  auto waiting = std::async(std::launch::async, [&] {
    return a->SendWithin(Duration::Seconds(20), b.address(), kBulk, {}, block);
  });
  ASSERT_TRUE(Eventually([&] {
    received += b.diary->Take().size();
    return received >= taken + 2;
  }));
  EXPECT_TRUE(waiting.get().ok());
}

TEST_P(DataPlaneConformance, AcceptsTheLargestMessageAndRefusesALargerOne) {
  DataPlaneLimits limits;
  limits.window_bytes = {1 << 20, 1 << 20, 1 << 20};
  Node a = Start(nullptr, limits), b = Start(nullptr, limits);
  const auto bytes = PatternBytes(MessageBytesMax(1 << 20) - kMessageCost, 3);
  for (int i = 0; i < 20; ++i) {  // credit is returned in batches; the largest message must never
                                  // get stuck
    ASSERT_TRUE(
        a->SendWithin(Duration::Seconds(20), b.address(), kPrefill, {}, Payload(nullptr, bytes))
            .ok());
    ASSERT_TRUE(b.diary->WaitForMessages(1)) << i;
    EXPECT_TRUE(std::ranges::equal(b.diary->Take()[0].payload.bytes(), bytes));
  }
  EXPECT_EQ(a->Send(b.address(), kPrefill, AsBytes("x"), Payload(nullptr, bytes)).code(),
            StatusCode::kInvalidArgument);
  const std::string long_key(limits.key_bytes + 1, 'k');
  EXPECT_EQ(a->Send(b.address(), kDecode, AsBytes(long_key), {}).code(),
            StatusCode::kInvalidArgument);
}

TEST_P(DataPlaneConformance, PullsOfSegmentsAndOfProducedBytes) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(PatternBytes(2'000'003, 5));
  Node owner = Start([&](const PeerAddress&, std::span<const std::byte> request) {
    if (AsText(request) == "made") {
      return Result<PullSource>(
          PullProducer{bytes->size(), [&](uint64_t offset, std::span<std::byte> out) {
                         std::copy_n(bytes->data() + offset, out.size(), out.data());
                         return OkStatus();
                       }});
    }
    PullSegments source{{}, bytes};
    for (size_t at = 0; at < bytes->size(); at += 777) {
      source.segments.push_back(
          std::span(*bytes).subspan(at, std::min<size_t>(777, bytes->size() - at)));
    }
    return Result<PullSource>(std::move(source));
  });
  Node reader = Start();
  constexpr size_t kPulls = 8;
  std::vector<std::vector<std::byte>> got(kPulls, std::vector<std::byte>(bytes->size() + 10));
  std::vector<PullWaiter> pulls(kPulls);
  for (size_t i = 0; i < kPulls; ++i) {
    reader->Pull(owner.address(), AsBytes(i % 2 == 0 ? "made" : "lying"), got[i],
                 Duration::Seconds(20), pulls[i].Callback());
  }
  for (size_t i = 0; i < kPulls; ++i) {
    ASSERT_TRUE(pulls[i].Wait().ok()) << pulls[i].Wait().ToString();
    EXPECT_EQ(pulls[i].bytes(), bytes->size());
    EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), got[i].begin()));
    EXPECT_EQ(got[i][bytes->size()], std::byte{0});
  }
  EXPECT_EQ(reader->stats().pulls_ok, kPulls);
  EXPECT_TRUE(Eventually([&] { return owner->stats().pulls_served == kPulls; }));
  EXPECT_EQ(reader->stats().pulls_mapped, 0u);
  EXPECT_TRUE(Eventually([&] { return bytes.use_count() == 1; })) << "a pin was not dropped";
}

TEST_P(DataPlaneConformance, PullsFromSharedMemory) {
  std::shared_ptr<SharedMemory> memory;
  Node owner = Start([&](const PeerAddress&, std::span<const std::byte> request) {
    const size_t bytes = AsText(request) == "some" ? 1000 : memory->bytes().size();
    return Result<PullSource>(PullSegments{{memory->bytes().first(bytes)}, memory});
  });
  memory = *owner->AllocateShared(1'000'001);
  const auto want = PatternBytes(memory->bytes().size(), 6);
  std::ranges::copy(want, memory->bytes().begin());
  Node reader = Start();
  std::vector<std::vector<std::byte>> got(6, std::vector<std::byte>(want.size()));
  std::vector<PullWaiter> pulls(got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    reader->Pull(owner.address(), AsBytes(i == 0 ? "some" : "all"), got[i], Duration::Seconds(20),
                 pulls[i].Callback());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(pulls[i].Wait().ok()) << pulls[i].Wait().ToString();
    EXPECT_EQ(pulls[i].bytes(), i == 0 ? 1000 : want.size());
    EXPECT_TRUE(std::equal(want.begin(), want.begin() + static_cast<int64_t>(pulls[i].bytes()),
                           got[i].begin()));
  }
  EXPECT_EQ(reader->stats().pulls_mapped, GetParam() == Kind::kSocket ? got.size() - 1 : 0);
  EXPECT_TRUE(Eventually([&] { return memory.use_count() == 1; })) << "a pin was not dropped";
}

TEST_P(DataPlaneConformance, FailedPullsReportTheCause) {
  std::atomic<bool> go = false;
  const auto small = std::make_shared<std::vector<std::byte>>(100);
  Node owner = Start([&](const PeerAddress&, std::span<const std::byte> request) {
    const std::string what = AsText(request);
    if (what == "none") return Result<PullSource>(NotFound("no such thing"));
    if (what == "breaks") {
      return Result<PullSource>(PullProducer{
          10, [](uint64_t, std::span<std::byte>) { return DataLoss("the disk failed"); }});
    }
    if (what == "loose") return Result<PullSource>(PullSegments{{*small}, nullptr});
    if (what == "slow") Eventually([&] { return go.load(); });
    return Result<PullSource>(PullSegments{{*small}, small});
  });
  Node reader = Start();
  std::vector<std::byte> got(100);
  const auto pull = [&](const std::string& what, size_t room, Duration limit) {
    PullWaiter waiter;
    reader->Pull(owner.address(), AsBytes(what), std::span(got).first(room), limit,
                 waiter.Callback());
    return waiter.Wait();
  };
  const Duration ample = Duration::Seconds(20);
  EXPECT_EQ(pull("none", 100, ample).message(), "no such thing");
  EXPECT_EQ(pull("breaks", 100, ample).code(), StatusCode::kDataLoss);
  EXPECT_EQ(pull("loose", 100, ample).code(), StatusCode::kInternal);
  EXPECT_EQ(pull("small", 99, ample).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pull(std::string(70'000, 'x'), 100, ample).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pull("slow", 100, Duration::Millis(40)).code(), StatusCode::kDeadlineExceeded);
  PullWaiter cancelled;
  const PullId id =
      reader->Pull(owner.address(), AsBytes("slow"), got, ample, cancelled.Callback());
  reader->CancelPull(id);
  EXPECT_EQ(cancelled.Wait().code(), StatusCode::kCancelled);
  go = true;
  EXPECT_TRUE(pull("small", 100, ample).ok());  // the failures had no lasting effect
  EXPECT_EQ(reader->stats().pulls_failed, 7u);
  EXPECT_EQ(reader.diary->lost(), 0u);
}

TEST_P(DataPlaneConformance, MemoryWithoutAPinIsNotServed) {
  const auto bytes = PatternBytes(100, 7);
  Node owner = Start([&](const PeerAddress&, std::span<const std::byte>) {
    return Result<PullSource>(PullSegments{{bytes}, nullptr});
  });
  Node reader = Start();
  std::vector<std::byte> got(bytes.size());
  PullWaiter pull;
  reader->Pull(owner.address(), {}, got, Duration::Seconds(20), pull.Callback());
  EXPECT_EQ(pull.Wait().code(), StatusCode::kInternal);
}

TEST_P(DataPlaneConformance, APeerThatStopsIsReported) {
  Node a = Start();
  Node b = Start([](const PeerAddress&, std::span<const std::byte>) {
    return Result<PullSource>(
        PullProducer{1000, [](uint64_t, std::span<std::byte>) { return OkStatus(); }});
  });
  ASSERT_TRUE(a->Send(b.address(), kDecode, AsBytes("x"), {}).ok());
  ASSERT_TRUE(b.diary->WaitForMessages(1));
  const PeerAddress gone = b.address();
  b.plane->Stop();
  ASSERT_TRUE(Eventually([&] { return a.diary->lost() >= 1; }));
  EXPECT_EQ(a.diary->lost(0).first.incarnation, gone.incarnation);
  EXPECT_TRUE(Eventually([&] { return !a->Send(gone, kDecode, {}, {}).ok(); }));
  std::vector<std::byte> got(1000);
  PullWaiter pull;
  a->Pull(gone, {}, got, Duration::Seconds(20), pull.Callback());
  EXPECT_EQ(pull.Wait().code(), StatusCode::kUnavailable);
  EXPECT_EQ(b.plane->Send(a.address(), kDecode, {}, {}).code(), StatusCode::kUnavailable);
}

TEST_P(DataPlaneConformance, PayloadsOutliveThePlane) {
  std::vector<Diary::Message> kept;
  {
    Node a = Start(), b = Start();
    const auto bytes = PatternBytes(100'000, 8);
    ASSERT_TRUE(a->Send(b.address(), kBulk, {}, Payload::CopyOf(bytes)).ok());
    ASSERT_TRUE(b.diary->WaitForMessages(1));
    kept = b.diary->Take();
  }
  EXPECT_TRUE(std::ranges::equal(kept[0].payload.bytes(), PatternBytes(100'000, 8)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DataPlaneConformance,
                         testing::Values(Kind::kSocket, Kind::kSocketOnly),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace millrace::net
