#include "cluster/transfer/pull_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace millrace::cluster {
namespace {

constexpr auto kWantedEvery = std::chrono::milliseconds(100);

// Shared with the callbacks, because PullParts may return while pulls are in flight.
struct Arrivals {
  Mutex mutex;
  CondVar changed;
  struct One {
    size_t part = 0;
    Status status;
    size_t bytes = 0;
  };
  std::vector<One> arrived MR_GUARDED_BY(mutex);
};

// Rests after a part that took `copied`. Returns the length of the rest.
std::chrono::nanoseconds Rest(std::chrono::nanoseconds copied) {
  constexpr std::chrono::nanoseconds kMax(kRestMax.ns);
  const auto rest = std::min(copied * kRestToCopy, kMax);
  std::this_thread::sleep_for(rest);
  return rest;
}

}  // namespace

net::PeerAddress DataAddress(const WorkerAddress& worker) {
  return {worker.data, worker.incarnation.value(), worker.host_id, worker.process_id};
}

Status PullParts(net::DataPlane& plane, size_t parts, const PullSteps& steps) {
  const auto shared = std::make_shared<Arrivals>();
  std::map<size_t, std::shared_ptr<std::vector<std::byte>>> buffers;
  const auto begin = [&](size_t part) {
    const PullOrder order = steps.order(part);
    const auto buffer = std::make_shared<std::vector<std::byte>>(order.bytes);
    buffers[part] = buffer;
    plane.Pull(order.from, order.request, *buffer, kPullPartLimit,
               [shared, buffer, part, or_fewer = order.or_fewer](Status status, uint64_t got) {
                 if (status.ok() && got != buffer->size() && !or_fewer) {
                   status = DataLoss(fmt::format("{} bytes instead of {}", got, buffer->size()));
                 }
                 MutexLock lock(shared->mutex);
                 shared->arrived.push_back({part, std::move(status), static_cast<size_t>(got)});
                 shared->changed.notify_one();
               });
  };
  const bool background = steps.pace == PullPace::kBackground;
  const size_t at_once = background ? 1 : kPullsInFlight;
  std::chrono::nanoseconds may_rest(background ? kRestsMax.ns : 0);
  size_t next = 0;
  Status failed;
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    while (failed.ok() && next < parts && buffers.size() < at_once) begin(next++);
    if (buffers.empty()) return failed;
    MutexLock lock(shared->mutex);
    while (shared->arrived.empty()) {
      if (shared->changed.wait_for(lock, kWantedEvery) == std::cv_status::no_timeout) continue;
      if (steps.wanted && !steps.wanted()) return Cancelled("the pull is no longer wanted");
    }
    const auto arrived = std::exchange(shared->arrived, {});
    lock.unlock();
    for (const Arrivals::One& one : arrived) {
      const auto buffer = std::move(buffers.extract(one.part).mapped());
      if (!failed.ok()) continue;
      const Result<bool> again =
          steps.arrived(one.part, one.status, std::span(*buffer).first(one.bytes));
      if (!again.ok()) {
        failed = again.status();
      } else if (*again) {
        begin(one.part);
      }
    }
    if (may_rest.count() > 0 && next < parts) {
      may_rest -= Rest(std::chrono::steady_clock::now() - start);
    }
  }
}

}  // namespace millrace::cluster
