// Requests: the queue, the choice of a pipeline, and outputs.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {

Status ControllerCore::Submit(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  const bool first = requests_.waiting() == 0;
  MR_RETURN_IF_ERROR(requests_.Add(std::move(request), now));
  Status submitted = router_ ? SubmitToRouter(id, now) : OkStatus();
  // A new request does not overtake waiting ones.
  if (submitted.ok() && first) {
    Pipeline* pipeline = ChoosePipeline(requests_.at(id), now);
    if (pipeline != nullptr && pipeline->open) submitted = AddTo(*pipeline, id, now);
  }
  if (!submitted.ok()) {
    if (router_) router_->Release(id, 0, now);
    requests_.Erase(id);
  }
  return submitted;
}

void ControllerCore::Abort(RequestId id, std::optional<int> index, Time now) {
  const Request* request = requests_.Find(id);
  if (request == nullptr) return;
  if (!request->pipeline) return EndWaiting(id, FinishReason::kAbort, OkStatus(), index, now);
  if (migrations_.Find(id) != nullptr) AbandonMigration(id, now);
  Pipeline& pipeline = pipelines_.at(*request->pipeline);
  const size_t first = outputs_.size();
  pipeline.scheduler->Abort(id, index, now, outputs_);
  dirty_.insert(pipeline.id);
  HandleOutputs(pipeline, first, now);
}

// The request has left its pipeline, and waits for another one.
void ControllerCore::Requeue(RequestId id, sched::NewRequest request, Time now) {
  if (router_) router_->Release(id, requests_.at(id).known_tokens(), now);
  requests_.Wait(id, std::move(request), now);
  if (router_) (void)SubmitToRouter(id, now);
}

// With several sequences the prompt is computed where they will be decoded. A request without a
// token begins with its prompt, however often it has lost its pipeline. If there is no prefill
// pipeline, a new request waits for one; the prompt of a replayed request is computed where it will
// be decoded.
Phase ControllerCore::PhaseOf(const Request& request) const {
  if (router_ || !request.waiting || request.n() != 1 || !PrefillApart(layout())) {
    return Phase::kDecode;
  }
  const std::vector<sched::ResumedSequence>& resumed = request.waiting->resumed;
  if (resumed.empty()) return Phase::kPrefill;
  if (resumed.front().finished || !resumed.front().output.empty()) return Phase::kDecode;
  return HasPipeline(layout(), Phase::kPrefill) ? Phase::kPrefill : Phase::kDecode;
}

// The pipeline that the request should go to now: that of its route, or the least loaded of the
// fixed ones. A prompt goes to a pipeline for both roles only while there is no pipeline for
// prefill alone.
ControllerCore::Pipeline* ControllerCore::ChoosePipeline(const Request& request, Time now) {
  if (router_) return request.route ? PipelineFor(*request.route, StageRole::kBoth, now) : nullptr;
  const Phase phase = PhaseOf(request);
  const auto rank = [&](const Pipeline& pipeline) {
    const bool stands_in = phase == Phase::kPrefill && pipeline.role != StageRole::kPrefill;
    return std::tuple(stands_in, !pipeline.open, pipeline.requests.size());
  };
  Pipeline* best = nullptr;
  for (const PlannedPipeline& planned : layout().pipelines) {
    if (!Serves(layout(), planned, phase)) continue;
    Pipeline* pipeline = PipelineFor(planned.route, planned.role, now);
    if (pipeline == nullptr) continue;
    if (best == nullptr || rank(*pipeline) < rank(*best)) best = pipeline;
  }
  return best;
}

Status ControllerCore::AddTo(Pipeline& pipeline, RequestId id, Time now) {
  sched::NewRequest request = *requests_.at(id).waiting;
  if (pipeline.role == StageRole::kPrefill) {
    request.stop_after_prompt = true;
    request.hold_kv = options_.hold_limit;
  }
  std::vector<int> to_fetch = ToFetch(id, pipeline);
  const bool fetches = !to_fetch.empty();
  if (fetches) request.imported_tokens = std::move(to_fetch);
  MR_RETURN_IF_ERROR(pipeline.scheduler->Add(std::move(request), now));
  if (!fetches) GiveUpKv(id);
  requests_.Place(id, pipeline.id);
  pipeline.requests.insert(id);
  dirty_.insert(pipeline.id);
  return OkStatus();
}

// Places waiting requests. Requests that wait for a prefill pipeline and requests that wait for one
// that decodes are two queues, each oldest first. With a router each request has its own route.
void ControllerCore::Dispatch(Time now) {
  if (router_) ApplyRouterDecisions(now);
  std::set<Phase> blocked;
  for (RequestId id : requests_.Queue()) {
    const Request* request = requests_.Find(id);
    if (request == nullptr || !request->waiting) continue;
    const Phase phase = PhaseOf(*request);
    if (blocked.contains(phase)) continue;
    const Placed placed = Place(id, now);
    if (placed != Placed::kNotNow || router_) continue;
    blocked.insert(phase);
    if (blocked.size() == 2 || !PrefillApart(layout())) return;
  }
}

ControllerCore::Placed ControllerCore::Place(RequestId id, Time now) {
  Pipeline* pipeline = ChoosePipeline(requests_.at(id), now);
  if (pipeline == nullptr || !pipeline->open) return Placed::kNotNow;
  const Status added = AddTo(*pipeline, id, now);
  if (added.ok()) return Placed::kYes;
  if (added.code() == StatusCode::kUnavailable) return Placed::kNotYet;  // until its last pull ends
  if (added.code() != StatusCode::kInvalidArgument) return Placed::kNotNow;
  EndWaiting(id, FinishReason::kError, added, std::nullopt, now);
  return Placed::kNever;
}

void ControllerCore::EndWaiting(RequestId id, FinishReason reason, const Status& error,
                                std::optional<int> index, Time now) {
  if (requests_.EndWaiting(id, reason, error, index, outputs_)) Forget(id, now);
}

void ControllerCore::ExpireWaiting(Time now) {
  const std::string missing = Missing().value_or("All pipelines are full.");
  for (RequestId id : requests_.Expired(now)) {
    ++counters_.expired;
    EndWaiting(id, FinishReason::kError,
               Unavailable(fmt::format("waited {:.0f} s for a pipeline. {}",
                                       options_.waiting_limit.seconds(), missing)),
               std::nullopt, now);
  }
}

// Fails the request if too many pipelines were lost under it. REQUIRES: it waits.
void ControllerCore::EndAfterDeaths(RequestId id, const Status& reason, Time now) {
  const std::optional<int> deaths = requests_.MustFail(id);
  if (!deaths) return;
  ++counters_.failed_by_losses;
  EndWaiting(id, FinishReason::kError,
             Internal(fmt::format("{} pipelines were lost while they ran this request: {}", *deaths,
                                  reason.message())),
             std::nullopt, now);
}

void ControllerCore::CountSuspectedDeaths(WorkerId lost, const Status& reason, Time now) {
  for (RequestId id : requests_.CountSuspectedDeaths(lost)) {
    if (requests_.at(id).waiting) EndAfterDeaths(id, reason, now);
  }
}

// Takes over a scheduler's outputs, which are outputs_ from `first` on. Nothing else adds to
// outputs_ meanwhile.
void ControllerCore::HandleOutputs(Pipeline& pipeline, size_t first, Time now) {
  last_outputs_.clear();
  requests_.Filter(pipeline.id, outputs_, first, last_outputs_);
  for (size_t index : last_outputs_) {
    RequestOutput& last = outputs_[index];
    const RequestId id = last.request;
    if (!last.finish) {  // it has stopped after its prompt
      HandOver(pipeline, id, last, now);
      continue;
    }
    if (migrations_.Find(id) != nullptr) AbandonMigration(id, now);
    if (pipeline.role == StageRole::kPrefill) pipeline.scheduler->ReleaseKv(id);
    pipeline.requests.erase(id);
    Forget(id, now);
  }
}

void ControllerCore::Forget(RequestId id, Time now) {
  DropKv(id);
  if (router_) router_->Release(id, requests_.at(id).known_tokens(), now);
  requests_.Erase(id);
}

}  // namespace millrace::cluster
