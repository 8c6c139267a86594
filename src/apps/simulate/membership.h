// Membership: which machines run the instances of a simulation, made from flags: all machines at
// all times, or as a trace of a cloud says. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"
#include "sim/machines/membership.h"

namespace millrace::apps {

struct MembershipFlags {
  std::string availability;      // a trace; empty: all machines stay
  std::optional<double> unit_s;  // of a trace of counts
  std::optional<double> notice_s, load_s;
  std::optional<sim::OnNotice> on_notice;
};

struct Membership {
  int instances = 1;  // maximum at once
  std::vector<sim::MembershipChange> changes;
  sim::OnNotice on_notice = sim::OnNotice::kMove;
};

// Options bound to `flags`, which must outlive the command.
void AddMembershipOptions(Command& command, const char* group, MembershipFlags* flags);

// kInvalidArgument for flags that need a trace. `plan_changes`: --load-time applies without one.
Status ValidateMembership(const MembershipFlags& flags, bool plan_changes);
// How long a machine loads the layers of another plan.
Duration ChangeLoadTime(const MembershipFlags& flags);

// `instances`: maximum at once; unset: the largest number in the trace. REQUIRES: a trace is given.
Result<Membership> LoadMembership(const MembershipFlags& flags, std::optional<int> instances);

}  // namespace millrace::apps
