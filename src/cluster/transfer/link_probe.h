// LinkProber: measures a link of this worker, by a function that says how long bytes take over it;
// for the link from another worker, pulls over the data plane, whose other side it serves. A probe
// transfers a few bytes several times for the latency, then more and more bytes until that takes
// kProbeLongEnough. It transfers at most kProbeBytesTotalMax bytes and ends within kProbeLimit.
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
#include "net/data/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kProbeBytesTotalMax = size_t{14} << 20;
inline constexpr Duration kProbeLongEnough = Duration::Millis(100);
inline constexpr Duration kProbeLimit = Duration::Seconds(10);

class LinkProber {
 public:
  // The seconds that it took to carry `bytes` bytes over the link, with next to none the other way.
  // Runs on the prober's thread and may last until `end`. Not called again after an error. The
  // first call may connect.
  using TimedTransfer = std::function<Result<double>(size_t bytes, Time end)>;
  using Done = std::function<void(const LinkProbed&)>;

  LinkProber(net::DataPlane& plane, const Clock& clock, Duration limit = kProbeLimit)
      : plane_(plane), clock_(clock), limit_(limit) {}
  ~LinkProber() { stopping_ = true; }

  // Calls `done` on the prober's thread. While a probe is in progress another one is dropped,
  // because the controller asks for one at a time, and again if there is no answer.
  void Probe(ProbeId probe, TimedTransfer transfer, Done done);
  // The transfer from another worker; it must not be called after the prober's end.
  TimedTransfer PullFrom(const WorkerAddress& from);
  static net::PullSource Serve(const ProbeRequest& request);

 private:
  LinkProbed Measure(ProbeId probe, const TimedTransfer& transfer);
  Result<double> PullSeconds(const net::PeerAddress& from, size_t bytes, Time end);

  net::DataPlane& plane_;
  const Clock& clock_;
  const Duration limit_;
  std::atomic<bool> busy_ = false, stopping_ = false;
  Mailbox thread_;  // last: its work uses the other members
};

}  // namespace millrace::cluster
