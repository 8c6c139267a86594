// Requests: the queue, the choice of a pipeline, and outputs.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// What its pipeline computes before the request's first token there, beyond what a decode computes.
int64_t PrefillTokens(const sched::NewRequest& request) {
  int64_t tokens = std::ssize(*request.prompt);
  for (const sched::ResumedSequence& sequence : request.resumed) {
    if (!sequence.finished) tokens += std::max<int64_t>(std::ssize(sequence.output) - 1, 0);
  }
  for (int imported : request.imported_tokens) tokens -= imported;
  return std::max<int64_t>(tokens, 0);
}

// With several sequences the prompt is computed where they will be decoded. A request without a
// token begins with its prompt, however often it has lost its pipeline. If there is no prefill
// pipeline, a new request waits for one; the prompt of a replayed request is computed where it will
// be decoded.
Phase PhaseOf(const Layout& layout, const std::optional<sched::NewRequest>& waiting) {
  if (!waiting || waiting->params->n != 1 || !PrefillApart(layout)) return Phase::kDecode;
  const std::vector<sched::ResumedSequence>& resumed = waiting->resumed;
  if (resumed.empty()) return Phase::kPrefill;
  if (resumed.front().finished || !resumed.front().output.empty()) return Phase::kDecode;
  return HasPipeline(layout, Phase::kPrefill) ? Phase::kPrefill : Phase::kDecode;
}

}  // namespace

Status ControllerCore::Submit(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  const bool first = requests_.waiting() == 0;
  MR_RETURN_IF_ERROR(requests_.Add(std::move(request), now));
  Status submitted = router_ ? SubmitToRouter(id, now) : OkStatus();
  // A new request does not overtake waiting ones.
  if (submitted.ok() && first) {
    Pipeline* pipeline = ChoosePipeline(requests_.at(id), now);
    const bool fits = pipeline != nullptr && pipeline->open &&
                      memory_.Reserve(pipeline->id, id, requests_.MostBlocks(id));
    if (fits) submitted = AddTo(*pipeline, id, now);
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
  if (transfers_.Migrates(id)) transfers_.Abandon(id, now);
  Pipeline& pipeline = pipelines_.at(*request->pipeline);
  const size_t first = outputs_.size();
  pipeline.scheduler->Abort(id, index, now, outputs_);
  pipelines_.Touch(pipeline.id);
  HandleOutputs(pipeline, first, now);
}

// The request has left its pipeline, and waits for another one.
void ControllerCore::Requeue(RequestId id, sched::NewRequest request, Time now) {
  if (router_) router_->Release(id, requests_.at(id).known_tokens(), now);
  requests_.Wait(id, std::move(request), now);
  if (router_) (void)SubmitToRouter(id, now);
}

// The pipeline that the request should go to now: that of its route, or the dispatcher's choice of
// the fixed ones. A prompt goes to a pipeline for both roles only while there is no pipeline for
// prefill alone.
Pipeline* ControllerCore::ChoosePipeline(const Request& request, Time now) {
  if (router_) {
    if (!request.route) return nullptr;
    return pipelines_.FindOrOpen(layout(), *request.route, StageRole::kBoth, now);
  }
  const Phase phase = PhaseOf(layout(), request.waiting);
  std::vector<Pipeline*> candidates;
  std::vector<DispatchLoad> loads;
  for (const PlannedPipeline& planned : layout().pipelines) {
    if (!Serves(layout(), planned, phase)) continue;
    Pipeline* pipeline = pipelines_.FindOrOpen(layout(), planned.route, planned.role, now);
    if (pipeline == nullptr) continue;
    const bool stands_in = phase == Phase::kPrefill && pipeline->role != StageRole::kPrefill;
    candidates.push_back(pipeline);
    loads.push_back(pipeline->requests.Load(pipeline->prefill.costs().prefill_tokens_per_s));
    loads.back().rank = (stands_in ? 2 : 0) + (pipeline->open ? 0 : 1);
  }
  return candidates.empty() ? nullptr : candidates[dispatcher_.Choose(loads)];
}

// REQUIRES: its memory is reserved. An error releases it.
Status ControllerCore::AddTo(Pipeline& pipeline, RequestId id, Time now) {
  sched::NewRequest request = *requests_.at(id).waiting;
  if (pipeline.role == StageRole::kPrefill) {
    request.stop_after_prompt = true;
    request.hold_kv = options_.hold_limit;
  }
  std::vector<int> to_fetch = transfers_.ToFetch(id, pipeline);
  const bool fetches = !to_fetch.empty();
  if (fetches) request.imported_tokens = std::move(to_fetch);
  const int64_t prefill_tokens = PrefillTokens(request);
  dispatcher_.Sent();  // also if it is refused: the next try goes to another pipeline
  if (Status added = pipeline.scheduler->Add(std::move(request), now); !added.ok()) {
    memory_.Release(pipeline.id, id);
    return added;
  }
  if (!fetches) transfers_.GiveUp(id);
  requests_.Place(id, pipeline.id);
  pipeline.requests.Add(id, prefill_tokens);
  pipelines_.Touch(pipeline.id);
  return OkStatus();
}

// Places waiting requests. Requests that wait for a prefill pipeline and requests that wait for one
// that decodes are two queues, each oldest first. With a router each request has its own route.
void ControllerCore::Dispatch(Time now) {
  if (router_) ApplyRouterDecisions(now);
  std::set<Phase> blocked;
  std::set<PipelineId> full;  // a smaller request must not take what an older one waits for
  for (RequestId id : requests_.Queue()) {
    const Request* request = requests_.Find(id);
    if (request == nullptr || !request->waiting) continue;
    const Phase phase = PhaseOf(layout(), request->waiting);
    if (blocked.contains(phase)) continue;
    const Placed placed = Place(id, full, now);
    if (placed != Placed::kNotNow || router_) continue;
    blocked.insert(phase);
    if (blocked.size() == 2 || !PrefillApart(layout())) return;
  }
}

ControllerCore::Placed ControllerCore::Place(RequestId id, std::set<PipelineId>& full, Time now) {
  Pipeline* pipeline = ChoosePipeline(requests_.at(id), now);
  if (pipeline == nullptr || !pipeline->open || full.contains(pipeline->id)) return Placed::kNotNow;
  if (!memory_.Reserve(pipeline->id, id, requests_.MostBlocks(id))) {
    full.insert(pipeline->id);
    return Placed::kNotNow;
  }
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

// The prefill pipeline has finished the request's prompt; `first` is the output of its first token.
void ControllerCore::HandOver(Pipeline& from, RequestId id, RequestOutput& first, Time now) {
  const Request& handed = requests_.at(id);
  pipelines_.Remove(from, id);
  sched::NewRequest request = handed.spec;
  request.times = first.times;
  request.cached_prompt_tokens = first.cached_prompt_tokens;
  request.resumed.resize(1);
  request.resumed.front().output.assign(first.tokens.begin(), first.tokens.end());
  first.times.reset();
  transfers_.HandOver(from, id);
  Requeue(id, std::move(request), now);
  // It does not queue behind requests whose prompt is not computed.
  Pipeline* to = ChoosePipeline(handed, now);
  const bool fits =
      to != nullptr && to->open && memory_.Reserve(to->id, id, requests_.MostBlocks(id));
  if (fits) (void)AddTo(*to, id, now);
}

// Takes over a scheduler's outputs, which are outputs_ from `first` on. Nothing else adds to
// outputs_ meanwhile.
void ControllerCore::HandleOutputs(Pipeline& pipeline, size_t first, Time now) {
  notable_outputs_.clear();
  requests_.Filter(pipeline.id, outputs_, first, notable_outputs_);
  for (size_t index : notable_outputs_) {
    RequestOutput& output = outputs_[index];
    const RequestId id = output.request;
    if (!output.times) {  // its first token
      pipeline.requests.PrefillEnded(id);
      continue;
    }
    if (!output.finish) {  // it has stopped after its prompt
      HandOver(pipeline, id, output, now);
      continue;
    }
    if (transfers_.Migrates(id)) transfers_.Abandon(id, now);
    if (pipeline.role == StageRole::kPrefill) pipeline.scheduler->ReleaseKv(id);
    pipelines_.Remove(pipeline, id);
    Forget(id, now);
  }
}

void ControllerCore::Forget(RequestId id, Time now) {
  transfers_.Drop(id);
  if (router_) router_->Release(id, requests_.at(id).known_tokens(), now);
  requests_.Erase(id);
}

}  // namespace millrace::cluster
