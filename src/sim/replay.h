// Replay: a recorded live run of `millrace serve` on the virtual clock. Requests arrive when they
// did, each step takes the time that was measured, and the scheduler decides anew; every decision
// must be the one in the log, or the simulator is not a model of the server. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "sched/step_log.h"

namespace millrace::sim {

struct ReplayReport {
  uint64_t requests = 0, aborts = 0, steps = 0, tokens = 0;
  double seconds = 0;                           // of virtual time, first to last event
  std::optional<std::string> first_difference;  // what the log says and what was decided instead
};

// kInvalidArgument when the log cannot be replayed: several stages, a step that failed, a log that
// does not start with the server.
Result<ReplayReport> Replay(const sched::StepLog& log);

}  // namespace millrace::sim
