#include "cluster/control/layout/kv_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// Of one ReturnBlocks. A worker holds its lock while it gives their memory back.
constexpr ptrdiff_t kBlocksPerMessage = 1 << 10;

kv::AccountId AccountOf(WorkerId worker) { return kv::AccountId(worker.value()); }

// What a pipeline keeps without reservations: the blocks in use, and room to grow.
int KeptBy(const sched::Scheduler& scheduler) {
  const int in_use = scheduler.blocks_in_use();
  return in_use + in_use / 8 + 1;
}

}  // namespace

int BlocksAlone(const Layout& layout, const Route& route, const sched::SchedulerOptions& options) {
  int64_t tokens = std::numeric_limits<int64_t>::max();
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout.stages[static_cast<size_t>(hop.stage)];
    tokens = std::min(tokens, stage.KvTokenLayers() / hop.layers.size());
  }
  // At most what all sequences can fill at their maximum length, with one step at every hop.
  const int64_t sequences_max = int64_t{options.max_num_seqs} * std::ssize(route);
  const int64_t longest = (options.max_model_len + options.block_size - 1) / options.block_size;
  const int64_t most =
      options.num_blocks > 0 ? options.num_blocks : (longest + 1) * (sequences_max + 1);
  const int64_t blocks = std::min(tokens / options.block_size, most);
  return static_cast<int>(std::min<int64_t>(blocks, std::numeric_limits<int>::max() / 2));
}

std::vector<KvMemory::Rank> KvMemory::RanksOf(const Layout& layout, const Route& route,
                                              int block_size) {
  std::vector<Rank> ranks;
  for (const Hop& hop : route) {
    for (const Slot& slot : layout.stages[static_cast<size_t>(hop.stage)].ranks) {
      const int64_t token = std::max<int64_t>(1, slot.facts.kv_bytes_per_token_layer);
      ranks.push_back({*slot.worker, slot.facts.kv_bytes, token * hop.layers.size() * block_size});
    }
  }
  return ranks;
}

KvMemory::KvMemory(Outbox& outbox)
    : outbox_(outbox), ledger_([this](kv::PoolId pool, int limit) {
        return Shrink(PipelineId(pool.value()), limit);
      }) {}

void KvMemory::Open(PipelineId pipeline, std::span<const Rank> ranks, int blocks_max, bool shares,
                    sched::Scheduler& scheduler) {
  Pool pool{.scheduler = &scheduler,
            .ranks = {ranks.begin(), ranks.end()},
            .max = blocks_max,
            .limit = blocks_max,
            .shares = shares};
  std::vector<kv::BlockLedger::Share> parts;
  for (const Rank& rank : ranks) {
    ledger_.SetCapacity(AccountOf(rank.worker), rank.kv_bytes);
    parts.push_back({AccountOf(rank.worker), rank.bytes_per_block});
    claimed_.emplace(rank.worker, 0);
  }
  ledger_.Open(PoolOf(pipeline), std::move(parts), blocks_max);
  if (!shares) ledger_.Raise(PoolOf(pipeline), blocks_max);
  Apply(pipeline, pools_.emplace(pipeline, std::move(pool)).first->second);
}

void KvMemory::Close(PipelineId pipeline) {
  const auto found = pools_.find(pipeline);
  if (found == pools_.end()) return;
  Claim(found->second, 0);
  ledger_.Close(PoolOf(pipeline));
  pools_.erase(found);
  shrunk_.erase(pipeline);
  starved_.erase(pipeline);
}

void KvMemory::Retire(PipelineId pipeline) {
  Pool& pool = pools_.at(pipeline);
  pool.retiring = true;
  EndReservations(pipeline, pool);
}

void KvMemory::EndReservations(PipelineId pipeline, Pool& pool) {
  pool.shares = false;
  pool.requests.clear();
  pool.reserved = 0;
  pool.used = pool.scheduler->blocks_in_use();
  Claim(pool, pool.used);
  ledger_.Keep(PoolOf(pipeline), 0);
}

// The pool's part of what is claimed on its workers.
void KvMemory::Claim(Pool& pool, int blocks) {
  const int more = blocks - std::exchange(pool.claimed, blocks);
  if (more == 0) return;
  for (const Rank& rank : pool.ranks) {
    const auto worker = claimed_.find(rank.worker);
    if (worker != claimed_.end()) worker->second += more * rank.bytes_per_block;
  }
}

int64_t KvMemory::claimed(WorkerId worker) const {
  const auto found = claimed_.find(worker);
  return found == claimed_.end() ? 0 : found->second;
}

void KvMemory::Survive(PipelineId pipeline, std::span<const PipelineHop> survivors) {
  Pool& pool = pools_.at(pipeline);
  EndReservations(pipeline, pool);
  pool.limit = pool.scheduler->LimitBlocks(0);
  std::vector<kv::AccountId> accounts;
  for (const PipelineHop& hop : survivors) {
    for (const WorkerAddress& rank : hop.ranks) accounts.push_back(AccountOf(rank.worker));
  }
  ledger_.Freeze(PoolOf(pipeline), pool.limit, accounts);
  SendReturned(pipeline, pool);
  pool.scheduler = nullptr;
  shrunk_.erase(pipeline);
  starved_.erase(pipeline);
}

void KvMemory::LoseWorker(WorkerId worker) {
  claimed_.erase(worker);
  ledger_.CloseAccount(AccountOf(worker));
}

// First memory that no pipeline has, so that cached blocks stay; then what the pipeline has beyond
// its reservations; then what others have.
bool KvMemory::Reserve(PipelineId pipeline, RequestId request, int blocks) {
  Pool& pool = pools_.at(pipeline);
  const int needed = pool.reserved + blocks;
  if (pool.shares && blocks <= pool.max) {  // the scheduler refuses more
    if (needed > pool.max) return false;    // some request of the pipeline must end first
    ledger_.RaiseIfFree(PoolOf(pipeline), ledger_.limit(PoolOf(pipeline)) + blocks);
    const bool fits =
        ledger_.limit(PoolOf(pipeline)) >= needed || ledger_.Raise(PoolOf(pipeline), needed);
    Apply(pipeline, pool);
    if (!fits) {
      const bool waits_for_requests = ledger_.FitsWithout(
          [&](kv::PoolId id) { return pools_.at(PipelineId(id.value())).shares; }, PoolOf(pipeline),
          blocks);
      if (!waits_for_requests) starved_.insert(pipeline);
      return false;
    }
    ledger_.Keep(PoolOf(pipeline), needed);
  }
  const bool fresh = pool.requests.emplace(request, blocks).second;
  MR_CHECK(fresh) << "request " << request << " has reserved blocks already";
  pool.reserved = needed;
  Claim(pool, std::max(pool.reserved, pool.used));
  return true;
}

void KvMemory::Release(PipelineId pipeline, RequestId request) {
  const auto there = pools_.find(pipeline);
  if (there == pools_.end()) return;
  Pool& pool = there->second;
  const auto found = pool.requests.extract(request);
  if (found.empty()) return;
  pool.reserved -= found.mapped();
  if (pool.shares) ledger_.Keep(PoolOf(pipeline), pool.reserved);
  Claim(pool, std::max(pool.reserved, pool.used));
}

void KvMemory::Grow(PipelineId pipeline, Pool& pool) {
  int wanted = pool.max;
  if (pool.retiring) {
    const int kept = KeptBy(*pool.scheduler);
    if (pool.limit >= kept) return;
    wanted = 2 * kept - pool.scheduler->blocks_in_use();
  }
  ledger_.Raise(PoolOf(pipeline), wanted);
  Apply(pipeline, pool);
}

// Requests have grown beyond what they reserved, or are about to.
void KvMemory::GrowBeyondReserved(PipelineId pipeline, Pool& pool) {
  pool.used = pool.scheduler->blocks_in_use();
  Claim(pool, std::max(pool.reserved, pool.used));
  const int wanted = std::min(KeptBy(*pool.scheduler), pool.max);
  if (wanted <= pool.limit) return;
  ledger_.Raise(PoolOf(pipeline), wanted);
  Apply(pipeline, pool);
}

uint64_t KvMemory::BeforeSteps(PipelineId pipeline) {
  Pool& pool = pools_.at(pipeline);
  if (pool.GrowsOnDemand()) Grow(pipeline, pool);
  if (pool.shares) GrowBeyondReserved(pipeline, pool);
  SendReturned(pipeline, pool);
  return pool.returns;
}

void KvMemory::AfterSteps(PipelineId pipeline) {
  const Pool& pool = pools_.at(pipeline);
  if (pool.limit < pool.max && pool.scheduler->steps_in_flight() == 0 &&
      pool.scheduler->LacksBlocks()) {
    starved_.insert(pipeline);
  }
}

std::set<PipelineId> KvMemory::EndRound() {
  for (PipelineId id : std::exchange(shrunk_, {})) SendReturned(id, pools_.at(id));
  return std::exchange(starved_, {});
}

std::optional<PipelineId> KvMemory::GivesWayTo(PipelineId pipeline) const {
  std::optional<PipelineId> retiring;
  for (const auto& [id, pool] : pools_) {
    if (!ShareMemory(pipeline, id)) continue;
    if (pool.scheduler == nullptr) return id;
    if (pool.retiring && !retiring) retiring = id;
  }
  return retiring;
}

void KvMemory::Apply(PipelineId pipeline, Pool& pool) {
  const int limit = ledger_.limit(PoolOf(pipeline));
  if (limit == pool.limit) return;
  pool.limit = pool.scheduler->LimitBlocks(limit);
  MR_CHECK(pool.limit == limit) << "pipeline " << pipeline << " holds " << pool.limit
                                << " blocks and may hold " << limit;
}

int KvMemory::Shrink(PipelineId pipeline, int limit) {
  Pool& pool = pools_.at(pipeline);
  if (!pool.shares) limit = std::max(limit, KeptBy(*pool.scheduler));
  if (limit >= pool.limit) return pool.limit;
  pool.limit = pool.scheduler->LimitBlocks(limit);
  shrunk_.insert(pipeline);
  return pool.limit;
}

void KvMemory::SendReturned(PipelineId pipeline, Pool& pool) {
  const std::vector<BlockIndex> returned = pool.scheduler->TakeReturned();
  for (auto from = returned.begin(); from != returned.end();) {
    const auto end = from + std::min(kBlocksPerMessage, returned.end() - from);
    ++pool.returns;
    for (const Rank& rank : pool.ranks) {
      outbox_.Send(rank.worker, ReturnBlocks{pipeline, pool.returns, {from, end}});
    }
    from = end;
  }
}

void KvMemory::CheckIntegrity() const {
  ledger_.CheckIntegrity();
  for (const auto& [id, pool] : pools_) {
    MR_CHECK(pool.limit == ledger_.limit(PoolOf(id))) << "pipeline " << id;
    int reserved = 0;
    for (const auto& [request, blocks] : pool.requests) reserved += blocks;
    MR_CHECK(reserved == pool.reserved) << "pipeline " << id;
    if (pool.scheduler == nullptr) continue;
    MR_CHECK(pool.scheduler->blocks_in_use() <= pool.limit)
        << "pipeline " << id << " uses " << pool.scheduler->blocks_in_use() << " blocks of "
        << pool.limit;
  }
}

}  // namespace millrace::cluster
