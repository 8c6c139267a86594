#include "cluster/autopilot/decision.h"

#include <fmt/format.h>

namespace millrace::cluster {

std::string_view CauseName(DecisionCause cause) {
  switch (cause) {
    case DecisionCause::kStart: return "start";
    case DecisionCause::kLoadShifted: return "load shifted";
    case DecisionCause::kWorkersChanged: return "workers changed";
    case DecisionCause::kNotice: return "notice";
    case DecisionCause::kLimitsMissed: return "limits missed";
    case DecisionCause::kForecastMissed: return "forecast missed";
  }
  return "?";
}

std::string_view KindName(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::kKeep: return "keep";
    case DecisionKind::kAdvise: return "advise";
    case DecisionKind::kChange: return "change";
    case DecisionKind::kRollBack: return "roll back";
  }
  return "?";
}

std::string DecisionLine(const Decision& decision) {
  std::string line =
      fmt::format("decision {}: {} ({}: {}): {}", decision.id, KindName(decision.kind),
                  CauseName(decision.cause), decision.why, decision.reason);
  if (!decision.outcome.empty()) line += fmt::format("; {}", decision.outcome);
  return line;
}

}  // namespace millrace::cluster
