#include "sim/service.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::sim {
namespace {

constexpr uint64_t kProgressEvery = 4096;  // arrivals
constexpr int kSharedMax = 4096;           // lengths whose parameters are shared

}  // namespace

Result<std::unique_ptr<Service>> Service::Create(const ServiceOptions& options) {
  MR_CHECK(!options.instances.empty()) << "a service needs an instance";
  std::unique_ptr<Service> service(new Service(options));
  for (const InstanceOptions& instance : options.instances) {
    MR_ASSIGN_OR_RETURN(auto made, Instance::Create(instance));
    service->instances_.push_back(std::move(made));
  }
  MR_RETURN_IF_ERROR(service->SortRoles());
  MR_RETURN_IF_ERROR(service->BeginMembership());
  if (options.dispatch == cluster::DispatchPolicy::kPredictedTime) {
    service->prefill_ahead_.resize(options.instances.size());
  }
  return service;
}

bool Service::HasPrefixCache(const ServiceOptions& options) {
  return std::ranges::any_of(options.instances, [](const InstanceOptions& instance) {
    return instance.scheduler.prefix_caching;
  });
}

void Service::OnStep(std::function<void(int index, const StepRecord&)> observe) {
  for (size_t i = 0; i < instances_.size(); ++i) {
    instances_[i]->on_step = [observe, i](const StepRecord& r) { observe(static_cast<int>(i), r); };
  }
}

ServiceReport Service::Run(Workload& workload) {
  std::optional<SimRequest> next = workload.Next();
  if (next) events_.Push(next->arrival + options_.front_end, {});
  Time now;
  for (;;) {
    const std::optional<Time> change = NextChange();
    if (!change && events_.empty()) break;
    const Time at = change ? *change : events_.next_time();
    if (options_.stop_at && at > *options_.stop_at) {
      now = *options_.stop_at;
      break;
    }
    now = at;
    if (change) {
      Change(now);
      continue;
    }
    const Event event = events_.Pop();
    ++events_done_;
    switch (event.what) {
      case What::kArrival:
        Arrive(*next, now);
        next = workload.Next();
        if (next) events_.Push(next->arrival + options_.front_end, {});
        break;
      case What::kStepEnd:
        if (event.life != availability_.life(event.index)) break;
        outputs_.clear();
        instances_[event.index]->Finish(now, result_, outputs_);
        HearAll(event.index, now);
        if (!copied_[event.index].empty()) MoveCopied(event.index, now);
        Submit(event.index, now);
        break;
      case What::kKvArrival: EndPull(event.index, now); break;
      case What::kCopied: EndCopy(event.index, event.life, now); break;
    }
  }
  return Report(now);
}

void Service::HearAll(int index, Time now) {
  constexpr size_t kAhead = 8;  // outputs whose records are prefetched
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (i + kAhead < outputs_.size()) recorder_.Prefetch(outputs_[i + kAhead].request);
    Hear(index, outputs_[i], now);
  }
}

void Service::Hear(int index, RequestOutput& output, Time now) {
  const SimRequest& request = recorder_.request(output.request);
  if (!prefill_ahead_.empty() && !recorder_.HasSpoken(output.request) &&
      (!output.tokens.empty() || output.finish)) {
    prefill_ahead_[index] = prefill_ahead_[index] - PrefillTime(index, request.prompt_tokens);
  }
  const bool hands_over = output.times && !output.finish;  // it has stopped after its prompt
  if (output.times) instances_[index]->NoteEnded();
  recorder_.Heard(output, now);
  if (hands_over) HandOver(output.request, index, output.tokens.back(), now);
}

void Service::Arrive(const SimRequest& request, Time now) {
  if (on_progress && arrived_ % kProgressEvery == 0) on_progress(arrived_, request.arrival);
  ++arrived_;
  load_.Arrived(request.arrival, recorder_);
  const RequestId id = recorder_.Arrived(request);
  if (entries_.empty()) {
    Park({.id = id,
          .prompt = prompts_.Of(request, id),
          .params = SharedParams(request.output_tokens),
          .known_output_tokens = request.output_tokens});
    return;
  }
  const int index = Dispatch(entries_);
  const bool prefill_only = options_.instances[index].role == StageRole::kPrefill;
  sched::NewRequest asked{.id = id,
                          .prompt = prompts_.Of(request, id),
                          .params = SharedParams(request.output_tokens),
                          .known_output_tokens = request.output_tokens,
                          .stop_after_prompt = prefill_only};
  if (prefill_only && request.output_tokens > 1) asked.hold_kv = options_.kv_transfer.lease;
  instances_[index]->NoteArrival();
  Give(index, std::move(asked), now);
}

bool Service::Give(int index, sched::NewRequest request, Time now) {
  const RequestId id = request.id;
  if (!instances_[index]->scheduler().Add(std::move(request), now).ok()) {
    recorder_.Refused(id);
    return false;
  }
  recorder_.owner(id) = index;
  instances_[index]->NoteAdded();
  if (!prefill_ahead_.empty() && !recorder_.HasSpoken(id)) {
    const Duration prefill = PrefillTime(index, recorder_.request(id).prompt_tokens);
    prefill_ahead_[index] = prefill_ahead_[index] + prefill;
  }
  Submit(index, now);
  return true;
}

Duration Service::PrefillTime(int index, int prompt_tokens) const {
  const int64_t n = prompt_tokens;
  const cost::BatchShape prompt{
      .prefill_tokens = n, .prefill_tokens_squared = n * n, .prefill_sequences = 1};
  double longest = 0;  // the slowest stage sets the rate of prompts through a pipeline
  for (const cost::StepCost* stage : options_.instances[index].stages) {
    longest = std::max(longest, stage->Seconds(prompt));
  }
  return Duration::Seconds(longest);
}

std::shared_ptr<const SamplingParams> Service::SharedParams(int output_tokens) {
  if (output_tokens >= kSharedMax) return ParamsFor(output_tokens);
  if (params_.empty()) params_.resize(kSharedMax);
  auto& params = params_[output_tokens];
  if (!params) params = ParamsFor(output_tokens);
  return params;
}

int Service::Dispatch(const std::vector<int>& among) {
  loads_.clear();
  for (const int i : among) {
    loads_.push_back({.requests = instances_[i]->pending_requests(),
                      .prefill_ahead = prefill_ahead_.empty() ? Duration() : prefill_ahead_[i]});
  }
  const size_t chosen = dispatcher_.Choose(loads_);
  dispatcher_.Sent();
  return among[chosen];
}

void Service::Submit(int index, Time now) {
  ends_.clear();
  instances_[index]->Submit(now, ends_);
  for (const Time end : ends_) {
    events_.Push(end, {What::kStepEnd, availability_.life(index), index});
  }
  const bool pulls = options_.instances[index].role == StageRole::kDecode;
  if (pulls || !options_.membership.empty()) StartPulls(index, now);
}

ServiceReport Service::Report(Time now) {
  ServiceReport report;
  for (const sched::NewRequest& request : parked_) recorder_.Refused(request.id);
  report.latency = recorder_.report();
  report.events = events_done_;
  report.load = load_.samples();
  report.simulated_s = now.ns * 1e-9;
  report.kv_wait = kv_wait_;
  report.kv_transfer = kv_transfer_;
  for (const Duration busy : link_busy_) {
    report.kv_link_busy_share.push_back(now.ns == 0 ? 0 : busy.seconds() / report.simulated_s);
  }
  for (const auto& instance : instances_) {
    report.steps += instance->steps();
    report.stats.push_back(instance->scheduler().Stats());
    report.prefix_query_tokens += report.stats.back().prefix_query_tokens;
    report.prefix_hit_tokens += report.stats.back().prefix_hit_tokens;
    report.use.push_back(instance->use());
  }
  if (!options_.membership.empty()) {
    report.membership = moves_;
    report.membership->Merge(availability_.Report(now));
    for (int i = 0; i < std::ssize(instances_); ++i) {
      report.use[i].ready_s = availability_.ReadySeconds(i, now);
    }
  }
  for (size_t i = 0; i < instances_.size(); ++i) {
    const double seconds = report.use[i].ready_s.value_or(report.simulated_s);
    auto& shares = report.busy_share.emplace_back();
    for (int stage = 0; stage < instances_[i]->num_stages(); ++stage) {
      shares.push_back(seconds == 0 ? 0 : instances_[i]->busy(stage).seconds() / seconds);
    }
  }
  return report;
}

}  // namespace millrace::sim
