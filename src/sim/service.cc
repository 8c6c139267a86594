#include "sim/service.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::sim {
namespace {

constexpr uint64_t kProgressEvery = 4096;  // arrivals
constexpr int kSharedParamsMax = 4096;     // output lengths whose parameters are made once

}  // namespace

Result<std::unique_ptr<Service>> Service::Create(const ServiceOptions& options) {
  MR_CHECK(!options.instances.empty()) << "a service without an instance";
  std::unique_ptr<Service> service(new Service(options));
  for (const InstanceOptions& instance : options.instances) {
    MR_ASSIGN_OR_RETURN(auto made, Instance::Create(instance));
    service->instances_.push_back(std::move(made));
  }
  return service;
}

void Service::OnStep(std::function<void(int index, const StepRecord&)> observe) {
  for (size_t i = 0; i < instances_.size(); ++i) {
    instances_[i]->on_step = [observe, i](const StepRecord& r) { observe(static_cast<int>(i), r); };
  }
}

ServiceReport Service::Run(Workload& workload) {
  std::optional<SimRequest> next = workload.Next();
  if (next) events_.Push(next->arrival, kArrival);
  Time now;
  while (!events_.empty()) {
    if (options_.stop_at && events_.next_time() > *options_.stop_at) {
      now = *options_.stop_at;
      break;
    }
    now = events_.next_time();
    const int32_t event = events_.Pop();
    ++events_done_;
    if (event == kArrival) {
      Arrive(*next);
      next = workload.Next();
      if (next) events_.Push(next->arrival, kArrival);
      continue;
    }
    outputs_.clear();
    Instance& instance = *instances_[event];
    instance.Finish(now, outputs_);
    for (const RequestOutput& output : outputs_) {
      if (recorder_.Heard(output, now)) instance.NoteEnded();
    }
    Submit(event, now);
  }
  return Report(now);
}

void Service::Arrive(const SimRequest& request) {
  if (on_progress && arrived_ % kProgressEvery == 0) on_progress(arrived_, request.arrival);
  ++arrived_;
  const RequestId id = recorder_.Arrived(request);
  const int index = Dispatch();
  sched::NewRequest asked{
      .id = id,
      .prompt = std::make_shared<const std::vector<TokenId>>(request.prompt_tokens),
      .params = ParamsFor(request.output_tokens),
      .known_output_tokens = request.output_tokens};
  if (!instances_[index]->scheduler().Add(std::move(asked), request.arrival).ok()) {
    recorder_.Refused(id);
    return;
  }
  instances_[index]->NoteAdded();
  Submit(index, request.arrival);
}

std::shared_ptr<const SamplingParams> Service::ParamsFor(int output_tokens) {
  const auto make = [&] {
    auto params = std::make_shared<SamplingParams>();
    params->max_tokens = output_tokens;
    params->ignore_eos = true;
    params->temperature = 0;
    return params;
  };
  if (output_tokens >= kSharedParamsMax) return make();
  if (params_.empty()) params_.resize(kSharedParamsMax);
  auto& params = params_[output_tokens];
  if (!params) params = make();
  return params;
}

int Service::Dispatch() {
  const size_t n = instances_.size();
  const uint64_t turn = dispatched_++;
  switch (options_.dispatch) {
    case DispatchPolicy::kRoundRobin: return static_cast<int>(turn % n);
    case DispatchPolicy::kRandom: return static_cast<int>(HashCounter(options_.seed, turn) % n);
    case DispatchPolicy::kFewestRequests: break;
  }
  size_t best = turn % n;  // ties go round
  for (size_t k = 1; k < n; ++k) {
    const size_t i = (turn + k) % n;
    if (instances_[i]->pending_requests() < instances_[best]->pending_requests()) best = i;
  }
  return static_cast<int>(best);
}

void Service::Submit(int index, Time now) {
  ends_.clear();
  instances_[index]->Submit(now, ends_);
  for (const Time end : ends_) events_.Push(end, index);
}

ServiceReport Service::Report(Time now) {
  ServiceReport report;
  report.latency = recorder_.report();
  report.events = events_done_;
  report.simulated_s = now.ns * 1e-9;
  for (const auto& instance : instances_) {
    report.steps += instance->steps();
    report.stats.push_back(instance->scheduler().Stats());
    auto& shares = report.busy_share.emplace_back();
    for (int stage = 0; stage < instance->num_stages(); ++stage) {
      shares.push_back(now.ns == 0 ? 0 : instance->busy(stage).seconds() / report.simulated_s);
    }
  }
  return report;
}

}  // namespace millrace::sim
