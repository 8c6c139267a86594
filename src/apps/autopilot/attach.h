// AttachAutopilot: gives the model of `serve --cluster` and `up` an autopilot. One thread, at
// start.
#pragma once

#include <memory>

#include "apps/autopilot/autopilot_flags.h"
#include "apps/cluster/cluster_model.h"
#include "apps/common/engine_flags.h"
#include "base/clock.h"
#include "base/status.h"

namespace millrace::apps {

// Does nothing if it is off. `leading`: where decisions are stored; null: nowhere. `model`
// keeps the autopilot.
Status AttachAutopilot(const AutopilotFlags& flags, const EngineFlags& engine,
                       std::shared_ptr<ops::Leading> leading, ClusterModel& model,
                       const Clock& clock);

}  // namespace millrace::apps
