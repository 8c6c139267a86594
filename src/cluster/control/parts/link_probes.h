// LinkProbes: which link is measured when, and what was measured: between two workers, and between
// the controller and a worker. Links are probed one at a time, the least recently measured first,
// and only while no request runs.
//
// Owned by the controller, which sends the orders and delivers the answers. Pure; one thread at a
// time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct LinkProbeOptions {
  // Further workers are not probed: their links would not be measured within an hour.
  static constexpr size_t kWorkersMax = 64;

  Duration every = Duration::Seconds(300);  // a link is measured again after this time
  Duration retry = Duration::Seconds(60);   // after a failure
  Duration quiet = Duration::Seconds(2);    // without a request before a probe begins
  Duration limit = Duration::Seconds(30);   // for an answer; longer than a worker probes
};

// One direction.
struct MeasuredLink {
  double latency_s = 0, bytes_per_s = 0;
  Time at;
};

class LinkProbes {
 public:
  using End = std::optional<WorkerId>;  // nullopt: the controller
  using Pair = std::pair<End, End>;     // from, to
  struct Probe {
    ProbeId id;
    Pair pair;

    // The worker that measures: the second of the pair, or the one that sends to the controller.
    WorkerId by() const { return pair.second ? *pair.second : *pair.first; }
  };

  explicit LinkProbes(LinkProbeOptions options) : options_(options) {}

  // REQUIRES: the worker speaks kProtocolProfiles, and is new.
  void Add(WorkerId worker);
  // Forgets the worker and its links. An unknown one is ignored.
  void Remove(WorkerId worker);

  // The probe to begin now; nullopt: none. `busy`: requests run or wait, or weights are being
  // loaded.
  std::optional<Probe> Next(bool busy, Time now);
  // The answer of `worker`. kNotFound: it answers no probe in progress. Otherwise the reason for
  // which the numbers are not used: the worker's, or kInvalidArgument where no link has them.
  Status Take(WorkerId worker, const LinkProbed& answer, Time now);

  const std::map<Pair, MeasuredLink>& links() const { return links_; }

 private:
  const LinkProbeOptions options_;
  std::set<WorkerId> workers_;
  std::set<std::pair<Time, Pair>> due_;  // all pairs but the one in progress
  std::optional<Probe> probe_;           // in progress
  Time probe_until_;
  uint64_t probes_ = 0;
  std::optional<Time> quiet_since_;
  std::map<Pair, MeasuredLink> links_;
};

}  // namespace millrace::cluster
