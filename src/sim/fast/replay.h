// Replay: repeats a recorded live run of `millrace serve` on the virtual clock. Requests arrive at
// their recorded times, each step takes its measured time, and the scheduler decides again. Every
// decision must equal the logged one; otherwise the simulator does not model the server. One
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "sched/step_log.h"

namespace millrace::sim {

struct ReplayReport {
  uint64_t requests = 0, aborts = 0, steps = 0, tokens = 0;
  double seconds = 0;                           // virtual time from first to last event
  std::optional<std::string> first_difference;  // the logged and the replayed decision
};

// kInvalidArgument if the log cannot be replayed: several stages, a failed step, or a log that does
// not start with the server.
Result<ReplayReport> Replay(const sched::StepLog& log);

}  // namespace millrace::sim
