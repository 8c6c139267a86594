#include "cluster/cell.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

// How often time is brought to the controller when nothing else happens.
constexpr auto kTick = std::chrono::milliseconds(50);

// The news of a request that was put on record and then refused.
void EndUnstarted(const sched::NewRequest& request, const Status& why,
                  std::vector<RequestOutput>& outputs) {
  for (int i = 0; i < request.params->n; ++i) {
    RequestOutput& news = outputs.emplace_back();
    news.request = request.id;
    news.index = i;
    news.finish = FinishReason::kError;
    news.error = why;
  }
}

}  // namespace

Result<std::unique_ptr<Cell>> Cell::Start(CellOptions options, CellLinks links,
                                          const Clock& clock) {
  MR_ASSIGN_OR_RETURN(auto controller, Controller::Create(options.controller, clock.Now()));
  std::unique_ptr<Cell> cell(new Cell(std::move(options), std::move(links), clock));
  cell->controller_ = std::move(controller);
  cell->thread_ = std::thread([raw = cell.get()] { raw->Run(); });
  return cell;
}

Cell::Cell(CellOptions options, CellLinks links, const Clock& clock)
    : options_(std::move(options)),
      links_(std::move(links)),
      clock_(clock),
      next_request_(options_.first_request) {}

Cell::~Cell() { Close(); }

// Only now may the cell's thread wake: earlier it would wait for this lock at once.
Cell::Change::~Change() {
  if (!cell_.stopping_) cell_.Follow();
  const bool news = !cell_.outputs_.empty();
  lock_.unlock();
  if (news) cell_.news_.notify_one();
}

void Cell::Close() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
  Drain(Duration{});
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  news_.notify_all();
  thread_.join();
}

void Cell::Receive(ConnectionId from, ToController message) {
  const Change change(*this);
  if (stopping_) return;
  controller_->Receive(from, std::move(message), clock_.Now());
}

void Cell::Beat(ConnectionId from, const Heartbeat& beat) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  controller_->Beat(from, beat, clock_.Now());
}

void Cell::ConnectionLost(ConnectionId connection, const Status& reason) {
  const Change change(*this);
  if (stopping_) return;
  controller_->ConnectionLost(connection, reason, clock_.Now());
}

Result<RequestId> Cell::Submit(engine::EngineRequest request, engine::OutputSink sink) {
  std::unique_lock turn(submitting_, std::defer_lock);
  if (options_.journal.accepted) turn.lock();
  std::unique_lock lock(mutex_);
  if (draining_) return Unavailable("the server is shutting down and takes no new requests");
  const RequestId id(next_request_++);
  sched::NewRequest added;
  added.id = id;
  added.seed = request.params.seed.value_or(HashCounter(options_.seed, id.value()));
  added.prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt));
  added.params = std::make_shared<const SamplingParams>(std::move(request.params));
  added.priority = request.priority;
  added.cache_salt = std::move(request.cache_salt);
  if (options_.journal.accepted) {
    lock.unlock();
    MR_RETURN_IF_ERROR(options_.journal.accepted(added, request));
    lock.lock();
  }
  const Change change(*this, std::move(lock));
  Status submitted = draining_ ? Unavailable("the server is shutting down")
                               : controller_->Submit(added, clock_.Now());
  if (!submitted.ok()) {
    // On record, so its end must be as well. Nobody has a sink for it.
    if (options_.journal.accepted) EndUnstarted(added, submitted, outputs_);
    return submitted;
  }
  sinks_.emplace(id, std::move(sink));
  return id;
}

Status Cell::Resume(sched::NewRequest request, engine::OutputSink sink) {
  const Change change(*this);
  if (draining_) return Unavailable("the server is shutting down");
  const RequestId id = request.id;
  next_request_ = std::max(next_request_, id.value() + 1);
  MR_RETURN_IF_ERROR(controller_->Submit(std::move(request), clock_.Now()));
  sinks_.emplace(id, std::move(sink));
  return OkStatus();
}

void Cell::Abort(RequestId request, std::optional<int> index) {
  const Change change(*this);
  controller_->Abort(request, index, clock_.Now());
}

engine::EngineStats Cell::Stats() const {
  std::lock_guard lock(mutex_);
  engine::EngineStats stats = stats_;
  stats.scheduler = controller_->Stats();
  stats.stalled = controller_->Stalled(clock_.Now());
  stats.draining = draining_;
  return stats;
}

std::optional<sched::RequestInfo> Cell::Inspect(RequestId request) const {
  std::lock_guard lock(mutex_);
  return controller_->Inspect(request, clock_.Now());
}

std::vector<sched::RequestInfo> Cell::InspectAll() const {
  std::lock_guard lock(mutex_);
  return controller_->InspectAll(clock_.Now());
}

std::optional<std::string> Cell::NotReady() const {
  std::lock_guard lock(mutex_);
  return controller_->Missing();
}

bool Cell::Drain(Duration limit) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto done = [this] { return sinks_.empty() && delivering_.empty(); };
  if (idle_.wait_for(lock, std::chrono::nanoseconds(limit.ns), done)) return true;
  std::vector<RequestId> left;
  for (const auto& [id, sink] : sinks_) left.push_back(id);
  for (RequestId id : left) controller_->Abort(id, std::nullopt, clock_.Now());
  Follow();
  news_.notify_one();
  idle_.wait(lock, done);
  return false;
}

ClusterStatus Cell::Describe() const {
  std::lock_guard lock(mutex_);
  return controller_->Describe(clock_.Now());
}

Status Cell::ApplyPlan(Plan plan, std::vector<std::string> node_names) {
  const Change change(*this);
  return controller_->ApplyPlan(std::move(plan), std::move(node_names), clock_.Now());
}

Status Cell::DrainWorker(std::string_view name) {
  const Change change(*this);
  return controller_->DrainWorker(name, clock_.Now());
}

Status Cell::Migrate(RequestId request, std::string_view worker) {
  const Change change(*this);
  return controller_->Migrate(request, worker, clock_.Now());
}

void Cell::Follow() {
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
}

void Cell::CountSteps() {
  for (const ControllerAction& action : actions_) {
    const auto* send = std::get_if<SendToWorker>(&action);
    const auto* step = send != nullptr ? std::get_if<LaneStep>(&send->message) : nullptr;
    if (step == nullptr) continue;
    const auto tokens = static_cast<int>(step->plan.tokens.size());
    const auto bound = std::ranges::lower_bound(engine::kIterationTokenBounds, tokens);
    ++stats_.iteration_tokens[static_cast<size_t>(bound - engine::kIterationTokenBounds.begin())];
    stats_.iteration_tokens_sum += static_cast<uint64_t>(tokens);
  }
}

void Cell::Run() {
  std::unique_lock lock(mutex_);
  Time ticked = clock_.Now();
  while (!stopping_) {
    if (outputs_.empty()) {
      news_.wait_for(lock, kTick, [this] { return stopping_ || !outputs_.empty(); });
    }
    const Time now = clock_.Now();
    if (now - ticked >= Duration{std::chrono::nanoseconds(kTick).count()}) {
      ticked = now;
      controller_->Tick(now);
      Follow();
    }
    Deliver(lock);
  }
}

// Their news are not on record, so nobody hears them, and the requests may not go on.
void Cell::FailUnrecorded(const Status& why) {
  const Time now = clock_.Now();
  for (RequestOutput& output : delivering_) {
    controller_->Abort(output.request, std::nullopt, now);
    output.tokens.clear();
    output.logprobs.clear();
    output.prompt_logprobs.clear();
    output.stop_token.reset();
    output.finish = FinishReason::kError;
    output.error = why;
  }
  Follow();
}

// Outside the lock: a sink may submit or abort. What is not on record is not told.
void Cell::Deliver(std::unique_lock<std::mutex>& lock) {
  delivering_.swap(outputs_);
  if (delivering_.empty()) return;
  if (options_.journal.told) {
    lock.unlock();
    const Status kept = options_.journal.told(delivering_);
    lock.lock();
    if (!kept.ok()) FailUnrecorded(kept);
  }
  for (RequestOutput& output : delivering_) {
    const auto found = sinks_.find(output.request);
    if (found == sinks_.end()) continue;
    engine::OutputSink ended;
    const engine::OutputSink* sink = &found->second;  // stays put: only this thread erases
    if (output.times) {
      ended = std::move(found->second);
      sink = &ended;
      sinks_.erase(found);
    }
    lock.unlock();
    (*sink)(std::move(output));
    lock.lock();
  }
  delivering_.clear();
  if (sinks_.empty()) idle_.notify_all();
}

}  // namespace millrace::cluster
