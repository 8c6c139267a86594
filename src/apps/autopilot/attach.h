// AttachAutopilot: gives the model of `serve --cluster` and `up` an autopilot, and the options for
// it. One thread, at start.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "apps/cli/command.h"
#include "apps/cluster/cluster_model.h"
#include "apps/common/engine_flags.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/autopilot/autopilot.h"

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

// Does nothing if it is off. `leading`: where decisions are stored; null: nowhere. `model`
// keeps the autopilot.
Status AttachAutopilot(const AutopilotFlags& flags, const EngineFlags& engine,
                       std::shared_ptr<Leading> leading, ClusterModel& model, const Clock& clock);

}  // namespace millrace::apps
