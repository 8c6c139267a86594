// Pipelines: what their workers answer.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// The hop that the worker computes with other ranks; nullopt: there is none.
std::optional<PipelineHop> SharedHop(const Pipeline& pipeline, WorkerId worker) {
  const auto found = std::ranges::find_if(pipeline.hops, [&](const PipelineHop& hop) {
    return hop.ranks.size() > 1 &&
           std::ranges::find(hop.ranks, worker, &WorkerAddress::worker) != hop.ranks.end();
  });
  return found == pipeline.hops.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

void ControllerCore::On(ConnectionId from, const PipelineOpened& message, Time now) {
  Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr || pipeline->open) {
    ++counters_.stale_messages;
    return;
  }
  if (!pipeline->Uses(members_.Find(from)->id)) {
    return EndForViolation(from, "it opens a pipeline that it is not in", now);
  }
  if (!message.status.ok()) {
    // Surviving stages of lost pipelines may occupy memory that this pipeline needs.
    transfers_.GiveUpSurviving();
    return closer_.Lose(message.pipeline, message.status, {}, now);
  }
  if (!pipelines_.Opened(*pipeline, members_.Find(from)->id, now)) ++counters_.stale_messages;
  if (pipeline->open) UseOpened();
}

// A pipeline has opened.
void ControllerCore::UseOpened() {
  requests_.TryQueue();
  closer_.LookAgain();  // requests may move there
}

// A step is answered by rank 0 of the last hop.
void ControllerCore::On(ConnectionId from, const StepDone& message, Time now) {
  Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  if (!Is(from, pipeline->workers.back().front())) {
    return EndForViolation(from, "it answers a step of another worker", now);
  }
  if (message.result.id == kTestStep) {
    if (pipelines_.Tested(*pipeline)) return UseOpened();
    ++counters_.stale_messages;
    return;
  }
  const Status ended = lifecycle_.EndStep(*pipeline, message.result, now);
  if (!ended.ok()) EndForViolation(from, ended.message(), now);
}

void ControllerCore::On(ConnectionId from, const PipelineBroken& message, Time now) {
  const Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  const Worker& worker = *members_.Find(from);
  const bool knows =
      pipeline->Uses(worker.id) && (!message.suspect || pipeline->Uses(*message.suspect));
  if (!knows) return EndForViolation(from, "it breaks a pipeline of other workers", now);
  MR_LOG(warn, "worker {} reports a broken pipeline: {}", Printable(worker.join.name),
         Printable(message.reason.message()));
  const bool cut_off = message.reason.code() == StatusCode::kUnavailable ||
                       message.reason.code() == StatusCode::kDeadlineExceeded;
  // Its batch could not run with the other ranks: their collective has failed permanently.
  const auto shared = SharedHop(*pipeline, worker.id);
  if (cut_off && !message.suspect && shared)
    return closer_.RemakeCollective(*shared, message.reason, now);
  const PipelineEnd end = message.suspect ? PipelineEnd::kSuspicion : PipelineEnd::kDeath;
  closer_.Lose(message.pipeline, message.reason, {end, message.suspect, worker.join.name}, now);
}

void ControllerCore::On(ConnectionId from, const PullDone& message, Time now) {
  const auto puller = transfers_.PullerOf(message.transfer);
  if (!puller) {
    ++counters_.stale_messages;
    return;
  }
  if (!Is(from, puller)) return EndForViolation(from, "it ends a pull of another worker", now);
  transfers_.Done(message, now);
}

}  // namespace millrace::cluster
