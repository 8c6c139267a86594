// Which worker holds up a pipeline.
#include <fmt/format.h>

#include <algorithm>

#include "cluster/control/pipelines/pipelines.h"

namespace millrace::cluster {

// A worker holds the step if steps are queued there, it has ended no batch since, and no worker
// before it does. Ranks wait for the one that does not begin. If a worker has begun a batch, that
// batch is judged instead. If no worker admits to the step, the one that answers steps owes it.
// nullopt: not known yet.
std::optional<WorkerId> Pipelines::HolderOfStep(const Pipeline& pipeline, Time since,
                                                Time now) const {
  const auto in_batch = [&](WorkerId id) { return members_.at(id).beat.batch_age_ms > 0; };
  for (const std::vector<WorkerId>& hop : pipeline.workers) {
    const auto unknown = [&](WorkerId id) {
      return !members_.Alive(id, now) || (in_batch(id) && !members_.at(id).beat.waits_for_ranks);
    };
    if (std::ranges::any_of(hop, unknown)) return std::nullopt;
    const auto holds = std::ranges::find_if(hop, [&](WorkerId id) {
      const Membership::Worker& worker = members_.at(id);
      return worker.beat.queued_steps > 0 && !in_batch(id) && worker.moved <= since;
    });
    if (holds != hop.end()) return *holds;
    if (std::ranges::any_of(hop, in_batch)) return std::nullopt;
  }
  return pipeline.workers.back().front();
}

std::vector<Pipelines::Holder> Pipelines::Holders(Time now) {
  std::vector<Holder> holders;
  const StepWatchLimits& limits = options_.steps;
  for (auto& [id, pipeline] : pipelines_) {
    if (!pipeline.open && now - pipeline.opened_at > limits.open) {
      for (WorkerId worker : pipeline.to_open) {
        if (members_.at(worker).beat.batch_age_ms > 0) continue;
        holders.push_back(
            {worker, Unavailable(fmt::format("it has not opened a pipeline for {:.0f} s",
                                             limits.open.seconds()))});
      }
    }
    if (pipeline.tested_at && now - *pipeline.tested_at > limits.first) {
      if (const auto worker = HolderOfStep(pipeline, *pipeline.tested_at, now)) {
        holders.push_back({*worker, Unavailable(fmt::format("a test step has not come back for "
                                                            "{:.0f} s",
                                                            limits.first.seconds()))});
      }
      continue;
    }
    const auto step = pipeline.timer.Oldest();
    const Duration waited = step ? now - step->since : Duration();
    if (!step || waited <= limits.least ||
        waited <= pipeline.watch.LimitFor(step->tokens, PrefillTokensPerS(pipeline), limits)) {
      pipeline.overdue_since.reset();
      continue;
    }
    if (!pipeline.overdue_since) pipeline.overdue_since = now;
    if (now - *pipeline.overdue_since < limits.grace) continue;
    if (const auto worker = HolderOfStep(pipeline, step->since, now)) {
      holders.push_back({*worker, Unavailable(fmt::format("a step has not come back for {:.1f} s",
                                                          waited.seconds()))});
    }
  }
  return holders;
}

}  // namespace millrace::cluster
