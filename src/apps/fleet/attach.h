// AttachFleet: gives the model of `serve --cluster` a fleet, and the option for it. One thread, at
// start.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "apps/cluster/cluster_model.h"
#include "apps/common/engine_flags.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/fleet/fleet_spec.h"

namespace millrace::apps {

void AddFleetOption(Command& command, std::string* file);

// nullopt if `file` is empty.
Result<std::optional<cluster::FleetSpec>> ReadFleet(const std::string& file);

// Does nothing without a file. `model` keeps the fleet.
Status AttachFleet(const std::string& file, const EngineFlags& engine, ClusterModel& model,
                   const Clock& clock);

}  // namespace millrace::apps
