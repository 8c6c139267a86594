// RunAlone: the answers by definition, for tests and benches. It drives a scheduler over one stage
// without threads, messages or a controller; every other way to serve must give the same bits.
#pragma once

#include <vector>

#include "sched/scheduler.h"
#include "stage/stage_runner.h"

namespace millrace::stage {

// Runs every request of `scheduler` to its end. Calls `take(RequestOutput&&)` for each output, in
// order. Returns false if requests are left that no step can serve.
template <typename Take>
bool RunAlone(sched::Scheduler& scheduler, StageRunner& runner, Take take) {
  std::vector<RequestOutput> outputs;
  while (scheduler.HasWork()) {
    const StepPlan* plan = scheduler.Schedule(Time{});
    if (plan == nullptr) return false;
    scheduler.Commit(runner.Run(*plan), Time{}, outputs);
    for (RequestOutput& output : outputs) take(std::move(output));
    outputs.clear();
  }
  return true;
}

}  // namespace millrace::stage
