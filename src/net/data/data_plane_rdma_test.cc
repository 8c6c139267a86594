// Pulls through UCX. No RDMA card is needed: UCX imitates the reads over TCP on loopback, so
// everything but the card is tested. Only in builds with UCX.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "net/data/plane_testing.h"

namespace millrace::net {
namespace {

TEST(DataPlaneRdma, SegmentsOfSeveralMemoriesAndOthersBetween) {
  PiecesOwner owner(RdmaTestOptions(), 1'000'000, PatternBytes(3'000'000, 10));
  TestPlane reader(RdmaTestOptions());
  for (const bool mixed : {false, true}) {
    EXPECT_EQ(owner.PulledBy(reader, mixed), owner.Expected(mixed)) << mixed;
  }
  EXPECT_EQ(reader.plane->stats().pulls_remote, 1u);  // the mixed one is sent
  EXPECT_EQ(reader.plane->stats().pulls_ok, 2u);
}

TEST(DataPlaneRdma, WhereOneSideLacksItTheOwnerSends) {
  for (const bool owner_has_it : {false, true}) {
    std::shared_ptr<SharedMemory> memory;
    TcpDataPlaneOptions plain = RdmaTestOptions();
    plain.rdma_transports.clear();
    TestPlane owner(owner_has_it ? RdmaTestOptions() : plain,
                    [&](const PeerAddress& from, std::span<const std::byte> request) {
                      return Serve(memory)(from, request);
                    });
    memory = *owner.plane->AllocateShared(1'000'000);
    std::ranges::copy(PatternBytes(1'000'000, 4), memory->bytes().begin());
    TestPlane reader(owner_has_it ? plain : RdmaTestOptions());
    std::vector<std::byte> got(1'000'000);
    ASSERT_TRUE(PullAll(reader, owner.address(), got).ok());
    EXPECT_EQ(got, PatternBytes(got.size(), 4));
    EXPECT_EQ(reader.plane->stats().pulls_direct, 0u);
  }
}

TEST(DataPlaneRdma, MemoryThatChangedMeanwhileIsDataLoss) {
  std::shared_ptr<SharedMemory> memory;
  TestPlane owner(RdmaTestOptions(), [&](const PeerAddress& from, std::span<const std::byte> r) {
    return Serve(memory)(from, r);
  });
  memory = *owner.plane->AllocateShared(1'000'000);
  TestPlane reader(RdmaTestOptions());
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    auto* const word = reinterpret_cast<uint64_t*>(&memory->bytes()[500'000]);
    while (!stop) std::atomic_ref(*word).fetch_add(1);
  });
  std::vector<std::byte> got(1'000'000);
  EXPECT_TRUE(Eventually(
      [&] { return PullAll(reader, owner.address(), got).code() == StatusCode::kDataLoss; }));
  EXPECT_GE(reader.plane->stats().checksum_errors, 1u);
  stop = true;
  scribbler.join();
  EXPECT_TRUE(PullAll(reader, owner.address(), got).ok());  // no lasting effect
  EXPECT_EQ(reader.diary->lost(), 0u);
}

// Pulls that are cancelled at different moments; after its end, no pull writes to its destination.
class CutOff {
 public:
  static constexpr size_t kBytes = 4 << 20, kPulls = 4;

  CutOff(TestPlane& reader, const PeerAddress& owner, Duration limit) {
    for (auto& bytes : got_) {
      bytes.resize(kBytes);
      PullWaiter& waiter = waiters_.emplace_back();
      ids_.push_back(reader.plane->Pull(owner, {}, bytes, limit, waiter.Callback()));
    }
  }
  const std::vector<PullId>& ids() const { return ids_; }
  // The codes of the pulls' ends.
  std::vector<StatusCode> Ends() {
    std::vector<StatusCode> codes;
    for (const PullWaiter& waiter : waiters_) codes.push_back(waiter.Wait().code());
    for (auto& bytes : got_) std::ranges::fill(bytes, std::byte{0x5a});
    return codes;
  }
  bool Touched() const {
    return !std::ranges::all_of(got_, [](const auto& bytes) {
      return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0x5a}; });
    });
  }

 private:
  std::vector<std::vector<std::byte>> got_{kPulls};
  std::vector<PullWaiter> waiters_;
  std::vector<PullId> ids_;
};

TEST(DataPlaneRdma, EndedPullsDoNotWrite) {
  std::shared_ptr<SharedMemory> memory;
  TestPlane owner(RdmaTestOptions(), [&](const PeerAddress& from, std::span<const std::byte> r) {
    return Serve(memory)(from, r);
  });
  memory = *owner.plane->AllocateShared(CutOff::kBytes);
  std::ranges::copy(PatternBytes(CutOff::kBytes, 3), memory->bytes().begin());
  TestPlane reader(RdmaTestOptions());
  std::vector<CutOff> all;
  size_t cancelled = 0, late = 0;
  // At different moments; more often when the machine is too busy for the timing.
  for (int round = 0; round < 10 || (round < 200 && (cancelled == 0 || late == 0)); ++round) {
    const int wait_us = round % 10 * 400;
    if (all.size() == 20) all.erase(all.begin(), all.begin() + 2);
    CutOff& cut = all.emplace_back(reader, owner.address(), Duration::Seconds(20));
    usleep(wait_us);
    for (const PullId id : cut.ids()) reader.plane->CancelPull(id);
    for (const StatusCode code : cut.Ends()) cancelled += code == StatusCode::kCancelled;
    CutOff& slow = all.emplace_back(reader, owner.address(), Duration{wait_us * 1000});
    for (const StatusCode code : slow.Ends()) late += code == StatusCode::kDeadlineExceeded;
    for (const CutOff& before : all) ASSERT_FALSE(before.Touched());
  }
  EXPECT_GE(cancelled, 1u);
  EXPECT_GE(late, 1u);
  usleep(20'000);
  for (const CutOff& before : all) EXPECT_FALSE(before.Touched());
  std::vector<std::byte> got(CutOff::kBytes);
  const uint64_t before = reader.plane->stats().pulls_remote;
  ASSERT_TRUE(PullAll(reader, owner.address(), got).ok());
  EXPECT_EQ(got, PatternBytes(CutOff::kBytes, 3));
  EXPECT_EQ(reader.plane->stats().pulls_remote, before + 1);  // the transport itself still works
  CutOff stopped(reader, owner.address(), Duration::Seconds(20));
  usleep(1000);
  reader.plane->Stop();
  for (const StatusCode code : stopped.Ends()) {
    EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kCancelled);
  }
  usleep(20'000);
  EXPECT_FALSE(stopped.Touched());
  EXPECT_TRUE(Eventually([&] { return memory.use_count() == 1; })) << "a pin was not dropped";
}

#ifndef __SANITIZE_THREAD__  // it does not support a child that starts threads
TEST(DataPlaneRdma, AnOwnerThatIsKilled) {
  std::vector<std::unique_ptr<OtherProcess>> owners;
  for (int i = 0; i < 3; ++i) {
    owners.push_back(std::make_unique<OtherProcess>(CutOff::kBytes, RdmaTestOptions()));
  }
  TestPlane reader(RdmaTestOptions());
  for (auto& owner : owners) {
    std::vector<std::byte> got(CutOff::kBytes);
    ASSERT_TRUE(PullAll(reader, owner->address(), got).ok());
    EXPECT_EQ(got, PatternBytes(CutOff::kBytes, 11));
    CutOff cut(reader, owner->address(), Duration::Seconds(20));
    usleep(2000);
    owner->Kill();
    for (const StatusCode code : cut.Ends()) {
      EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kUnavailable);
    }
    EXPECT_FALSE(cut.Touched());
  }
  EXPECT_GE(reader.plane->stats().pulls_remote, 3u);
  EXPECT_TRUE(Eventually([&] { return reader.diary->lost() == 3; }));
}
#endif

TEST(DataPlaneRdma, WithoutACardItDoesNotStart) {
  TcpDataPlaneOptions options = TestOptions();
  options.rdma_transports = "rc,dc";
  const StatusCode code = StartTcpDataPlane(options, {}).status().code();
  const bool perhaps = std::filesystem::exists("/dev/infiniband");
  EXPECT_TRUE(code == StatusCode::kUnavailable || (perhaps && code == StatusCode::kOk));
}

}  // namespace
}  // namespace millrace::net
