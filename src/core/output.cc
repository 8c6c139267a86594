#include "core/output.h"

#include <algorithm>

namespace millrace {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "error";
}

std::optional<RequestPhases> PhasesOf(const RequestTimes& times) {
  if (!times.first_token || !times.last_token) return std::nullopt;
  // A preemption after the first token counts as decoding, as in vLLM.
  Time scheduled = times.first_scheduled.value_or(times.arrived);
  if (times.last_scheduled && *times.last_scheduled <= *times.first_token) {
    scheduled = *times.last_scheduled;
  }
  RequestPhases phases{.queue = scheduled - times.arrived,
                       .prefill = *times.first_token - scheduled,
                       .hold = times.held,
                       .transfer = times.transferred};
  const Duration after = *times.last_token - *times.first_token;
  phases.decode = std::max(after - phases.hold - phases.transfer, Duration{});
  return phases;
}

}  // namespace millrace
