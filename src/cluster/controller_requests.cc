// Requests: who waits for a lane, who gets which, what is told of them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/controller.h"

namespace millrace::cluster {
namespace {

int64_t OutputLimit(const SamplingParams& params, int prompt_tokens, int max_model_len) {
  const int64_t room = std::max(1, max_model_len - prompt_tokens);
  return std::min<int64_t>(params.max_tokens.value_or(room), room) * params.n;
}

}  // namespace

Status Controller::Submit(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  MR_CHECK(!requests_.contains(id)) << "request " << id << " twice";
  const auto prompt_tokens = static_cast<int>(request.prompt->size());
  if (prompt_tokens >= options_.scheduler.max_model_len) {
    return InvalidArgument(fmt::format("the prompt has {} tokens, the model takes {} in all",
                                       prompt_tokens, options_.scheduler.max_model_len));
  }
  if (std::ssize(waiting_) >= options_.waiting_max) {
    return ResourceExhausted(
        fmt::format("{} requests wait, the limit is {}", waiting_.size(), options_.waiting_max));
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
  // In turn: nobody overtakes those who wait.
  if (waiting_.empty()) {
    if (Lane* lane = ChooseLane(id, kept, now); lane != nullptr && lane->open) {
      Status added = AddTo(*lane, id, kept, now);
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

void Controller::Abort(RequestId id, std::optional<int> index, Time now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Tracked& tracked = found->second;
  if (!tracked.lane) return EndWaiting(id, FinishReason::kAbort, OkStatus(), index, now);
  if (moves_.contains(id)) AbandonMove(id, now);
  Lane& lane = lanes_.at(*tracked.lane);
  const size_t first = outputs_.size();
  lane.scheduler->Abort(id, index, now, outputs_);
  dirty_.insert(lane.id);
  FilterNews(lane, first, now);
}

void Controller::Wait(RequestId id, Tracked& tracked, sched::NewRequest request, Time now) {
  request.params = tracked.spec.params;  // a prefill lane had changed them
  request.hold_kv.reset();
  request.imported_tokens.clear();
  tracked.waiting = std::move(request);
  tracked.waits_since = now;
  waiting_.emplace(tracked.arrived, id);
  try_waiting_ = true;
  if (router_) (void)SubmitToRouter(id, tracked, now);
}

Status Controller::SubmitToRouter(RequestId id, Tracked& tracked, Time now) {
  const Status submitted =
      router_->Submit({.id = id,
                       .prompt_tokens = tracked.prompt_tokens(),
                       .output_tokens = OutputLimit(*tracked.spec.params, tracked.prompt_tokens(),
                                                    options_.scheduler.max_model_len)},
                      now);
  FollowRouter(now);
  return submitted;
}

void Controller::FollowRouter(Time now) {
  for (Router::Decision& decision : router_->TakeDecisions(now)) {
    const auto found = requests_.find(decision.id);
    if (found == requests_.end()) continue;
    if (decision.outcome == Router::Outcome::kRouted) {
      found->second.route = std::move(decision.route);
      try_waiting_ = true;
    }
  }
}

// Where the request should go now: the routed way, or the least loaded of the fixed ones.
Controller::Lane* Controller::ChooseLane(RequestId, Tracked& tracked, Time now) {
  if (router_) return tracked.route ? LaneFor(*tracked.route, StageRole::kBoth, now) : nullptr;
  const bool apart =
      std::ranges::find(layout_.ways, StageRole::kPrefill, &Way::role) != layout_.ways.end();
  const bool resumes = !tracked.waiting || !tracked.waiting->resumed.empty();
  // A prompt of several sequences stays where they will be decoded.
  const bool prefill = apart && !resumes && tracked.n() == 1;
  Lane* best = nullptr;
  for (const Way& way : layout_.ways) {
    if ((way.role == StageRole::kPrefill) != prefill) continue;
    Lane* lane = LaneFor(way.route, way.role, now);
    if (lane == nullptr) continue;
    const auto load = [](const Lane& l) { return std::pair(!l.open, l.requests.size()); };
    if (best == nullptr || load(*lane) < load(*best)) best = lane;
  }
  return best;
}

// REQUIRES: it waits. By sequence; one that has ended meanwhile needs nothing. Nothing at all where
// the first that goes on, which computes the prompt for the others, has none.
std::vector<int> Controller::ToFetch(RequestId id, Tracked& tracked, const Lane& lane) {
  std::vector<int> tokens;
  if (!CanFetch(id, tracked, lane)) return tokens;
  tracked.left->fetched.reset();
  const std::vector<sched::ResumedSequence>& resumed = tracked.waiting->resumed;
  std::optional<int> first;
  for (size_t i = 0; i < tracked.left->kv.size(); ++i) {
    const bool ended = !resumed.empty() && resumed[i].finished;
    tokens.push_back(ended ? 0 : tracked.left->kv[i].tokens);
    if (!ended && !first) first = tokens.back();
  }
  if (first.value_or(0) == 0) tokens.clear();
  return tokens;
}

Status Controller::AddTo(Lane& lane, RequestId id, Tracked& tracked, Time now) {
  sched::NewRequest request = *tracked.waiting;
  request.params = tracked.spec.params;
  if (lane.role == StageRole::kPrefill) {
    auto first_token = std::make_shared<SamplingParams>(*tracked.spec.params);
    first_token->max_tokens = 1;
    request.params = std::move(first_token);
    request.hold_kv = options_.hold_limit;
  }
  std::vector<int> to_fetch = ToFetch(id, tracked, lane);
  const bool fetches = !to_fetch.empty();
  if (fetches) request.imported_tokens = std::move(to_fetch);
  MR_RETURN_IF_ERROR(lane.scheduler->Add(std::move(request), now));
  if (!fetches) DropLeft(id, tracked);
  tracked.lane = lane.id;
  tracked.waiting.reset();
  lane.requests.insert(id);
  waiting_.erase({tracked.arrived, id});
  dirty_.insert(lane.id);
  return OkStatus();
}

void Controller::Dispatch(Time now) {
  if (router_) FollowRouter(now);
  const std::vector<WaitingKey> waiting(waiting_.begin(), waiting_.end());
  for (const WaitingKey& key : waiting) {
    const auto found = requests_.find(key.second);
    if (found == requests_.end() || !found->second.waiting) continue;
    const Placed placed = Place(key.second, found->second, now);
    // Without a router all wait for the same; with one each has its own way.
    if (placed == Placed::kNotNow && !router_) return;
  }
}

Controller::Placed Controller::Place(RequestId id, Tracked& tracked, Time now) {
  Lane* lane = ChooseLane(id, tracked, now);
  if (lane == nullptr || !lane->open) return Placed::kNotNow;
  const Status added = AddTo(*lane, id, tracked, now);
  if (added.ok()) return Placed::kYes;
  if (added.code() != StatusCode::kInvalidArgument) return Placed::kNotNow;
  EndWaiting(id, FinishReason::kError, added, std::nullopt, now);
  return Placed::kNever;
}

// Of a request that no scheduler has: its unfinished sequences, or one of them, end here.
void Controller::EndWaiting(RequestId id, FinishReason reason, const Status& error,
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
    RequestOutput& news = outputs_.emplace_back();
    news.request = id;
    news.index = i;
    news.finish = reason;
    news.error = error;
    if (--left > 0) continue;
    news.times = request.times.value_or(RequestTimes{.arrived = tracked.arrived});
  }
  if (left > 0) return;
  waiting_.erase({tracked.arrived, id});
  Forget(id, now);
}

void Controller::ExpireWaiting(Time now) {
  std::vector<RequestId> expired;
  for (const auto& [arrived, id] : waiting_) {
    if (now - requests_.at(id).waits_since > options_.waiting_limit) expired.push_back(id);
  }
  const std::string missing = Missing().value_or("No way through the plan has room.");
  for (RequestId id : expired) {
    ++counters_.expired;
    EndWaiting(id, FinishReason::kError,
               Unavailable(fmt::format("waited {:.0f} s for workers. {}",
                                       options_.waiting_limit.seconds(), missing)),
               std::nullopt, now);
  }
}

// What a scheduler told: outputs_ from the `first` on. Only the lane that has a request may speak
// for it. Nothing else is told meanwhile.
void Controller::FilterNews(Lane& lane, size_t first, Time now) {
  size_t kept = first;
  for (size_t i = first; i < outputs_.size(); ++i) {
    RequestOutput& output = outputs_[i];
    const RequestId id = output.request;
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.lane != lane.id) continue;
    Tracked& tracked = found->second;
    tracked.told += static_cast<int64_t>(output.tokens.size());
    if (output.times.has_value()) {  // the last
      const bool goes_on = lane.role == StageRole::kPrefill &&
                           output.finish == FinishReason::kLength &&
                           OutputLimit(*tracked.spec.params, tracked.prompt_tokens(),
                                       options_.scheduler.max_model_len) > 1;
      if (goes_on) {
        HandOver(lane, id, output, now);
      } else {
        if (moves_.contains(id)) AbandonMove(id, now);
        if (lane.role == StageRole::kPrefill) lane.scheduler->ReleaseKv(id);
        lane.requests.erase(id);
        Forget(id, now);
      }
    }
    if (kept != i) outputs_[kept] = std::move(output);
    ++kept;
  }
  outputs_.resize(kept);
}

void Controller::Forget(RequestId id, Time now) {
  const auto found = requests_.find(id);
  Tracked& tracked = found->second;
  DropLeft(id, tracked);
  if (router_) router_->Release(id, tracked.prompt_tokens() + tracked.told, now);
  requests_.erase(found);
  if (!waiting_.empty()) try_waiting_ = true;
}

}  // namespace millrace::cluster
