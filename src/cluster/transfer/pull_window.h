// PullParts: pulls KV or weights from other workers over the data plane, in many parts, of which a
// few are in flight at once. It runs on the caller's thread and owns nothing after it returns. Each
// part succeeds or fails on its own. The caller decides about a failed part: retry, use another
// peer, or give up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/worker_messages.h"
#include "net/data_plane.h"

namespace millrace::cluster {

inline constexpr int kPullsInFlight = 8;
inline constexpr Duration kPullPartLimit = Duration::Seconds(10);

// kBackground is for pulls that no request waits for: one part at a time, with rests between parts,
// because copying takes memory bandwidth and CPU time from the steps at both ends.
enum class PullPace : uint8_t { kFast, kBackground };
inline constexpr int kRestToCopy = 3;                      // a rest, in times of the part before
inline constexpr Duration kRestMax = Duration::Millis(2);  // a longer rest would idle a slow link
// All rests of one PullParts, because the source holds the data for a limited time.
inline constexpr Duration kRestsMax = Duration::Seconds(3);

struct PullOrder {
  net::PeerAddress from;
  std::vector<std::byte> request;
  size_t bytes = 0;       // the expected size
  bool or_fewer = false;  // fewer bytes are no error
};

struct PullSteps {
  std::function<PullOrder(size_t part)> order;
  // The part's bytes, or why it failed. True: pull the part again. An error ends PullParts.
  std::function<Result<bool>(size_t part, const Status& status, std::span<const std::byte> bytes)>
      arrived;
  std::function<bool()> wanted = {};  // polled; false ends it with kCancelled
  PullPace pace = PullPace::kFast;
};

net::PeerAddress DataAddress(const WorkerAddress& worker);

// Returns when no pull is in flight, or when `wanted` returned false.
Status PullParts(net::DataPlane& plane, size_t parts, const PullSteps& steps);

}  // namespace millrace::cluster
