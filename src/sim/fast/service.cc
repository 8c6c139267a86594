#include "sim/fast/service.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::sim {
namespace {

constexpr uint64_t kProgressEvery = 4096;  // arrivals

}  // namespace

Result<std::unique_ptr<Service>> Service::Create(const ServiceOptions& options) {
  MR_CHECK(!options.instances.empty()) << "a service needs an instance";
  std::unique_ptr<Service> service(new Service(options));
  for (InstanceOptions instance : options.instances) {
    if (options.limits.tpot_s) instance.tpot_limit = Duration::Seconds(*options.limits.tpot_s);
    MR_ASSIGN_OR_RETURN(auto made, Instance::Create(instance));
    service->instances_.push_back(std::move(made));
  }
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
  while (!events_.empty()) {
    now = events_.next_time();
    if (options_.stop_at && now > *options_.stop_at) {
      now = *options_.stop_at;
      break;
    }
    const Event event = events_.Pop();
    ++events_done_;
    if (event.what == What::kArrival) {
      Arrive(*next, now);
      next = workload.Next();
      if (next) events_.Push(next->arrival + options_.front_end, {});
      continue;
    }
    outputs_.clear();
    instances_[event.index]->Finish(now, result_, outputs_);
    DeliverAll(event.index, now);
    Submit(event.index, now);
  }
  return Report(now);
}

void Service::DeliverAll(int index, Time now) {
  constexpr size_t kAhead = 8;  // outputs whose records are prefetched
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (i + kAhead < outputs_.size()) recorder_.Prefetch(outputs_[i + kAhead].request);
    Hear(index, outputs_[i], now);
  }
}

void Service::Hear(int index, RequestOutput& output, Time now) {
  const SimRequest& request = recorder_.request(output.request);
  if (!prefill_ahead_.empty() && !recorder_.HasOutput(output.request) &&
      (!output.tokens.empty() || output.finish)) {
    prefill_ahead_[index] = prefill_ahead_[index] - PrefillTime(index, request.prompt_tokens);
  }
  if (output.finish) instances_[index]->NoteEnded();
  recorder_.Heard(output, now);
}

void Service::Arrive(const SimRequest& request, Time now) {
  if (on_progress && arrived_ % kProgressEvery == 0) on_progress(arrived_, request.arrival);
  ++arrived_;
  load_.Arrived(request.arrival, recorder_);
  const RequestId id = recorder_.Arrived(request);
  const int index = Dispatch();
  instances_[index]->NoteArrival();
  const Status added = instances_[index]->scheduler().Add(requests_.Make(id, request), now);
  if (!added.ok()) return recorder_.Refused(id);
  instances_[index]->NoteAdded();
  if (!prefill_ahead_.empty()) {
    const Duration prefill = PrefillTime(index, request.prompt_tokens);
    prefill_ahead_[index] = prefill_ahead_[index] + prefill;
  }
  Submit(index, now);
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

int Service::Dispatch() {
  loads_.clear();
  for (size_t i = 0; i < instances_.size(); ++i) {
    loads_.push_back({.requests = instances_[i]->pending_requests(),
                      .prefill_ahead = prefill_ahead_.empty() ? Duration() : prefill_ahead_[i]});
  }
  const size_t chosen = dispatcher_.Choose(loads_);
  dispatcher_.Sent();
  return static_cast<int>(chosen);
}

void Service::Submit(int index, Time now) {
  ends_.clear();
  instances_[index]->Submit(now, ends_);
  for (const Time end : ends_) events_.Push(end, {What::kStepEnd, index});
}

ServiceReport Service::Report(Time now) {
  ServiceReport report;
  report.latency = recorder_.report();
  report.events = events_done_;
  report.load = load_.samples();
  report.simulated_s = now.ns * 1e-9;
  for (const auto& instance : instances_) {
    report.steps += instance->steps();
    report.stats.push_back(instance->scheduler().Stats());
    report.prefix_query_tokens += report.stats.back().prefix_query_tokens;
    report.prefix_hit_tokens += report.stats.back().prefix_hit_tokens;
    report.use.push_back(instance->use());
  }
  for (size_t i = 0; i < instances_.size(); ++i) {
    const double seconds = report.simulated_s;
    auto& shares = report.busy_share.emplace_back();
    for (int stage = 0; stage < instances_[i]->num_stages(); ++stage) {
      shares.push_back(seconds == 0 ? 0 : instances_[i]->busy(stage).seconds() / seconds);
    }
  }
  return report;
}

}  // namespace millrace::sim
