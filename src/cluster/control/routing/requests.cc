#include "cluster/control/routing/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// A request without a token begins with its prompt, however often it has lost its pipeline. If
// several sequences need the prompt's log-probabilities, or are beams, it is computed where they
// will be decoded.
WaitsFor WhatItWaitsFor(const Requests::Request& request) {
  const SamplingParams& params = *request.spec.params;
  const bool stays = params.beam_search || (request.n() > 1 && params.prompt_logprobs);
  const bool begins =
      std::ranges::all_of(request.waiting->resumed, [](const sched::ResumedSequence& sequence) {
        return sequence.finished || sequence.output.empty();
      });
  return begins && !stays ? WaitsFor::kPrefill : WaitsFor::kDecode;
}

}  // namespace

int64_t PrefillTokens(const sched::NewRequest& request) {
  int64_t tokens = std::ssize(*request.prompt);
  for (const sched::ResumedSequence& sequence : request.resumed) {
    if (!sequence.finished) tokens += std::max<int64_t>(std::ssize(sequence.output) - 1, 0);
  }
  for (int imported : request.imported_tokens) tokens -= imported;
  return std::max<int64_t>(tokens, 0);
}

Status Requests::Add(sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  MR_CHECK(!all_.contains(id)) << "request " << id << " twice";
  const auto prompt_tokens = static_cast<int>(request.prompt->size());
  const int prompt_tokens_max = options_.max_model_len - (request.params->pools() ? 0 : 1);
  if (prompt_tokens > prompt_tokens_max) {
    return InvalidArgument(fmt::format("the prompt has {} tokens, the model's context has {}",
                                       prompt_tokens, options_.max_model_len));
  }
  if (std::cmp_greater_equal(waiting(), options_.waiting_max)) {
    return ResourceExhausted(
        fmt::format("{} requests are waiting, the limit is {}", waiting(), options_.waiting_max));
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
  LeaveQueue(id, request);
  request.pipeline.reset();
  request.waiting = std::move(next);
  request.waits_since = now;
  request.waits_until = Waited(now) + options_.waiting_limit;
  request.ahead = static_cast<int>(waiting());
  JoinQueue(id, request);
  try_queue_ = true;
}

int64_t Requests::PrefillTokensOf(const Request& request) {
  return request.delivered == 0 ? PrefillTokens(*request.waiting) : 0;
}

void Requests::JoinQueue(RequestId id, Request& request) {
  request.waits_for = WhatItWaitsFor(request);
  queues_[Index(request.waits_for)].emplace(request.arrived, id);
  expiries_.emplace(request.waits_until, id);
  waiting_prefill_tokens_ += PrefillTokensOf(request);
}

void Requests::LeaveQueue(RequestId id, const Request& request) {
  if (!request.waiting) return;
  queues_[Index(request.waits_for)].erase({request.arrived, id});
  expiries_.erase({request.waits_until, id});
  waiting_prefill_tokens_ -= PrefillTokensOf(request);
}

std::optional<Requests::QueueKey> Requests::NextWaiting(std::optional<QueueKey> after,
                                                        std::span<const WaitsFor> queues) const {
  std::optional<QueueKey> next;
  for (const WaitsFor what : queues) {
    const std::set<QueueKey>& queue = queues_[Index(what)];
    const auto found = after ? queue.upper_bound(*after) : queue.begin();
    if (found != queue.end() && (!next || *found < *next)) next = *found;
  }
  return next;
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

void Requests::Enter(RequestId id, PipelineId pipeline) {
  Request& request = all_.at(id);
  request.pipeline = pipeline;
  request.prefilling = true;
  blame_.Started(id);
  LeaveQueue(id, request);
  request.waiting.reset();
}

void Requests::Erase(RequestId id) {
  LeaveQueue(id, all_.at(id));
  blame_.Cleared(id);
  all_.erase(id);
  if (waiting() > 0) try_queue_ = true;
}

Requests::Request* Requests::Find(RequestId id) {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
}

const Requests::Request* Requests::Find(RequestId id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
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
  Request& request = all_.at(id);
  LeaveQueue(id, request);  // what is left of it may wait for something else
  sched::NewRequest& waiting = *request.waiting;
  const int n = request.n();
  if (waiting.resumed.empty()) waiting.resumed.resize(static_cast<size_t>(n));
  auto left = std::ranges::count(waiting.resumed, false, &sched::ResumedSequence::finished);
  for (int i = 0; i < n; ++i) {
    sched::ResumedSequence& sequence = waiting.resumed[static_cast<size_t>(i)];
    if (sequence.finished || (index && *index != i)) continue;
    sequence.finished = true;
    request.ended.push_back(i);
    RequestOutput& output = outputs.emplace_back();
    output.request = id;
    output.index = i;
    output.finish = reason;
    output.error = error;
    if (--left > 0) continue;
    output.times = waiting.times.value_or(RequestTimes{.arrived = request.arrived});
    output.account = std::make_shared<const TimeAccount>(*AccountOfWaiting(id, now));
  }
  JoinQueue(id, request);
  return left == 0;
}

std::vector<RequestId> Requests::Expired(Time now) const {
  std::vector<QueueKey> expired;
  for (const auto& [until, id] : expiries_) {
    if (Waited(now) <= until) break;
    expired.emplace_back(all_.at(id).arrived, id);
  }
  std::ranges::sort(expired);
  std::vector<RequestId> ids;
  for (const auto& [arrived, id] : expired) ids.push_back(id);
  return ids;
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
  size_t waiting = 0;
  int64_t prefill_tokens = 0;
  for (const auto& [id, request] : all_) {
    MR_CHECK(request.pipeline.has_value() != request.waiting.has_value())
        << "request " << id << " is both in a pipeline and waiting, or neither";
    if (!request.waiting) continue;
    ++waiting;
    prefill_tokens += PrefillTokensOf(request);
    MR_CHECK(request.waits_for == WhatItWaitsFor(request)) << "request " << id;
    MR_CHECK(queues_[Index(request.waits_for)].contains({request.arrived, id}) &&
             expiries_.contains({request.waits_until, id}))
        << "request " << id << " waits but is not queued";
  }
  MR_CHECK(this->waiting() == waiting && expiries_.size() == waiting)
      << "a request is queued but does not wait";
  MR_CHECK(prefill_tokens == waiting_prefill_tokens_);
}

}  // namespace millrace::cluster
