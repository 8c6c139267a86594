#include "cluster/runtime/controller_host.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

// How often the controller is ticked.
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr Duration kCheckJournalEvery = Duration::Seconds(1);

// Ends a request that was recorded in the journal and then refused.
void EndUnstarted(const sched::NewRequest& request, const Status& why,
                  std::vector<RequestOutput>& outputs) {
  for (int i = 0; i < request.params->n; ++i) {
    RequestOutput& output = outputs.emplace_back();
    output.request = request.id;
    output.index = i;
    output.finish = FinishReason::kError;
    output.error = why;
  }
}

}  // namespace

Result<std::unique_ptr<ControllerHost>> ControllerHost::Start(ControllerHostOptions options,
                                                              ControllerLinks links,
                                                              const Clock& clock) {
  MR_ASSIGN_OR_RETURN(auto controller, ControllerCore::Create(options.controller));
  std::unique_ptr<ControllerHost> host(
      new ControllerHost(std::move(options), std::move(links), clock));
  {
    const MutexLock lock(host->mutex_);
    host->controller_ = std::move(controller);
  }
  host->thread_ = std::thread([raw = host.get()] { raw->Run(); });
  return host;
}

ControllerHost::ControllerHost(ControllerHostOptions options, ControllerLinks links,
                               const Clock& clock)
    : options_(std::move(options)),
      links_(std::move(links)),
      clock_(clock),
      next_request_(options_.first_request) {}

ControllerHost::~ControllerHost() { Close(); }

// Unlocks before it notifies; otherwise the controller's thread would wake only to wait for the
// lock.
ControllerHost::Change::~Change() {
  if (!host_.stopping_) host_.FlushActions();
  const bool output = !host_.outputs_.empty();
  lock_.unlock();
  if (output) host_.outputs_ready_.notify_one();
}

void ControllerHost::Close() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
  Drain(Duration{});
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  outputs_ready_.notify_all();
  thread_.join();
}

void ControllerHost::Receive(ConnectionId from, ToController message) {
  if (std::holds_alternative<Join>(message) && options_.leads && !options_.leads()) {
    const Status why = Unavailable("this controller's lease has ended, and it has no new one yet");
    links_.send(from, Refused{why, true});
    return links_.disconnect(from, why.message());
  }
  const Change change(*this);
  if (stopping_) return;
  controller_->Receive(from, std::move(message), clock_.Now());
}

void ControllerHost::Beat(ConnectionId from, const Heartbeat& beat) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  controller_->Beat(from, beat, clock_.Now());
}

void ControllerHost::ConnectionLost(ConnectionId connection, const Status& reason) {
  const Change change(*this);
  if (stopping_) return;
  controller_->ConnectionLost(connection, reason, clock_.Now());
}

Result<RequestId> ControllerHost::Submit(GenerationRequest request, OutputSink sink) {
  const MutexLock turn(submitting_);  // the journal and the controller see the same order
  sched::NewRequest added;
  {
    const MutexLock lock(mutex_);
    if (draining_) return Unavailable("the server is shutting down and takes no new requests");
    added.id = RequestId(next_request_++);
  }
  const RequestId id = added.id;
  added.seed = request.params.seed.value_or(DrawnSeed(id));
  added.prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt));
  added.params = std::make_shared<const SamplingParams>(std::move(request.params));
  added.priority = request.priority;
  added.cache_salt = std::move(request.cache_salt);
  added.client = std::move(request.client);
  added.prompt_cache_key = std::move(request.prompt_cache_key);
  if (options_.journal.accepted) {
    MR_RETURN_IF_ERROR(options_.journal.accepted(added, request));
  }
  const auto prompt_tokens = static_cast<int>(added.prompt->size());
  const Change change(*this);
  Status submitted = draining_ ? Unavailable("the server is shutting down")
                               : controller_->Submit(added, clock_.Now());
  if (!submitted.ok()) {
    // Its end must be recorded as well. It has no sink.
    if (options_.journal.accepted) EndUnstarted(added, submitted, outputs_);
    return submitted;
  }
  sinks_.emplace(id, std::move(sink));
  for (const auto& [number, watcher] : watchers_) watcher.arrived(id, prompt_tokens);
  return id;
}

Status ControllerHost::Resume(sched::NewRequest request, std::string_view computed_by,
                              OutputSink sink) {
  const Change change(*this);
  if (draining_) return Unavailable("the server is shutting down");
  const RequestId id = request.id;
  next_request_ = std::max(next_request_, id.value() + 1);
  MR_RETURN_IF_ERROR(controller_->Submit(std::move(request), clock_.Now(), computed_by));
  sinks_.emplace(id, std::move(sink));
  return OkStatus();
}

void ControllerHost::Abort(RequestId request, std::optional<int> index) {
  const Change change(*this);
  controller_->Abort(request, index, clock_.Now());
}

GeneratorStats ControllerHost::Stats() const {
  MutexLock lock(mutex_);
  GeneratorStats stats = stats_;
  stats.scheduler = controller_->Stats();
  if (auto stalled = controller_->Stalled(clock_.Now())) {
    stats.stalled = std::move(stalled->info);
    if (options_.remote_workers) stats.stalled_at = std::move(stalled->workers);
  }
  for (const auto& [name, reason] : controller_->still()) {
    stats.still_workers.push_back({name, reason});
  }
  stats.draining = draining_;
  return stats;
}

std::optional<sched::RequestInfo> ControllerHost::Inspect(RequestId request) const {
  MutexLock lock(mutex_);
  return controller_->Inspect(request, clock_.Now());
}

std::optional<TimeAccount> ControllerHost::Account(RequestId request) const {
  MutexLock lock(mutex_);
  return controller_->Account(request, clock_.Now());
}

std::vector<sched::RequestInfo> ControllerHost::InspectAll() const {
  MutexLock lock(mutex_);
  return controller_->InspectAll(clock_.Now());
}

std::optional<std::string> ControllerHost::NotReady() const {
  MutexLock lock(mutex_);
  if (!journal_state_.ok()) return journal_state_.message();
  return controller_->Missing();
}

std::optional<Duration> ControllerHost::PredictedTtft(int prompt_tokens) const {
  MutexLock lock(mutex_);
  return controller_->PredictedTtft(prompt_tokens);
}

bool ControllerHost::Drain(Duration limit) {
  MutexLock lock(mutex_);
  draining_ = true;
  const auto done = [this]() MR_REQUIRES(mutex_) { return sinks_.empty() && delivering_.empty(); };
  if (idle_.wait_for(lock, std::chrono::nanoseconds(limit.ns), done)) return true;
  std::vector<RequestId> left;
  for (const auto& [id, sink] : sinks_) left.push_back(id);
  for (RequestId id : left) controller_->Abort(id, std::nullopt, clock_.Now());
  FlushActions();
  outputs_ready_.notify_one();
  idle_.wait(lock, done);
  return false;
}

ClusterStatus ControllerHost::Describe() const {
  MutexLock lock(mutex_);
  return controller_->Describe(clock_.Now());
}

Status ControllerHost::ApplyPlan(Plan plan, std::vector<std::string> node_names, int64_t* epoch) {
  const Change change(*this);
  MR_RETURN_IF_ERROR(controller_->ApplyPlan(std::move(plan), std::move(node_names)));
  if (epoch != nullptr) *epoch = controller_->newest_epoch();
  return OkStatus();
}

void ControllerHost::OnPlanSettled(PlanSettled settled) {
  MutexLock lock(mutex_);
  plan_settled_ = std::move(settled);
}

int ControllerHost::Watch(RequestWatcher watcher) {
  MutexLock lock(mutex_);
  watchers_.emplace(++last_watcher_, std::move(watcher));
  return last_watcher_;
}

void ControllerHost::Unwatch(int watcher) {
  MutexLock lock(mutex_);
  watchers_.erase(watcher);
}

Status ControllerHost::DrainWorker(std::string_view name) {
  const Change change(*this);
  return controller_->DrainWorker(name);
}

Status ControllerHost::Migrate(RequestId request, std::string_view worker) {
  const Change change(*this);
  return controller_->Migrate(request, worker, clock_.Now());
}

void ControllerHost::FlushActions() {
  controller_->Advance(clock_.Now());
  controller_->TakeActions(actions_);
  CountSteps();
  for (const ControllerAction& action : actions_) {
    if (const auto* send = std::get_if<SendToWorker>(&action)) {
      links_.send(send->to, send->message);
    } else {
      const auto& end = std::get<Disconnect>(action);
      links_.disconnect(end.connection, end.reason);
    }
  }
  actions_.clear();
  controller_->TakeOutputs(outputs_);
  ReportPlans();
}

void ControllerHost::ReportPlans() {
  const ControllerCounters& now = controller_->counters();
  const bool in_force = now.plans_applied != seen_.plans_applied;
  const bool given_up = now.plans_given_up != seen_.plans_given_up;
  seen_ = now;
  if (!plan_settled_) return;
  if (in_force) plan_settled_(controller_->epoch(), true);
  if (given_up && controller_->given_up()) plan_settled_(controller_->given_up()->epoch, false);
}

void ControllerHost::CountSteps() {
  for (const ControllerAction& action : actions_) {
    const auto* send = std::get_if<SendToWorker>(&action);
    const auto* step = send != nullptr ? std::get_if<PipelineStep>(&send->message) : nullptr;
    if (step == nullptr || step->plan->IsTest()) continue;
    const auto tokens = static_cast<int>(step->plan->tokens.size());
    const auto bound = std::ranges::lower_bound(cluster::kIterationTokenBounds, tokens);
    ++stats_.iteration_tokens[static_cast<size_t>(bound - cluster::kIterationTokenBounds.begin())];
    stats_.iteration_tokens_sum += static_cast<uint64_t>(tokens);
  }
}

void ControllerHost::Run() {
  MutexLock lock(mutex_);
  Time ticked = clock_.Now();
  while (!stopping_) {
    if (outputs_.empty()) {
      outputs_ready_.wait_for(
          lock, kTick, [this]() MR_REQUIRES(mutex_) { return stopping_ || !outputs_.empty(); });
    }
    const Time now = clock_.Now();
    if (now - ticked >= Duration{std::chrono::nanoseconds(kTick).count()}) {
      ticked = now;
      controller_->Tick(now);
      FlushActions();
      CheckJournal(now);
    }
    Deliver();
  }
}

void ControllerHost::CheckJournal(Time now) {
  if (!options_.journal.check || now - journal_checked_ < kCheckJournalEvery) return;
  journal_checked_ = now;
  mutex_.unlock();
  const Status state = options_.journal.check();
  mutex_.lock();
  journal_state_ = state;
}

// Outputs that could not be recorded must not reach a client, so their requests are aborted.
void ControllerHost::FailUnrecorded(const Status& why) {
  const Time now = clock_.Now();
  for (RequestOutput& output : delivering_) {
    controller_->Abort(output.request, std::nullopt, now);
    output.tokens.clear();
    output.logprobs.clear();
    output.prompt_logprobs.clear();
    output.pooled.clear();
    output.stop_token.reset();
    output.finish = FinishReason::kError;
    output.error = why;
  }
  FlushActions();
}

// Records the outputs, then calls the sinks without the lock, because a sink may submit or abort.
void ControllerHost::Deliver() {
  delivering_.swap(outputs_);
  if (delivering_.empty()) return;
  if (options_.journal.delivered) {
    const std::vector<RequestOutput>* outputs = &delivering_;  // only this thread changes them
    mutex_.unlock();
    const Status kept = options_.journal.delivered(*outputs);
    mutex_.lock();
    if (!kept.ok()) {
      journal_state_ = kept;
      FailUnrecorded(kept);
    }
  }
  for (RequestOutput& output : delivering_) {
    const auto found = sinks_.find(output.request);
    if (found == sinks_.end()) continue;
    for (const auto& [number, watcher] : watchers_) watcher.heard(output);
    OutputSink ended;
    const OutputSink* sink = &found->second;  // stays put: only this thread erases
    if (output.times) {
      ended = std::move(found->second);
      sink = &ended;
      sinks_.erase(found);
    }
    mutex_.unlock();
    (*sink)(std::move(output));
    mutex_.lock();
  }
  delivering_.clear();
  if (sinks_.empty()) idle_.notify_all();
}

}  // namespace millrace::cluster
