#include "cluster/worker/worker_host.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "text/grammars.h"

namespace millrace::cluster {

namespace {

// The activation cache gets 1/8 of the KV's size in addition to the KV. The more layers a stage
// has, the smaller are its activations relative to its KV.
constexpr int kKvToActivations = 8;

size_t ActivationCacheBytesFor(const ShardLoaded& facts) {
  const auto kv_bytes = static_cast<size_t>(std::max<int64_t>(0, facts.kv_bytes));
  return std::min(stage::kActivationCacheBytesMax, kv_bytes / kKvToActivations);
}

}  // namespace

WorkerHost::WorkerHost(WorkerCoreOptions options, ShardLoader loader, WorkerLinks links,
                       const Clock& clock)
    : clock_(clock),
      loader_(std::move(loader)),
      links_(std::move(links)),
      core_(std::move(options)),
      compute_thread_([this] { Compute(); }),
      load_thread_([this] { Load(); }) {}

WorkerHost::~WorkerHost() { Close(); }

void WorkerHost::Close() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    for (const auto& [shard, group] : groups_) group.abort("this worker is stopping");
  }
  compute_.notify_all();
  load_.notify_all();
  compute_thread_.join();
  load_thread_.join();
}

void WorkerHost::SessionUp() {
  MutexLock lock(mutex_);
  core_.SessionUp(clock_.Now());
  Flush();
}

void WorkerHost::SessionDown() {
  MutexLock lock(mutex_);
  core_.SessionDown(clock_.Now());
  Flush();
}

void WorkerHost::FromController(ToWorker message) {
  MutexLock lock(mutex_);
  core_.FromController(std::move(message), clock_.Now());
  Flush();
}

void WorkerHost::FromPeer(PeerMessage message) {
  MutexLock lock(mutex_);
  core_.FromPeer(std::move(message), clock_.Now());
  Flush();
}

void WorkerHost::ActivationsArrived(PipelineId pipeline, StepId step, ActivationBytes activations) {
  MutexLock lock(mutex_);
  core_.ActivationsArrived(pipeline, step, std::move(activations));
  Flush();
}

void WorkerHost::PeerLost(Incarnation peer, const Status& reason) {
  MutexLock lock(mutex_);
  core_.PeerLost(peer, reason);
  Flush();
}

void WorkerHost::PullEnded(const PullDone& done) {
  MutexLock lock(mutex_);
  core_.PullEnded(done);
  Flush();
}

void WorkerHost::ProbeEnded(const LinkProbed& probed) {
  MutexLock lock(mutex_);
  core_.ProbeEnded(probed);
  Flush();
}

void WorkerHost::SetProfile(WorkerProfile profile) {
  MutexLock lock(mutex_);
  core_.SetProfile(std::move(profile));
  Flush();
}

void WorkerHost::SetNotice(std::optional<MachineNotice> notice) {
  MutexLock lock(mutex_);
  core_.SetNotice(notice, clock_.Now());
  Flush();
}

Heartbeat WorkerHost::MakeHeartbeat() {
  MutexLock lock(mutex_);
  const Time now = clock_.Now();
  Heartbeat beat = core_.MakeHeartbeat(now);
  const bool taken_up = !computing_since_ || !computing_.empty();
  if (!taken_up) beat.still_ms = (now - *computing_since_).ns / 1'000'000;
  beat.waits_for_ranks = core_.batch_running() && std::ranges::any_of(groups_, [](const auto& g) {
                           return g.second.waits && g.second.waits();
                         });
  return beat;
}

bool WorkerHost::welcomed() const {
  MutexLock lock(mutex_);
  return core_.welcomed();
}

bool WorkerHost::left_on_notice() const {
  MutexLock lock(mutex_);
  return core_.left_on_notice();
}

Duration WorkerHost::heartbeat_every() const {
  MutexLock lock(mutex_);
  return core_.heartbeat_every();
}

Duration WorkerHost::IdleFor() const {
  MutexLock lock(mutex_);
  return core_.IdleFor(clock_.Now());
}

WorkerCounters WorkerHost::counters() const {
  MutexLock lock(mutex_);
  return core_.counters();
}

size_t WorkerHost::pipelines() const {
  MutexLock lock(mutex_);
  return core_.pipelines();
}

// ---- the compute thread

std::optional<ComputingSince> WorkerHost::computing() const {
  MutexLock lock(mutex_);
  if (!computing_since_) return std::nullopt;
  return ComputingSince{*computing_since_, computing_};
}

// The computing thread has ended something and begins this.
void WorkerHost::Progress(std::string what) {
  computing_since_ = clock_.Now();
  computing_ = std::move(what);
}

void WorkerHost::Compute() {
  pthread_setname_np(pthread_self(), kComputeThreadName);
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!pipeline_work_.empty()) {
      DoPipelineWork();
      continue;
    }
    const auto batch = core_.NextBatch(clock_.Now());
    Flush();  // sends the orders for other ranks before the batch runs
    if (batch) {
      RunBatch(*batch);
      Flush();
      if (!links_.after_batch) continue;
      lock.unlock();
      links_.after_batch();
      lock.lock();
    } else if (pipeline_work_.empty()) {
      computing_since_.reset();
      computing_.clear();
      compute_.wait(lock);
    }
  }
}

void WorkerHost::RunBatch(const ReadyBatch& batch) {
  const std::shared_ptr<stage::Stage> stage = StageOf(batch.shard);
  std::vector<stage::StagePart> parts;
  parts.reserve(batch.parts.size());
  for (const ReadyBatch::Part& part : batch.parts) parts.push_back(part.AsStagePart());
  const ReadyBatch::Part& first = batch.parts.front();
  Progress(fmt::format("a batch of {} steps, the first of pipeline {} with id {}", parts.size(),
                       first.pipeline.value(), first.plan->id.value()));
  mutex_.unlock();
  const Status status =
      stage ? stage->Run(parts) : FailedPrecondition("the batch's weights were unloaded");
  std::vector<PartOutput> outputs(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    outputs[i] = {std::move(parts[i].output), std::move(parts[i].result)};
  }
  mutex_.lock();
  Progress("");
  core_.BatchEnded(status, std::move(outputs), clock_.Now());
}

void WorkerHost::DoPipelineWork() {
  auto work = std::move(pipeline_work_.front());
  pipeline_work_.pop_front();
  Progress("opening or closing a pipeline");
  if (const auto* start = std::get_if<StartPipeline>(&work)) {
    const std::shared_ptr<stage::Stage> stage = StageOf(start->shard);
    mutex_.unlock();
    const Status status = stage ? stage->OpenPipeline(start->pipeline, start->options)
                                : FailedPrecondition("the pipeline's weights were unloaded");
    mutex_.lock();
    core_.PipelineStarted(start->pipeline, status);
    Flush();
  } else if (const auto* drop = std::get_if<DropPipeline>(&work)) {
    const std::shared_ptr<stage::Stage> stage = StageOf(drop->shard);
    mutex_.unlock();
    if (stage) stage->ClosePipeline(drop->pipeline);
    links_.pipeline_closed(drop->pipeline);
    mutex_.lock();
  } else {
    auto gone = stages_.extract(std::get<DropShard>(work).shard);
    mutex_.unlock();
    gone = {};  // frees the weights that no other shard has
    mutex_.lock();
    if (--drops_ == 0) load_.notify_one();
  }
}

// ---- the loading thread

void WorkerHost::Load() {
  MutexLock lock(mutex_);
  while (true) {
    load_.wait(lock, [this]() MR_REQUIRES(mutex_) {
      return stopping_ || (!loads_.empty() && drops_ == 0);
    });
    if (stopping_) return;
    const LoadJob job = std::move(loads_.front());
    loads_.pop_front();
    const ShardId shard = job.load.shard;
    if (!core_.wants(shard)) continue;
    const auto progress = [&](int64_t done, int64_t total) {
      MutexLock inner(mutex_);
      if (stopping_ || !core_.wants(shard)) return false;
      if (total > 0) core_.LoadProgress({shard, done, total});
      Flush();
      return true;
    };
    lock.unlock();
    LoadedShard loaded = loader_(job.load, job.same, progress);
    lock.lock();
    loaded.facts.shard = shard;
    const stage::StageLimits limits = loaded.stage ? loaded.stage->limits() : stage::StageLimits{};
    if (loaded.stage) {
      stages_[shard] = std::make_shared<stage::ActivationCachingStage>(
          std::move(loaded.stage), ActivationCacheBytesFor(loaded.facts));
    }
    if (loaded.abort) groups_[shard] = {std::move(loaded.abort), std::move(loaded.waits)};
    if (loaded.identity) core_.Identify(std::move(*loaded.identity));
    core_.LoadEnded(loaded.facts, limits);
    Flush();
  }
}

// ---- actions

std::shared_ptr<stage::ActivationCachingStage> WorkerHost::StageOf(ShardId shard) const {
  const auto found = stages_.find(shard);
  return found == stages_.end() ? nullptr : found->second;
}

void WorkerHost::Flush() {
  if (std::exchange(flushing_, true)) return;
  while (true) {
    core_.TakeActions(actions_);
    if (actions_.empty()) break;
    std::vector<WorkerAction> now = std::exchange(actions_, {});
    if (stopping_) continue;
    for (WorkerAction& action : now) {
      std::visit([this](auto& a) MR_REQUIRES(mutex_) { Do(a); }, action);
    }
    for (const auto& [peer, reason] : std::exchange(lost_, {})) core_.PeerLost(peer, reason);
    now.clear();
    if (actions_.capacity() == 0) actions_ = std::move(now);  // reuses its memory
  }
  flushing_ = false;
  if (!computing_since_) computing_since_ = clock_.Now();
  compute_.notify_one();
}

void WorkerHost::Do(SendUp& action) { links_.send_up(std::move(action.message)); }

void WorkerHost::Do(SendToPeer& action) {
  links_.send_to_peer(action.to, std::move(action.message));
}

void WorkerHost::Do(SendActivations& action) {
  const Status sent = links_.send_activations(action.to, action.pipeline, action.step,
                                              action.decode, std::move(action.activations));
  if (!sent.ok()) lost_.emplace_back(action.to.incarnation, sent);
}

void WorkerHost::Do(StartLoad& action) {
  const auto twin = action.same_as ? StageOf(*action.same_as) : nullptr;
  loads_.push_back({std::move(action.load), twin ? twin->inner() : nullptr});
  load_.notify_one();
}

// Aborting the group first, because a batch that waits for a lost rank would block the compute
// thread.
void WorkerHost::Do(DropShard& action) {
  if (auto group = groups_.extract(action.shard)) group.mapped().abort("the stage was unloaded");
  ++drops_;
  pipeline_work_.push_back(action);
}

void WorkerHost::Do(AbortGroup& action) {
  const auto group = groups_.find(action.shard);
  if (group != groups_.end()) group->second.abort(action.reason);
}

void WorkerHost::Do(StartPipeline& action) {
  action.options.grammars = grammars_;
  pipeline_work_.push_back(std::move(action));
}
void WorkerHost::Do(DropPipeline& action) { pipeline_work_.push_back(action); }

void WorkerHost::Do(ReturnMemory& action) {
  const auto stage = StageOf(action.shard);
  if (stage) stage->ReturnBlocks(action.pipeline, action.blocks);
}

void WorkerHost::Do(StartPull& action) {
  const auto stage = StageOf(action.shard);
  links_.start_pull(action.shard, action.layers, stage, action.pull);
}

void WorkerHost::Do(Export& action) {
  links_.export_kv(action.shard, action.layers, StageOf(action.shard), action.kv);
}

void WorkerHost::Do(Unexport& action) { links_.unexport_kv(action.handle); }

void WorkerHost::Do(StartProbe& action) { links_.start_probe(action.probe); }

void WorkerHost::Do(UseTokenTable& action) { grammars_ = text::Grammars::Of(action.table); }

void WorkerHost::Do(EndSession& action) { links_.end_session(action.reason, action.for_good); }

}  // namespace millrace::cluster
