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
  std::string availability;  // a trace; empty: everybody stays
  double unit_s = 1;         // of a trace of counts
  double notice_s = 30, load_s = 30;
  sim::OnNotice on_notice = sim::OnNotice::kMove;
};

struct Membership {
  int instances = 1;  // at most so many at once
  std::vector<sim::MembershipChange> changes;
  sim::OnNotice on_notice = sim::OnNotice::kMove;
};

// The options bound to `flags`, which outlive the command.
void AddMembershipOptions(Command& command, const char* group, MembershipFlags* flags);

// `instances`: at most so many, none: as many as the trace ever has. REQUIRES: a trace is named.
Result<Membership> LoadMembership(const MembershipFlags& flags, std::optional<int> instances);

}  // namespace millrace::apps
