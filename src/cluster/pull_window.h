// PullParts: many pulls over the data plane, a few under way at once, on the caller's thread: how
// KV and weights come from other workers. Every part is taken or fails by itself; what to do about
// a failure (ask again, ask another peer, give up) is the caller's to say.
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

// Nobody waits for kBackground: one part at a time, and rests between them, because copying takes
// from steps the memory's bandwidth and a core's time, at both ends.
enum class PullPace : uint8_t { kFast, kBackground };
inline constexpr int kRestToCopy = 3;
inline constexpr Duration kRestMax = Duration::Millis(2);    // or a slow link would lie idle
inline constexpr Duration kRestsMax = Duration::Seconds(3);  // of a pull: what is held is lent

struct PullOrder {
  net::PeerAddress from;
  std::vector<std::byte> request;
  size_t bytes = 0;  // that must come
  bool or_fewer = false;
};

struct PullSteps {
  std::function<PullOrder(size_t part)> order;
  // What has come of it, or why nothing has. True: order it again. An error ends it all.
  std::function<Result<bool>(size_t part, const Status& status, std::span<const std::byte> bytes)>
      arrived;
  std::function<bool()> wanted = {};  // asked now and then; false ends with kCancelled
  PullPace pace = PullPace::kFast;
};

net::PeerAddress DataAddress(const WorkerAddress& worker);

// Returns when nothing is under way any more, or when it is not wanted.
Status PullParts(net::DataPlane& plane, size_t parts, const PullSteps& steps);

}  // namespace millrace::cluster
