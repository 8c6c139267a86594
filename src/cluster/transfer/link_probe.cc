#include "cluster/transfer/link_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cluster/transfer/pull_window.h"

namespace millrace::cluster {
namespace {

constexpr size_t kPingBytes = 64;
constexpr int kPings = 8;  // the first one may connect; the shortest counts
constexpr size_t kFirstBytes = size_t{256} << 10;
constexpr size_t kGrowth = 4;
constexpr double kShortest_s = 1e-7;
constexpr std::chrono::milliseconds kLookEvery{100};  // whether the worker stops
static_assert(kPings * kPingBytes + kFirstBytes * (1 + kGrowth + kGrowth * kGrowth) +
                  kProbeBytesMax <=
              kProbeBytesTotalMax);

}  // namespace

// Every answer is the same few bytes, sent again and again, so that peers who ask at the same time
// cost no memory.
net::PullSource LinkProber::Serve(const ProbeRequest& request) {
  static const auto bytes = std::make_shared<const std::vector<std::byte>>(kFirstBytes);
  net::PullSegments answer{.segments = {}, .pin = bytes};
  for (size_t left = request.bytes; left > 0; left -= answer.segments.back().size()) {
    answer.segments.push_back(std::span(*bytes).first(std::min(left, bytes->size())));
  }
  return answer;
}

void LinkProber::Probe(ProbeId probe, TimedTransfer transfer, Done done) {
  if (busy_.exchange(true)) return;
  thread_.Put([this, probe, transfer = std::move(transfer), done = std::move(done)] {
    const LinkProbed measured = Measure(probe, transfer);
    busy_ = false;
    done(measured);
  });
}

LinkProber::TimedTransfer LinkProber::PullFrom(const WorkerAddress& from) {
  return [this, from = DataAddress(from)](size_t bytes, Time end) {
    return PullSeconds(from, bytes, end);
  };
}

LinkProbed LinkProber::Measure(ProbeId probe, const TimedTransfer& transfer) {
  LinkProbed result{.probe = probe};
  const Time end = clock_.Now() + limit_;
  const auto carry = [&](size_t bytes) {
    auto seconds = transfer(bytes, end);
    if (seconds.ok()) result.bytes += static_cast<int64_t>(bytes);
    return seconds;
  };
  double round_trip_s = 0;
  for (int i = 0; i < kPings; ++i) {
    const auto seconds = carry(kPingBytes);
    if (!seconds.ok()) {
      result.status = seconds.status();
      return result;
    }
    round_trip_s = i == 0 ? *seconds : std::min(round_trip_s, *seconds);
  }
  result.latency_s = round_trip_s / 2;
  for (size_t bytes = kFirstBytes;; bytes = std::min(bytes * kGrowth, kProbeBytesMax)) {
    const auto seconds = carry(bytes);
    if (!seconds.ok()) {  // what was measured before counts
      if (result.bytes_per_s == 0) result.status = seconds.status();
      return result;
    }
    // Without the time that a few bytes take, where that is the smaller part.
    const double moving_s = *seconds > 2 * round_trip_s ? *seconds - round_trip_s : *seconds / 2;
    result.bytes_per_s = static_cast<double>(bytes) / moving_s;
    if (*seconds >= kProbeLongEnough.seconds() || bytes == kProbeBytesMax) return result;
  }
}

// A plane that is stopped meanwhile does not call back; what it may still write to lives on.
Result<double> LinkProber::PullSeconds(const net::PeerAddress& from, size_t bytes, Time end) {
  struct Pulled {
    std::vector<std::byte> buffer;
    Mutex mutex;
    CondVar ended;
    std::optional<std::pair<Status, uint64_t>> outcome MR_GUARDED_BY(mutex);
  };
  const auto pulled = std::make_shared<Pulled>();
  pulled->buffer.resize(bytes);
  const Time began = clock_.Now();
  plane_.Pull(from, Encode(ProbeRequest{static_cast<uint32_t>(bytes)}), pulled->buffer, end - began,
              [pulled](Status status, uint64_t got) {
                MutexLock lock(pulled->mutex);
                pulled->outcome.emplace(std::move(status), got);
                pulled->ended.notify_all();
              });
  MutexLock lock(pulled->mutex);
  while (!pulled->outcome && !stopping_) pulled->ended.wait_for(lock, kLookEvery);
  const double seconds = (clock_.Now() - began).seconds();
  if (!pulled->outcome) return Cancelled("this worker is stopping");
  const auto& [status, got] = *pulled->outcome;
  MR_RETURN_IF_ERROR(status);
  if (got == bytes) return std::max(seconds, kShortest_s);
  return DataLoss(fmt::format("a probe got {} of {} bytes", got, bytes));
}

}  // namespace millrace::cluster
