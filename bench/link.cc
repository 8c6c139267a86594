// The latency of a step from worker to worker, from Send to on_message over loopback with
// conversion in both directions; and from controller to worker.
//
//   build/release/bench/link_latency
//
// One step of 64 decodes per millisecond, 3,000 of them after a warm-up. Target: 150 us (median)
// from worker to worker.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/statistics.h"
#include "cluster/link/peer_steps.h"
#include "cluster/link/testing/link_harness.h"
#include "wire/testing/random_messages.h"

namespace millrace::cluster {
namespace {

constexpr int kWarmUp = 200;
constexpr int kSteps = 3000;
constexpr auto kEvery = std::chrono::milliseconds(1);

void Measure(const char* what, const std::function<Status(const PipelineStep&)>& send,
             const std::atomic<int64_t>& arrived_ns) {
  const SteadyClock clock;
  PipelineStep step = wire::testing::DecodeStep(64);
  std::vector<double> us;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    const int64_t before = arrived_ns;
    const int64_t start = clock.Now().ns;
    MR_CHECK(send(step).ok());
    while (arrived_ns == before) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (i >= kWarmUp) us.push_back(static_cast<double>(arrived_ns - start) * 1e-3);
    std::this_thread::sleep_for(kEvery);
  }
  fmt::print("{:22} p50 {:6.1f} us  p90 {:6.1f} us  p99 {:6.1f} us\n", what, Median(us),
             Percentile(us, 90), Percentile(us, 99));
}

void MeasurePeers() {
  std::atomic<int64_t> arrived_ns{0};
  const LinkSecurity security = testing::PlainText();
  const auto ignore = [](Incarnation, const Status&) {};
  auto from = PeerSteps::Start({.security = security, .incarnation = Incarnation(1)},
                               {.on_message = [](const PeerMessage&) {}, .on_peer_lost = ignore});
  auto to = PeerSteps::Start(
      {.security = security, .incarnation = Incarnation(2)},
      {.on_message = [&](const PeerMessage&) { arrived_ns = SteadyClock().Now().ns; },
       .on_peer_lost = ignore});
  MR_CHECK(from.ok() && to.ok());
  WorkerAddress address;
  address.incarnation = Incarnation(2);
  address.control = fmt::format("127.0.0.1:{}", (*to)->port());
  Measure(
      "worker to worker",
      [&](const PipelineStep& step) { return (*from)->Send(address, Term(1), step); }, arrived_ns);
}

void MeasureController() {
  std::atomic<int64_t> arrived_ns{0};
  testing::ControllerEnd controller;
  auto worker = ControlClient::Create(
      {.controller = controller.address(),
       .security = testing::PlainText(),
       .incarnation = Incarnation(1)},
      {.on_message = [&](const ToWorker&,
                         const wire::Envelope&) { arrived_ns = SteadyClock().Now().ns; },
       .on_disconnect = [](const Status&) {},
       .make_heartbeat = [] { return Heartbeat{.incarnation = Incarnation(1)}; }});
  MR_CHECK(worker.ok() && (*worker)->Connect(Duration::Seconds(10)).ok());
  Join join;
  join.address.incarnation = Incarnation(1);
  MR_CHECK((*worker)->Send(Term(), join).ok() && controller.messages.WaitFor(1));
  const ConnectionId id = controller.messages.at(0).from;
  Measure(
      "controller to worker",
      [&](const PipelineStep& step) { return controller.server->Send(id, Term(1), step); },
      arrived_ns);
}

}  // namespace
}  // namespace millrace::cluster

int main() {
  millrace::cluster::MeasurePeers();
  millrace::cluster::MeasureController();
}
