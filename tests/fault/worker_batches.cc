// Batches: the modelled time of a step, and tensor-parallel ranks that meet to run one. The
// contract of a collective (net/collective/collective.h) is modelled: a failure is permanent.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/fault/worker.h"

namespace millrace::sim::fault {
namespace {

constexpr Duration kCollectiveDeadline = Duration::Seconds(2);

}  // namespace

void Worker::StartBatch() {
  ++batch_number_;
  batch_since_ = world_.now();
  met_ = false;
  outputs_.reset();
  if (broken_.contains(batch_->shard)) {
    return EndBatch(Unavailable("the collective of this shard has failed"), {});
  }
  if (RanksNeeded() == 1) return BeginCompute(ComputeTime());
  ++audit_.collectives;
  world_.Timer(options_.place, kCollectiveDeadline, TimerKind::kCollectiveDeadline, batch_number_);
  Meet();
}

Duration Worker::ComputeTime() {
  int64_t tokens = 0;
  for (const auto& part : batch_->parts) tokens += std::ssize(part.plan->tokens);
  const int64_t jitter = world_.rng().Between(0, options_.step_time.ns / 2);
  return options_.step_time + Duration::Nanos(options_.token_time.ns * tokens + jitter) +
         std::exchange(compute_extra_, {});
}

void Worker::BeginCompute(Duration time) {
  met_ = true;
  batch_due_ = world_.now() + time;
  world_.Timer(options_.place, time, TimerKind::kBatchDone, batch_number_);
}

size_t Worker::RanksNeeded() const {
  return static_cast<size_t>(loads_.at(batch_->shard).rank.size);
}

std::vector<Worker*> Worker::RanksHere() const {
  std::vector<Worker*> here;
  for (const WorkerAddress& address : loads_.at(batch_->shard).ranks) {
    Worker* const rank = world_.Find(address.incarnation);
    if (!rank || !rank->batch_ || rank->broken_.contains(rank->batch_->shard)) continue;
    const LoadShard& load = rank->loads_.at(rank->batch_->shard);
    const bool same_stage =
        load.ranks.size() == loads_.at(batch_->shard).ranks.size() &&
        load.ranks.front().incarnation == loads_.at(batch_->shard).ranks.front().incarnation;
    const bool same_parts =
        std::ranges::equal(rank->batch_->parts, batch_->parts, [](const auto& a, const auto& b) {
          return a.pipeline == b.pipeline && a.plan->id == b.plan->id;
        });
    if (same_stage && same_parts) here.push_back(rank);
  }
  return here;
}

// The last rank to arrive starts the clock for all.
void Worker::Meet() {
  const std::vector<Worker*> ranks = RanksHere();
  if (ranks.size() < RanksNeeded()) return;
  Duration time;
  for (Worker* rank : ranks) time = std::max(time, rank->ComputeTime());
  for (Worker* rank : ranks) rank->BeginCompute(time);
}

std::vector<stage::StagePart> Worker::MakeParts() const {
  std::vector<stage::StagePart> parts;
  for (const auto& part : batch_->parts) parts.push_back(part.AsStagePart());
  return parts;
}

Status Worker::RunTogether(const std::vector<Worker*>& ranks) {
  std::vector<stage::HashStage*> stages;
  std::vector<std::vector<stage::StagePart>> parts;
  std::vector<std::span<stage::StagePart>> spans;
  for (Worker* rank : ranks) {
    stages.push_back(rank->stages_.at(rank->batch_->shard).get());
    parts.push_back(rank->MakeParts());
  }
  const auto keeper = [&](size_t rank) -> stage::ActivationCachingStage& {
    return *ranks[rank]->keepers_.at(ranks[rank]->batch_->shard);
  };
  for (size_t r = 0; r < ranks.size(); ++r) spans.push_back(keeper(r).Enter(parts[r]));
  Status ran = stage::HashStage::RunRanks(stages, spans);
  while (ran.ok()) {
    for (size_t r = 0; r < ranks.size(); ++r) spans[r] = keeper(r).Next();
    if (spans.front().empty()) break;
    ran = stage::HashStage::RunRanks(stages, spans);
  }
  for (size_t r = 0; r < ranks.size() && ran.ok(); ++r) keeper(r).Leave(parts[r]);
  for (size_t r = 0; r < ranks.size() && ran.ok(); ++r) {
    auto& outputs = ranks[r]->outputs_.emplace();
    for (stage::StagePart& part : parts[r]) {
      outputs.push_back({std::move(part.output), std::move(part.result)});
    }
  }
  return ran;
}

void Worker::OnBatchTimer(TimerKind kind) {
  const size_t needed = RanksNeeded();
  if (kind == TimerKind::kCollectiveDeadline) {
    if (outputs_ || (met_ && world_.now() < batch_due_)) return;
    broken_.insert(batch_->shard);
    return EndBatch({StatusCode::kDeadlineExceeded, "a rank did not join the collective"}, {});
  }
  if (outputs_) return EndBatch(OkStatus(), std::move(*outputs_));
  std::vector<Worker*> ranks = {this};
  if (needed > 1) ranks = RanksHere();
  const bool stalled = std::ranges::any_of(
      ranks, [&](const Worker* r) { return world_.stopped(r->place()) || !r->met_; });
  if (ranks.size() < needed || stalled) {
    if (world_.now() - batch_since_ < kCollectiveDeadline) {
      return world_.Timer(options_.place, Duration::Millis(50), TimerKind::kBatchDone,
                          batch_number_);
    }
    broken_.insert(batch_->shard);
    return EndBatch(Unavailable("a rank of the collective is gone"), {});
  }
  if (const Status ran = RunTogether(ranks); !ran.ok()) {
    world_.Broken(Invariant::kPlansRun, ran.ToString());
    return EndBatch(ran, {});
  }
  for (const cluster::PartOutput& output : *outputs_) {
    if (output.result.error.ok()) continue;
    world_.Broken(Invariant::kPlansRun, output.result.error.ToString());
  }
  EndBatch(OkStatus(), std::move(*outputs_));
}

void Worker::EndBatch(const Status& status, std::vector<cluster::PartOutput> outputs) {
  if (!status.ok()) ++audit_.batches_failed;
  batch_.reset();
  outputs_.reset();
  core_.BatchEnded(status, std::move(outputs), world_.now());
  for (cluster::WorkerAction& drop : std::exchange(drops_, {})) {
    std::visit([this](auto& a) { Do(a); }, drop);
  }
  Settle();
}

}  // namespace millrace::sim::fault
