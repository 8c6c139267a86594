// The autopilot as JSON and metrics, and its decisions for the store and back. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "cluster/autopilot/decision.h"
#include "ops/autopilot/autopilot_host.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

Json ToJson(const cluster::Decision& decision);
// A field that is missing or of another type is empty.
cluster::Decision ReadDecision(const Json& json);

// What is stored for the next controller: the newest decisions that fit.
std::string StoredDecisions(const std::vector<cluster::Decision>& decisions);
// kInvalidArgument: the text is not what StoredDecisions writes.
Result<std::vector<cluster::Decision>> ReadStoredDecisions(const std::string& text);

// The answer of GET /cluster/decisions.
Json DecisionsJson(const ops::AutopilotStatus& status);
// "autopilot" of the status: its state, the load, what clients get, and its advice.
Json AutopilotJson(const ops::AutopilotStatus& status);
void AddAutopilotMetrics(const ops::AutopilotStatus& status,
                         std::vector<serve::ClusterMetric>& metrics);

// Decisions of a server have the time of day; those of a simulation, that since its start.
enum class DecisionTimes { kOfDay, kSinceStart };
// For people: a decision in a few lines; with `details`, the plans that were compared.
std::string DecisionText(const cluster::Decision& decision, bool details,
                         DecisionTimes times = DecisionTimes::kOfDay);

}  // namespace millrace::apps
