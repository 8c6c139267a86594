#include "cluster/control/transfers/recoverable_kv.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {

int RecoverableKv::tokens() const {
  int most = 0;
  for (const sched::SequenceKv& sequence : kv) most = std::max(most, sequence.tokens);
  return most;
}

int64_t RecoverableKv::distinct_tokens(int block_size) const {
  std::set<BlockIndex> blocks;
  for (const sched::SequenceKv& sequence : kv) {
    blocks.insert(sequence.blocks.begin(), sequence.blocks.end());
  }
  return std::ssize(blocks) * block_size;
}

RecoverableKv& RecoverableKvStore::Leave(RequestId id, RecoverableKv kv) {
  const auto found = kv_.find(id);
  MR_CHECK(found == kv_.end() || found->second.pipeline == kv.pipeline)
      << "request " << id << " leaves KV in two pipelines";
  waiters_[kv.pipeline].insert(id);
  return kv_[id] = std::move(kv);
}

RecoverableKv* RecoverableKvStore::Find(RequestId id) {
  const auto found = kv_.find(id);
  return found == kv_.end() ? nullptr : &found->second;
}

const RecoverableKv* RecoverableKvStore::Find(RequestId id) const {
  const auto found = kv_.find(id);
  return found == kv_.end() ? nullptr : &found->second;
}

void RecoverableKvStore::Drop(RequestId id) {
  const PipelineId pipeline = kv_.extract(id).mapped().pipeline;
  const auto waiters = waiters_.find(pipeline);
  waiters->second.erase(id);
  if (!waiters->second.empty()) return;
  waiters_.erase(waiters);
  const auto lost = surviving_.extract(pipeline);
  if (lost.empty()) return;
  for (const PipelineHop& hop : lost.mapped().hops) {
    for (const WorkerAddress& rank : hop.ranks) outbox_.Send(rank.worker, ClosePipeline{pipeline});
  }
}

std::vector<RequestId> RecoverableKvStore::In(PipelineId pipeline) const {
  const auto waiters = waiters_.find(pipeline);
  if (waiters == waiters_.end()) return {};
  return {waiters->second.begin(), waiters->second.end()};
}

int RecoverableKvStore::moving() const {
  return static_cast<int>(
      std::ranges::count_if(kv_, [](const auto& entry) { return entry.second.moves; }));
}

std::vector<RequestId> RecoverableKvStore::DueForRenewal(Time now, Duration lease) {
  std::vector<RequestId> due;
  for (auto& [id, left] : kv_) {
    if (left.renewal.Due(now, lease)) due.push_back(id);
  }
  return due;
}

void RecoverableKvStore::Survives(PipelineId pipeline, std::vector<PipelineHop> hops, Time until) {
  if (!Any(pipeline)) return;
  surviving_.emplace(pipeline, Surviving{std::move(hops), until});
}

void RecoverableKvStore::Extend(PipelineId pipeline, Time until) {
  const auto found = surviving_.find(pipeline);
  if (found != surviving_.end()) found->second.until = std::max(found->second.until, until);
}

const std::vector<PipelineHop>* RecoverableKvStore::SurvivingHops(PipelineId pipeline) const {
  const auto found = surviving_.find(pipeline);
  return found == surviving_.end() ? nullptr : &found->second.hops;
}

std::vector<PipelineId> RecoverableKvStore::Expired(
    Time now, const std::function<bool(const PipelineHop&)>& there) const {
  std::vector<PipelineId> expired;
  for (const auto& [pipeline, lost] : surviving_) {
    if (now > lost.until || std::ranges::none_of(lost.hops, there)) expired.push_back(pipeline);
  }
  return expired;
}

void RecoverableKvStore::ForEachSurvivingHop(
    const std::function<void(const PipelineHop&)>& visit) const {
  for (const auto& [pipeline, lost] : surviving_) {
    for (const PipelineHop& hop : lost.hops) visit(hop);
  }
}

std::optional<PipelineId> RecoverableKvStore::AnyLost() const {
  if (surviving_.empty()) return std::nullopt;
  return surviving_.begin()->first;
}

void RecoverableKvStore::CheckIntegrity(const std::function<bool(PipelineId)>& runs,
                                        const std::function<bool(RequestId)>& requests) const {
  size_t waiters = 0;
  for (const auto& [pipeline, ids] : waiters_) {
    MR_CHECK(runs(pipeline) || surviving_.contains(pipeline)) << "KV in a pipeline that is gone";
    waiters += ids.size();
  }
  MR_CHECK(waiters == kv_.size()) << "KV is kept without a request that waits for it";
  for (const auto& [id, left] : kv_) {
    MR_CHECK(requests(id)) << "request " << id << " has left KV and has ended";
    MR_CHECK(waiters_.contains(left.pipeline) && waiters_.at(left.pipeline).contains(id))
        << "request " << id << " left KV in a pipeline that does not know it";
  }
  for (const auto& [pipeline, lost] : surviving_) {
    MR_CHECK(waiters_.contains(pipeline)) << "a lost pipeline is kept without a waiter";
  }
}

}  // namespace millrace::cluster
