#include "cluster/control/routing/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {

Status Requests::Add(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  MR_CHECK(!all_.contains(id)) << "request " << id << " twice";
  const auto prompt_tokens = static_cast<int>(request.prompt->size());
  const int prompt_tokens_max = options_.max_model_len - (request.params->pools() ? 0 : 1);
  if (prompt_tokens > prompt_tokens_max) {
    return InvalidArgument(fmt::format("the prompt has {} tokens, the model's context has {}",
                                       prompt_tokens, options_.max_model_len));
  }
  if (std::ssize(queue_) >= options_.waiting_max) {
    return ResourceExhausted(fmt::format("{} requests are waiting, the limit is {}", queue_.size(),
                                         options_.waiting_max));
  }
  Request added;
  added.spec = request;
  added.arrived = request.times ? request.times->arrived : now;
  if (!request.account.begun()) {
    request.account = TimeAccount(added.arrived);
    if (request.times) request.account.Enter(TimeCause::kRestart);
  }
  all_.emplace(id, std::move(added));
  Wait(id, std::move(request), now);
  return OkStatus();
}

void Requests::Wait(RequestId id, sched::NewRequest next, Time now) {
  Request& request = all_.at(id);
  request.pipeline.reset();
  request.waiting = std::move(next);
  request.waits_since = now;
  request.waits_until = now + options_.waiting_limit;
  request.ahead = static_cast<int>(queue_.size());
  queue_.emplace(request.arrived, id);
  try_queue_ = true;
}

std::optional<TimeAccount> Requests::AccountOfWaiting(RequestId id, Time now) const {
  const Request* found = Find(id);
  if (found == nullptr || !found->waiting) return std::nullopt;
  const Request& request = *found;
  TimeAccount account = request.waiting->account;
  const TimeCause because = account.because();
  const bool begins = because == TimeCause::kNone;
  account.Spend(begins ? TimeUse::kQueue : TimeUse::kRequeue, begins ? request.lacks : because, now,
                {.others = request.ahead});
  return account;
}

void Requests::Place(RequestId id, PipelineId pipeline) {
  Request& request = all_.at(id);
  request.pipeline = pipeline;
  request.prefilling = true;
  blame_.Started(id);
  if (!request.waiting) return;
  request.waiting.reset();
  queue_.erase(KeyOf(id));
}

void Requests::Erase(RequestId id) {
  queue_.erase(KeyOf(id));
  blame_.Cleared(id);
  all_.erase(id);
  if (!queue_.empty()) try_queue_ = true;
}

Requests::Request* Requests::Find(RequestId id) {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
}

const Requests::Request* Requests::Find(RequestId id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
}

std::vector<RequestId> Requests::Queue() const {
  std::vector<RequestId> ids;
  ids.reserve(queue_.size());
  for (const auto& [arrived, id] : queue_) ids.push_back(id);
  return ids;
}

int Requests::MostBlocks(const Request& request) const {
  return sched::BlocksAtMost(request.spec, OutputLimit(request) / request.n(), options_.block_size);
}

int Requests::EstimatedBlocks(const Request& request) const {
  return sched::BlocksAtMost(request.spec, EstimatedOutput(request) / request.n(),
                             options_.block_size);
}

int64_t Requests::EstimatedOutput(const Request& request) const {
  const int64_t limit = std::max<int64_t>(1, OutputLimit(request) / request.n());
  const int64_t so_far = request.delivered / request.n();
  return outputs_.For(limit, so_far) * request.n();
}

int64_t Requests::OutputLimit(const Request& request) const {
  const SamplingParams& params = *request.spec.params;
  const auto each = millrace::OutputLimit(params, request.prompt_tokens(), options_.max_model_len);
  return int64_t{each.value_or(1)} * params.n;
}

bool Requests::EndWaiting(RequestId id, FinishReason reason, const Status& error,
                          std::optional<int> index, Time now, std::vector<RequestOutput>& outputs) {
  const Request& request = all_.at(id);
  sched::NewRequest& waiting = *all_.at(id).waiting;
  const int n = request.n();
  if (waiting.resumed.empty()) waiting.resumed.resize(static_cast<size_t>(n));
  auto left = std::ranges::count(waiting.resumed, false, &sched::ResumedSequence::finished);
  for (int i = 0; i < n; ++i) {
    sched::ResumedSequence& sequence = waiting.resumed[static_cast<size_t>(i)];
    if (sequence.finished || (index && *index != i)) continue;
    sequence.finished = true;
    all_.at(id).ended.push_back(i);
    RequestOutput& output = outputs.emplace_back();
    output.request = id;
    output.index = i;
    output.finish = reason;
    output.error = error;
    if (--left > 0) continue;
    output.times = waiting.times.value_or(RequestTimes{.arrived = request.arrived});
    output.account = std::make_shared<const TimeAccount>(*AccountOfWaiting(id, now));
  }
  return left == 0;
}

void Requests::StoodStill(Duration time) {
  if (time == Duration{}) return;
  for (const auto& [arrived, id] : queue_) {
    Request& request = all_.at(id);
    request.waits_until = request.waits_until + time;
  }
}

std::vector<RequestId> Requests::Expired(Time now) const {
  std::vector<RequestId> expired;
  for (const auto& [arrived, id] : queue_) {
    if (now > all_.at(id).waits_until) expired.push_back(id);
  }
  return expired;
}

void Requests::Filter(PipelineId pipeline, std::vector<RequestOutput>& outputs, size_t first,
                      std::vector<size_t>& notable) {
  size_t kept = first;
  for (size_t i = first; i < outputs.size(); ++i) {
    RequestOutput& output = outputs[i];
    const auto found = all_.find(output.request);
    if (found == all_.end() || found->second.pipeline != pipeline) continue;
    Request& request = found->second;
    request.delivered += static_cast<int64_t>(output.tokens.size());
    if (output.finish) request.ended.push_back(output.index);
    const bool begins = output.yields() && std::exchange(request.prefilling, false);
    if (begins && blame_.Cleared(output.request)) try_queue_ = true;
    if (begins || output.times.has_value()) notable.push_back(kept);
    if (kept != i) outputs[kept] = std::move(output);
    ++kept;
  }
  outputs.resize(kept);
}

bool Requests::BeginsClass(BitClass bits, const RequestOutput& output) {
  return output.yields() &&
         std::exchange(all_.at(output.request).bits, bits) != std::optional(bits);
}

void Requests::CheckIntegrity() const {
  for (const auto& [id, request] : all_) {
    MR_CHECK(request.pipeline.has_value() != request.waiting.has_value())
        << "request " << id << " is both in a pipeline and waiting, or neither";
    MR_CHECK(request.waiting.has_value() == queue_.contains({request.arrived, id}))
        << "request " << id << " waits but is not queued, or is queued but does not wait";
  }
  MR_CHECK(queue_.size() <= all_.size()) << "more requests wait than exist";
}

}  // namespace millrace::cluster
