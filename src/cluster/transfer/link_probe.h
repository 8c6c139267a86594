// LinkProber: measures the link from another worker to this one over the data plane, and serves the
// other side of such a probe. A probe pulls a few bytes several times for the latency, then more
// and more bytes until a pull takes kProbeLongEnough. It transfers at most kProbeBytesTotalMax
// bytes and ends within kProbeLimit.
//
// Owned by the worker process. Any thread may call it; probes run on a thread of its own. The data
// plane may be stopped before the prober is destroyed; it is destroyed after it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/status.h"
#include "cluster/transfer/pull_messages.h"
#include "core/worker_messages.h"
#include "net/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kProbeBytesTotalMax = size_t{14} << 20;
inline constexpr Duration kProbeLongEnough = Duration::Millis(100);
inline constexpr Duration kProbeLimit = Duration::Seconds(10);

class LinkProber {
 public:
  LinkProber(net::DataPlane& plane, const Clock& clock, Duration limit = kProbeLimit)
      : plane_(plane), clock_(clock), limit_(limit) {}
  ~LinkProber() { stopping_ = true; }

  // Calls `done` on the prober's thread. While a probe is in progress another one is dropped,
  // because the controller asks for one at a time, and again if there is no answer.
  void Probe(const ProbeLink& probe, std::function<void(const LinkProbed&)> done);
  static net::PullSource Serve(const ProbeRequest& request);

 private:
  LinkProbed Measure(const ProbeLink& probe);
  // How long the pull of `bytes` bytes took; it may last until `end`.
  Result<double> PullSeconds(const net::PeerAddress& from, size_t bytes, Time end);

  net::DataPlane& plane_;
  const Clock& clock_;
  const Duration limit_;
  std::atomic<bool> busy_ = false, stopping_ = false;
  Mailbox thread_;  // last: its work uses the other members
};

}  // namespace millrace::cluster
