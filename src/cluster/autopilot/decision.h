// Decision: what the autopilot decided and why: the cause, the load and the machines that it saw,
// the plans that it compared, and what came of it. Values; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/autopilot/load_meter.h"
#include "core/worker_plan.h"

namespace millrace::cluster {

// What made the autopilot look for a better plan.
enum class DecisionCause : uint8_t {
  kStart,           // the load is known for the first time
  kLoadShifted,     // DistServe, section 4.3
  kWorkersChanged,  // joined, lost, usable or not (Helix)
  kNotice,          // a worker must leave (SpotServe)
  kLimitsMissed,    // too few answers keep the limits
  kForecastMissed   // a new plan does less than was forecast
};
std::string_view CauseName(DecisionCause cause);  // "load shifted", ...

enum class DecisionKind : uint8_t {
  kKeep,     // the plan in force is as good, or a change would cost more than it gains
  kAdvise,   // another plan would be better; an operator decides
  kChange,   // to another plan
  kRollBack  // to the plan before, because the new one does less than was forecast
};
std::string_view KindName(DecisionKind kind);  // "keep", ...

// A plan and what the simulator says of it under the load of the decision.
struct PlanForecast {
  std::string shape;  // equal for plans that place the same layers on the same workers
  std::shared_ptr<const WorkerPlan> plan = {};  // null: not kept
  std::string method;                           // that found it
  double requests_per_s = 0;  // the most within the limits; without limits, the most at all
};

struct Decision {
  uint64_t id = 0;
  double at_unix_s = 0;
  DecisionCause cause = DecisionCause::kStart;
  std::string why;  // the cause in words
  DecisionKind kind = DecisionKind::kKeep;
  std::string reason;  // why this kind
  MeasuredLoad load;
  int workers = 0;                       // that could get layers
  std::optional<PlanForecast> current;   // nullopt: it serves nothing, or could not be judged
  std::vector<PlanForecast> candidates;  // the best first
  double search_s = 0;
  double gain_per_s = 0;                         // requests per second
  double cost_requests = 0;                      // that the change delays
  std::optional<MeasuredService> before, after;  // the change
  std::optional<int64_t> epoch;                  // of the new plan
  std::string outcome;                           // "" while it is open
};

// One line for logs and people.
std::string DecisionLine(const Decision& decision);

}  // namespace millrace::cluster
