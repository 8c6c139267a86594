#include "cluster/transfer/pull_window.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cluster/transfer/pull_answers.h"

namespace millrace::cluster {
namespace {

constexpr Duration kWantedEvery = Duration::Millis(100);

}  // namespace

net::PeerAddress DataAddress(const WorkerAddress& worker) {
  return {worker.data, worker.incarnation.value(), worker.host_id, worker.process_id};
}

Status PullParts(net::DataPlane& plane, size_t parts, const PullSteps& steps) {
  const auto answers = std::make_shared<PullAnswers>();
  PullBuffers buffers(kPullChunkBytes, kPullsInFlight);
  size_t next = 0;
  int in_flight = 0;
  const auto begin = [&](size_t part) {
    const PullOrder order = steps.order(part);
    const PullBuffer buffer = buffers.Take(order.bytes);
    ++in_flight;
    plane.Pull(order.from, order.request, buffer.bytes, kPullPartLimit,
               [answers, buffer, part, or_fewer = order.or_fewer](Status status, uint64_t got) {
                 if (status.ok() && got != buffer.bytes.size() && !or_fewer) {
                   status =
                       DataLoss(fmt::format("{} bytes instead of {}", got, buffer.bytes.size()));
                 }
                 answers->Add({part, std::move(status), buffer, got});
               });
  };
  Status failed;
  while (true) {
    while (failed.ok() && next < parts && in_flight < kPullsInFlight) begin(next++);
    if (in_flight == 0) return failed;
    const std::vector<PullAnswer> arrived = answers->Wait(kWantedEvery);
    if (arrived.empty() && steps.wanted && !steps.wanted()) {
      return Cancelled("the pull is no longer wanted");
    }
    for (const PullAnswer& answer : arrived) {
      --in_flight;
      if (!failed.ok()) continue;
      const Result<bool> again = steps.arrived(answer.part, answer.status, answer.bytes());
      if (!again.ok()) {
        failed = again.status();
      } else if (*again) {
        begin(answer.part);
      }
    }
  }
}

}  // namespace millrace::cluster
