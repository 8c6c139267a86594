#include "cluster/control/lifecycle/request_lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cluster/control/layout/layout.h"
#include "cluster/control/pipelines/ttft_forecast.h"

namespace millrace::cluster {
namespace {

std::string NobodyServes(const std::string& fingerprint) {
  return fmt::format(
      "Its tokens so far are of workers with other bits ({}), and none of them serves now. Start "
      "such a worker, or start the controller with --cross-class-replay to continue such requests "
      "with other bits.",
      fingerprint);
}

constexpr char kTooOld[] =
    "The workers that serve are of an older version, which lacks something that this request asks "
    "for: constrained output, embeddings, beams, bad words or log-probabilities of given tokens. "
    "Upgrade them.";

// What decodes the request after the output of its first token. Other sequences have no token,
// unless they ended with it. The output is not the last one any more.
sched::NewRequest AfterPrompt(const Requests::Request& handed, RequestOutput& first) {
  sched::NewRequest request = handed.spec;
  request.times = std::exchange(first.times, std::nullopt);
  request.account = *std::exchange(first.account, nullptr);
  request.cached_prompt_tokens = first.cached_prompt_tokens;
  request.resumed.resize(static_cast<size_t>(handed.n()));
  for (int index : handed.ended) request.resumed[static_cast<size_t>(index)].finished = true;
  request.resumed[static_cast<size_t>(first.index)].output.assign(first.tokens.begin(),
                                                                  first.tokens.end());
  return request;
}

// Waiting requests that are tried each time although older ones have found no room.
constexpr int kOvertakersMax = 64;

}  // namespace

RequestLifecycle::RequestLifecycle(const RequestLifecycleOptions& options,
                                   const PlacementOptions& placements, Membership& members,
                                   Deployment& deployment, Pipelines& pipelines, Requests& requests,
                                   Transfers& transfers, KvMemory& memory,
                                   ControllerCounters& counters)
    : options_(options),
      members_(members),
      deployment_(deployment),
      pipelines_(pipelines),
      requests_(requests),
      transfers_(transfers),
      counters_(counters),
      placements_(placements, options.block_size, deployment, pipelines, requests, transfers,
                  memory) {}

Status RequestLifecycle::Submit(sched::NewRequest request, Time now, std::string_view computed_by) {
  const RequestId id = request.id;
  const bool first = requests_.waiting() == 0;
  MR_RETURN_IF_ERROR(members_.CanConstrain(*request.params));
  if (!MaySpeak(deployment_.layout(), ProtocolFor(*request.params))) return Unavailable(kTooOld);
  if (const auto closed = pipelines_.WhyClosed(deployment_.layout()); closed && closed->breaks) {
    return Unavailable(closed->why);
  }
  std::optional<BitClass> bits;
  if (!computed_by.empty()) {
    bits = members_.ClassWith(computed_by);
    if (!bits) return ResourceExhausted("its tokens are of one numeric class too many");
    deployment_.Expect(*bits);
  }
  MR_RETURN_IF_ERROR(requests_.Add(std::move(request), now));
  requests_.at(id).bits = bits;
  placements_.Update();
  Status submitted;
  if (const Request& added = requests_.at(id); !placements_.FitsWhenEmpty(added)) {
    submitted = InvalidArgument(fmt::format(
        "{} tokens ({} prompt, {} output) do not fit in the KV memory of any route, even empty",
        added.prompt_tokens() + requests_.OutputLimit(added), added.prompt_tokens(),
        requests_.OutputLimit(added)));
  } else if (first) {  // a new request does not overtake waiting ones
    std::set<PipelineId> full;
    if (placements_.Place(id, full, now) == Placements::Result::kPlaced) {
      Pipeline& pipeline = pipelines_.at(requests_.at(id).placement->pipeline);
      if (pipeline.open) submitted = AddTo(pipeline, id, now);
    }
  }
  if (!submitted.ok()) {
    placements_.Leave(id);
    requests_.Erase(id);
  }
  return submitted;
}

void RequestLifecycle::Requeue(RequestId id, sched::NewRequest request, TimeCause because,
                               Time now) {
  request.account.Enter(because);
  placements_.Leave(id);
  requests_.Wait(id, std::move(request), now);
}

std::optional<Placements::Choice> RequestLifecycle::Choose(const Request& request, Time now) {
  placements_.Update();
  return placements_.Choose(request, now);
}

// REQUIRES: the request was placed there. On an error it is not any more.
Status RequestLifecycle::AddTo(Pipeline& pipeline, RequestId id, Time now) {
  sched::NewRequest request = *requests_.at(id).waiting;
  request.account = *requests_.AccountOfWaiting(id, now);
  if (pipeline.role == StageRole::kPrefill) {
    request.stop_after_prompt = true;
    request.hold_kv = options_.hold_limit;
  }
  std::vector<int> to_fetch = transfers_.ToFetch(id, pipeline);
  const bool fetches = !to_fetch.empty();
  if (fetches) request.imported_tokens = std::move(to_fetch);
  const int64_t cached = fetches ? 0 : requests_.at(id).placement->cached_tokens;
  const int64_t prefill_tokens = std::max<int64_t>(PrefillTokens(request) - cached, 0);
  placements_.Sent();  // also if it is refused: the next try goes to another pipeline
  if (Status added = pipeline.scheduler->Add(std::move(request), now); !added.ok()) {
    placements_.Leave(id);
    return added;
  }
  if (!fetches) transfers_.GiveUp(id);
  requests_.Enter(id, pipeline.id);
  pipeline.requests.Add(id, prefill_tokens);
  pipelines_.Touch(pipeline.id);
  return OkStatus();
}

// The oldest first. Requests whose prompt is to be computed and requests that decode are two
// queues, if different pipelines do so.
void RequestLifecycle::Dispatch(Time now) {
  if (!requests_.TakeTryQueue()) return;
  placements_.Update();
  const bool apart = !deployment_.layout().prefill.empty();
  std::vector<WaitsFor> queues(kAllQueues.begin(), kAllQueues.end());  // that are not blocked
  std::set<PipelineId> full;  // a smaller request must not take what an older one waits for
  int overtaken = 0;
  std::optional<Requests::QueueKey> at;
  while ((at = requests_.NextWaiting(at, queues))) {
    const RequestId id = at->second;
    const Request& request = requests_.at(id);
    if (!requests_.blame().MayStart(id)) continue;
    const WaitsFor queue = request.waits_for;
    const Duration waits = now - request.waits_since;
    const Placed placed = Place(id, full, now);
    const bool finds_no_room = placed == Placed::kNoRoom &&
                               (++overtaken >= kOvertakersMax || waits >= options_.overtake_limit);
    if (placed != Placed::kNoPipeline && !finds_no_room) continue;
    if (!apart) return;
    std::erase(queues, queue);
  }
}

RequestLifecycle::Placed RequestLifecycle::Place(RequestId id, std::set<PipelineId>& full,
                                                 Time now) {
  if (!requests_.at(id).placement) {
    const Placements::Result placed = placements_.Place(id, full, now);
    if (placed == Placements::Result::kNoPipeline) return Placed::kNoPipeline;
    if (placed == Placements::Result::kNoRoom) return Placed::kNoRoom;
    if (placed == Placements::Result::kLacksWorkers) return Placed::kNotYet;
  }
  Pipeline& pipeline = pipelines_.at(requests_.at(id).placement->pipeline);
  if (!pipeline.open) return Placed::kNotYet;
  const Status added = AddTo(pipeline, id, now);
  if (added.ok()) return Placed::kYes;
  if (added.code() == StatusCode::kUnavailable) return Placed::kNotYet;  // until its last pull ends
  if (added.code() != StatusCode::kInvalidArgument) return Placed::kNoRoom;
  EndWaiting(id, FinishReason::kError, added, std::nullopt, now);
  return Placed::kNever;
}

void RequestLifecycle::EndWaiting(RequestId id, FinishReason reason, const Status& error,
                                  std::optional<int> index, Time now) {
  if (requests_.EndWaiting(id, reason, error, index, now, outputs_)) Forget(id);
}

void RequestLifecycle::Expire(Time now) {
  for (RequestId id : requests_.Expired(now)) {
    ++counters_.expired;
    EndWaiting(
        id, FinishReason::kError,
        Unavailable(fmt::format("waited {:.0f} s for a pipeline. {}",
                                options_.waiting_limit.seconds(), WhyItWaits(requests_.at(id)))),
        std::nullopt, now);
  }
}

std::optional<std::string> RequestLifecycle::Missing() const {
  if (members_.all().empty()) return "No worker has joined yet.";
  if (auto missing = deployment_.layout().Missing()) return missing;
  const auto closed = pipelines_.WhyClosed(deployment_.layout());
  return closed ? std::optional(closed->why) : std::nullopt;
}

std::string RequestLifecycle::WhyItWaits(const Request& request) const {
  if (placements_.LacksClass(request)) return NobodyServes(members_.FingerprintOf(*request.bits));
  if (placements_.LacksVersion(request)) return kTooOld;
  return Missing().value_or("All pipelines are full.");
}

void RequestLifecycle::EndAfterDeaths(RequestId id, const Status& reason, Time now) {
  const std::optional<int> deaths = requests_.blame().MustFail(id);
  if (!deaths) return;
  ++counters_.failed_by_losses;
  EndWaiting(id, FinishReason::kError,
             Internal(fmt::format("{} pipelines ended while they computed the same tokens of this "
                                  "request, the last one without others like it, so it is not "
                                  "tried again. The last: {}",
                                  *deaths, reason.message())),
             std::nullopt, now);
}

void RequestLifecycle::Abort(RequestId id, std::optional<int> index, Time now) {
  const Requests::Request* request = requests_.Find(id);
  if (request == nullptr) return;
  if (!request->pipeline) return EndWaiting(id, FinishReason::kAbort, OkStatus(), index, now);
  if (transfers_.Migrates(id)) transfers_.Abandon(id, now);
  Pipeline& pipeline = pipelines_.at(*request->pipeline);
  const size_t first = outputs_.size();
  pipeline.scheduler->Abort(id, index, now, outputs_);
  pipelines_.Touch(pipeline.id);
  HandleOutputs(pipeline, first, now);
}

Status RequestLifecycle::EndStep(Pipeline& pipeline, const StepResult& result, Time now) {
  const size_t first = outputs_.size();
  Status taken = pipelines_.Commit(pipeline, result, now, outputs_);
  HandleOutputs(pipeline, first, now);
  return taken;
}

// The prefill pipeline has finished the request's prompt; `first` is the output of its first token.
// The request does not queue behind those whose prompt is not computed.
void RequestLifecycle::HandOver(Pipeline& from, RequestId id, RequestOutput& first, Time now) {
  pipelines_.Remove(from, id);
  sched::NewRequest request = AfterPrompt(requests_.at(id), first);
  transfers_.HandOver(from, request);
  Requeue(id, std::move(request), TimeCause::kHandOver, now);
  placements_.Update();
  std::set<PipelineId> full;
  (void)Place(id, full, now);
}

// Takes over a scheduler's outputs, which are outputs_ from `first` on. Nothing else adds to
// outputs_ meanwhile.
void RequestLifecycle::HandleOutputs(Pipeline& pipeline, size_t first, Time now) {
  notable_outputs_.clear();
  requests_.Filter(pipeline.id, outputs_, first, notable_outputs_);
  for (size_t index : notable_outputs_) {
    RequestOutput& output = outputs_[index];
    const RequestId id = output.request;
    if (requests_.BeginsClass(pipeline.bits, output)) {
      output.fingerprint = members_.FingerprintOf(pipeline.bits);
    }
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
    const bool answered =
        *output.finish == FinishReason::kStop || *output.finish == FinishReason::kLength;
    if (answered) requests_.Answered(requests_.at(id));
    if (transfers_.IsLeaving(pipeline)) ++counters_.drained_finished;
    pipelines_.Remove(pipeline, id);
    Forget(id);
  }
}

void RequestLifecycle::Forget(RequestId id) {
  transfers_.Drop(id);
  placements_.Leave(id);
  requests_.Erase(id);
}

}  // namespace millrace::cluster
