// MachineReports: what workers say of their machines beside their joins: profiles, the links that
// they have probed, and notices of their end. What cannot be used is logged, counted and dropped:
// the worker serves as well without it.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cluster/control/controller_status.h"
#include "cluster/control/parts/link_probes.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct MachineReportsOptions {
  int num_layers = 0;                           // of the model
  int max_batched_tokens = 0;                   // of a full step
  std::optional<LinkProbeOptions> link_probes;  // unset: links are not probed
};

class MachineReports {
 public:
  // The others outlive it.
  MachineReports(MachineReportsOptions options, Membership& members, Outbox& outbox);

  void WorkerJoined(const Membership::Worker& worker);
  void WorkerLost(WorkerId worker);
  void On(Membership::Worker& from, const WorkerProfile& message, Time now);
  void On(Membership::Worker& from, const LinkProbed& message, Time now);
  void On(Membership::Worker& from, const MayLeave& message, Time now);
  // `in`: until the deadline. The same notice may come again: with another time, or in the worker's
  // next session.
  void TakeNotice(Membership::Worker& from, MachineNotice notice, std::optional<Duration> in,
                  Time now);
  static void WithdrawNotice(Membership::Worker& from);
  // Sends the order for the next probe, if one is due. `busy`: as of LinkProbes::Next.
  void Tick(bool busy, Time now);

  std::vector<LinkStatus> Links(Time now) const;
  // Null: links are not probed.
  const LinkProbes* probes() const { return probes_ ? &*probes_ : nullptr; }
  const std::map<NoticeOrigin, uint64_t>& notices() const { return notices_; }
  uint64_t profiles_refused() const { return profiles_refused_; }
  uint64_t links_probed() const { return links_probed_; }
  uint64_t probes_failed() const { return probes_failed_; }
  uint64_t stale() const { return stale_; }  // answers to no probe in progress

 private:
  const int num_layers_, max_batched_tokens_;
  Membership& members_;
  Outbox& outbox_;
  std::optional<LinkProbes> probes_;
  std::map<NoticeOrigin, uint64_t> notices_;
  uint64_t profiles_refused_ = 0, links_probed_ = 0, probes_failed_ = 0, stale_ = 0;
};

}  // namespace millrace::cluster
