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

// The maximum number of tokens that the request may generate, over all its sequences.
int64_t ControllerCore::OutputLimit(const Tracked& tracked) const {
  const SamplingParams& params = *tracked.spec.params;
  const auto each =
      millrace::OutputLimit(params, tracked.prompt_tokens(), options_.scheduler.max_model_len);
  return int64_t{each.value_or(1)} * params.n;
}

Status ControllerCore::Submit(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  MR_CHECK(!requests_.contains(id)) << "request " << id << " twice";
  const auto prompt_tokens = static_cast<int>(request.prompt->size());
  if (prompt_tokens >= options_.scheduler.max_model_len) {
    return InvalidArgument(fmt::format("the prompt has {} tokens, the model's context has {}",
                                       prompt_tokens, options_.scheduler.max_model_len));
  }
  if (std::ssize(waiting_) >= options_.waiting_max) {
    return ResourceExhausted(fmt::format("{} requests are waiting, the limit is {}",
                                         waiting_.size(), options_.waiting_max));
  }
  Tracked tracked;
  tracked.spec = request;
  tracked.arrived = request.times ? request.times->arrived : now;
  tracked.waits_since = now;
  Tracked& kept = requests_.emplace(id, std::move(tracked)).first->second;
  kept.waiting = std::move(request);
  if (router_) {
    if (Status ok = SubmitToRouter(id, kept, now); !ok.ok()) {
      requests_.erase(id);
      return ok;
    }
  }
  // A new request does not overtake waiting ones.
  if (waiting_.empty()) {
    if (Pipeline* pipeline = ChoosePipeline(id, kept, now); pipeline != nullptr && pipeline->open) {
      Status added = AddTo(*pipeline, id, kept, now);
      if (!added.ok()) {
        if (router_) router_->Release(id, 0, now);
        requests_.erase(id);
      }
      return added;
    }
  }
  waiting_.emplace(kept.arrived, id);
  try_waiting_ = true;
  return OkStatus();
}

void ControllerCore::Abort(RequestId id, std::optional<int> index, Time now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Tracked& tracked = found->second;
  if (!tracked.pipeline) return EndWaiting(id, FinishReason::kAbort, OkStatus(), index, now);
  if (migrations_.Find(id) != nullptr) AbandonMigration(id, now);
  Pipeline& pipeline = pipelines_.at(*tracked.pipeline);
  const size_t first = outputs_.size();
  pipeline.scheduler->Abort(id, index, now, outputs_);
  dirty_.insert(pipeline.id);
  FilterOutputs(pipeline, first, now);
}

void ControllerCore::Wait(RequestId id, Tracked& tracked, sched::NewRequest request, Time now) {
  tracked.waiting = std::move(request);
  tracked.waits_since = now;
  waiting_.emplace(tracked.arrived, id);
  try_waiting_ = true;
  if (router_) (void)SubmitToRouter(id, tracked, now);
}

// With several sequences the prompt is computed where they will be decoded. A request without a
// token begins with its prompt, however often it has lost its pipeline. If there is no prefill
// pipeline, a new request waits for one; the prompt of a replayed request is computed where it will
// be decoded.
Phase ControllerCore::PhaseOf(const Tracked& tracked) const {
  if (router_ || !tracked.waiting || tracked.n() != 1 || !PrefillApart(layout())) {
    return Phase::kDecode;
  }
  const std::vector<sched::ResumedSequence>& resumed = tracked.waiting->resumed;
  if (resumed.empty()) return Phase::kPrefill;
  if (resumed.front().finished || !resumed.front().output.empty()) return Phase::kDecode;
  return HasPipeline(layout(), Phase::kPrefill) ? Phase::kPrefill : Phase::kDecode;
}

// The pipeline that the request should go to now: that of its route, or the least loaded of the
// fixed ones. A prompt goes to a pipeline for both roles only while there is no pipeline for
// prefill alone.
ControllerCore::Pipeline* ControllerCore::ChoosePipeline(RequestId, Tracked& tracked, Time now) {
  if (router_) return tracked.route ? PipelineFor(*tracked.route, StageRole::kBoth, now) : nullptr;
  const Phase phase = PhaseOf(tracked);
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

Status ControllerCore::AddTo(Pipeline& pipeline, RequestId id, Tracked& tracked, Time now) {
  sched::NewRequest request = *tracked.waiting;
  if (pipeline.role == StageRole::kPrefill) {
    request.stop_after_prompt = true;
    request.hold_kv = options_.hold_limit;
  }
  std::vector<int> to_fetch = ToFetch(id, tracked, pipeline);
  const bool fetches = !to_fetch.empty();
  if (fetches) request.imported_tokens = std::move(to_fetch);
  MR_RETURN_IF_ERROR(pipeline.scheduler->Add(std::move(request), now));
  if (!fetches) GiveUpKv(id);
  tracked.pipeline = pipeline.id;
  tracked.waiting.reset();
  pipeline.requests.insert(id);
  waiting_.erase({tracked.arrived, id});
  dirty_.insert(pipeline.id);
  return OkStatus();
}

// Places waiting requests. Requests that wait for a prefill pipeline and requests that wait for one
// that decodes are two queues, each oldest first. With a router each request has its own route.
void ControllerCore::Dispatch(Time now) {
  if (router_) ApplyRouterDecisions(now);
  std::set<Phase> blocked;
  const std::vector<WaitingKey> waiting(waiting_.begin(), waiting_.end());
  for (const WaitingKey& key : waiting) {
    const auto found = requests_.find(key.second);
    if (found == requests_.end() || !found->second.waiting) continue;
    const Phase phase = PhaseOf(found->second);
    if (blocked.contains(phase)) continue;
    const Placed placed = Place(key.second, found->second, now);
    if (placed != Placed::kNotNow || router_) continue;
    blocked.insert(phase);
    if (blocked.size() == 2 || !PrefillApart(layout())) return;
  }
}

ControllerCore::Placed ControllerCore::Place(RequestId id, Tracked& tracked, Time now) {
  Pipeline* pipeline = ChoosePipeline(id, tracked, now);
  if (pipeline == nullptr || !pipeline->open) return Placed::kNotNow;
  const Status added = AddTo(*pipeline, id, tracked, now);
  if (added.ok()) return Placed::kYes;
  if (added.code() == StatusCode::kUnavailable) return Placed::kNotYet;  // until its last pull ends
  if (added.code() != StatusCode::kInvalidArgument) return Placed::kNotNow;
  EndWaiting(id, FinishReason::kError, added, std::nullopt, now);
  return Placed::kNever;
}

// Ends the unfinished sequences, or sequence `index`, of a request that waits.
void ControllerCore::EndWaiting(RequestId id, FinishReason reason, const Status& error,
                                std::optional<int> index, Time now) {
  Tracked& tracked = requests_.at(id);
  sched::NewRequest& request = *tracked.waiting;
  const int n = tracked.n();
  if (request.resumed.empty()) request.resumed.resize(static_cast<size_t>(n));
  int left = 0;
  for (const sched::ResumedSequence& sequence : request.resumed) left += !sequence.finished;
  for (int i = 0; i < n; ++i) {
    sched::ResumedSequence& sequence = request.resumed[static_cast<size_t>(i)];
    if (sequence.finished || (index && *index != i)) continue;
    sequence.finished = true;
    RequestOutput& output = outputs_.emplace_back();
    output.request = id;
    output.index = i;
    output.finish = reason;
    output.error = error;
    if (--left > 0) continue;
    output.times = request.times.value_or(RequestTimes{.arrived = tracked.arrived});
  }
  if (left > 0) return;
  waiting_.erase({tracked.arrived, id});
  Forget(id, now);
}

void ControllerCore::ExpireWaiting(Time now) {
  std::vector<RequestId> expired;
  for (const auto& [arrived, id] : waiting_) {
    if (now - requests_.at(id).waits_since > options_.waiting_limit) expired.push_back(id);
  }
  const std::string missing = Missing().value_or("All pipelines are full.");
  for (RequestId id : expired) {
    ++counters_.expired;
    EndWaiting(id, FinishReason::kError,
               Unavailable(fmt::format("waited {:.0f} s for a pipeline. {}",
                                       options_.waiting_limit.seconds(), missing)),
               std::nullopt, now);
  }
}

// Filters a scheduler's outputs, which are outputs_ from `first` on. Only the pipeline that has a
// request may produce outputs for it. Nothing else adds to outputs_ meanwhile.
void ControllerCore::FilterOutputs(Pipeline& pipeline, size_t first, Time now) {
  size_t kept = first;
  for (size_t i = first; i < outputs_.size(); ++i) {
    RequestOutput& output = outputs_[i];
    const RequestId id = output.request;
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.pipeline != pipeline.id) continue;
    Tracked& tracked = found->second;
    tracked.delivered += static_cast<int64_t>(output.tokens.size());
    if (output.times.has_value()) {  // the last
      if (!output.finish) {          // it has stopped after its prompt
        HandOver(pipeline, id, output, now);
      } else {
        if (migrations_.Find(id) != nullptr) AbandonMigration(id, now);
        if (pipeline.role == StageRole::kPrefill) pipeline.scheduler->ReleaseKv(id);
        pipeline.requests.erase(id);
        Forget(id, now);
      }
    }
    if (kept != i) outputs_[kept] = std::move(output);
    ++kept;
  }
  outputs_.resize(kept);
}

void ControllerCore::Forget(RequestId id, Time now) {
  const auto found = requests_.find(id);
  Tracked& tracked = found->second;
  DropKv(id);
  blame_.Forget(id);
  if (router_) router_->Release(id, tracked.prompt_tokens() + tracked.delivered, now);
  requests_.erase(found);
  if (!waiting_.empty()) try_waiting_ = true;
}

}  // namespace millrace::cluster
