// Which machines carry the instances of a simulation, from flags: all of them all the time, or as a
// trace of a cloud's machines says. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"
#include "sim/membership.h"
#include "sim/service.h"

namespace millrace::apps {

struct MembershipFlags {
  std::string availability;      // a trace; empty: everybody stays
  std::optional<double> unit_s;  // of a trace of counts
  std::optional<double> notice_s, load_s;
  std::optional<sim::OnNotice> on_notice;
};

struct Membership {
  int instances = 1;  // at most so many at once
  std::vector<sim::MembershipChange> changes;
  sim::OnNotice on_notice = sim::OnNotice::kMove;
};

// The options bound to `flags`, which outlive the command.
void AddMembershipOptions(Command& command, const char* group, MembershipFlags* flags);

// kInvalidArgument: flags that mean nothing without a trace.
Status ValidateMembership(const MembershipFlags& flags);

// `instances`: at most so many, none: as many as the trace ever has. REQUIRES: a trace is named.
Result<Membership> LoadMembership(const MembershipFlags& flags, std::optional<int> instances);

}  // namespace millrace::apps
