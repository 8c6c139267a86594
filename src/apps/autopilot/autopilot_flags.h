// AutopilotFlags: the options of an autopilot, for `serve --cluster`, `up` and `simulate`. One
// thread.
#pragma once

#include <set>
#include <string>

#include "apps/cli/command.h"
#include "base/status.h"
#include "cluster/autopilot/autopilot.h"
#include "core/latency_limits.h"

namespace millrace::apps {

enum class AutopilotChoice { kOff, kAdvise, kAct };

struct AutopilotFlags {
  AutopilotChoice choice = AutopilotChoice::kOff;
  cluster::AutopilotOptions defaults;
  double window_s = defaults.window.seconds(), horizon_s = defaults.horizon.seconds(),
         verify_s = defaults.verify.seconds(), margin = defaults.margin;
};

void AddAutopilotOptions(Command& command, AutopilotFlags* flags);

// Refuses the further options without an autopilot. `given`: the options of the command line.
Status ValidateAutopilot(const AutopilotFlags& flags, const std::set<std::string>& given);
// REQUIRES: it is not off.
cluster::AutopilotOptions AutopilotOptionsOf(const AutopilotFlags& flags,
                                             const LatencyLimits& limits);

}  // namespace millrace::apps
