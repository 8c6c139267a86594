// A probe between two data planes on this machine.
#include "cluster/transfer/link_probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

namespace millrace::cluster {
namespace {

std::unique_ptr<net::DataPlane> PlaneFor(net::PullHandler serve) {
  net::TcpDataPlaneOptions options;
  options.token = "a token of a test";
  net::DataPlaneEvents events;
  events.on_message = [](auto&&...) {};
  events.on_peer_lost = [](auto&&...) {};
  events.on_pull = std::move(serve);
  auto plane = net::StartTcpDataPlane(std::move(options), std::move(events));
  EXPECT_TRUE(plane.ok()) << plane.status().ToString();
  return std::move(*plane);
}

WorkerAddress AddressOf(const net::DataPlane& plane) {
  WorkerAddress address;
  address.incarnation = Incarnation(plane.self().incarnation);
  address.data = plane.self().endpoint;
  address.host_id = plane.self().host_id;
  address.process_id = plane.self().process_id;
  return address;
}

class LinkProbeTest : public ::testing::Test {
 protected:
  static LinkProbed Measure(LinkProber& prober, const WorkerAddress& from) {
    std::promise<LinkProbed> measured;
    prober.Probe(ProbeId(7), prober.PullFrom(from),
                 [&](const LinkProbed& result) { measured.set_value(result); });
    return measured.get_future().get();
  }
  LinkProbed Measure(const WorkerAddress& from) { return Measure(prober_, from); }

  SteadyClock clock_;
  const std::unique_ptr<net::DataPlane> here_ = PlaneFor({});
  LinkProber prober_{*here_, clock_};
};

TEST_F(LinkProbeTest, MeasuresBothNumbersWithABoundedNumberOfBytes) {
  std::atomic<int> served = 0;
  const auto there = PlaneFor(
      [&](const net::PeerAddress&, std::span<const std::byte> bytes) -> Result<net::PullSource> {
        ++served;
        MR_ASSIGN_OR_RETURN(const PullRequest request, DecodePullRequest(bytes));
        return LinkProber::Serve(std::get<ProbeRequest>(request));
      });
  const LinkProbed result = Measure(AddressOf(*there));
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.probe, ProbeId(7));
  EXPECT_GT(result.latency_s, 0);
  EXPECT_LT(result.latency_s, 1);
  EXPECT_GT(result.bytes_per_s, 1e6);
  EXPECT_GT(result.bytes, 256 << 10);
  EXPECT_LE(result.bytes, static_cast<int64_t>(kProbeBytesTotalMax));
  EXPECT_GT(served, 8);
  EXPECT_TRUE(Measure(AddressOf(*there)).status.ok()) << "again";
}

TEST_F(LinkProbeTest, ARefusalAndAShortAnswerAreErrors) {
  const auto refuses = PlaneFor([](auto&&...) -> Result<net::PullSource> {
    return InvalidArgument("it asks for nothing that this worker knows");  // of an earlier version
  });
  EXPECT_FALSE(Measure(AddressOf(*refuses)).status.ok());
  const auto cheats = PlaneFor(
      [](auto&&...) -> Result<net::PullSource> { return LinkProber::Serve(ProbeRequest{10}); });
  const LinkProbed result = Measure(AddressOf(*cheats));
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(result.bytes_per_s, 0);
}

// Each pull is within the limit, all of them together are not.
TEST_F(LinkProbeTest, EndsAtItsLimit) {
  const auto slow = PlaneFor([](auto&&...) -> Result<net::PullSource> {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return LinkProber::Serve(ProbeRequest{64});
  });
  LinkProber prober(*here_, clock_, Duration::Millis(200));
  const Time began = clock_.Now();
  const LinkProbed result = Measure(prober, AddressOf(*slow));
  EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded) << result.status.ToString();
  EXPECT_GE(clock_.Now() - began, Duration::Millis(200));
  EXPECT_LT(result.bytes, 4 * 64);
}

// 5 ms there and back, and 10 MB/s, without a socket.
TEST(LinkProber, ComputesTheNumbersFromTheTimes) {
  const SteadyClock clock;
  const auto here = PlaneFor({});
  LinkProber prober(*here, clock);
  std::vector<size_t> asked;
  std::promise<LinkProbed> measured;
  prober.Probe(
      ProbeId(3),
      [&](size_t bytes, Time) -> Result<double> {
        asked.push_back(bytes);
        const double connecting_s = asked.size() == 1 ? 0.2 : 0;
        return connecting_s + 5e-3 + static_cast<double>(bytes) / 1e7;
      },
      [&](const LinkProbed& result) { measured.set_value(result); });
  const LinkProbed result = measured.get_future().get();
  EXPECT_EQ(result.probe, ProbeId(3));
  EXPECT_TRUE(result.status.ok());
  EXPECT_NEAR(result.latency_s, 2.5e-3, 1e-5) << "half of the shortest";
  EXPECT_NEAR(result.bytes_per_s, 1e7, 1e4);
  EXPECT_EQ(asked.size(), 8u + 2) << "1 MiB takes 0.1 s";
  EXPECT_EQ(result.bytes, static_cast<int64_t>(std::reduce(asked.begin(), asked.end())));
}

// Counts how often it was asked.
class CountingClock : public SteadyClock {
 public:
  Time Now() const override {
    ++calls;
    return SteadyClock::Now();
  }
  mutable std::atomic<int> calls = 0;
};

// Its callback never comes.
TEST(LinkProber, EndsAfterItsPlaneHasStopped) {
  const CountingClock clock;
  const auto here = PlaneFor({}), there = PlaneFor({});
  here->Stop();
  LinkProber prober(*here, clock);
  prober.Probe(ProbeId(1), prober.PullFrom(AddressOf(*there)),
               [](const LinkProbed& result) { EXPECT_FALSE(result.status.ok()); });
  while (clock.calls < 2) std::this_thread::yield();  // the first pull is about to begin
}

TEST_F(LinkProbeTest, AWorkerThatIsGoneIsAnError) {
  auto gone = PlaneFor({});
  const WorkerAddress address = AddressOf(*gone);
  gone.reset();
  EXPECT_FALSE(Measure(address).status.ok());
}

}  // namespace
}  // namespace millrace::cluster
