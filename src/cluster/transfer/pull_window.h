// PullParts: pulls weights from other workers over the data plane, in many parts, of which a few
// are in flight at once. It runs on the caller's thread and owns nothing after it returns. Each
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
#include "net/data/data_plane.h"

namespace millrace::cluster {

inline constexpr int kPullsInFlight = 8;
inline constexpr Duration kPullPartLimit = Duration::Seconds(10);

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
};

net::PeerAddress DataAddress(const WorkerAddress& worker);

// Returns when no pull is in flight, or when `wanted` returned false.
Status PullParts(net::DataPlane& plane, size_t parts, const PullSteps& steps);

}  // namespace millrace::cluster
