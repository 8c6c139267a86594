#include "cluster/control/kv_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// Of one ReturnBlocks. A worker holds its lock while it gives their memory back.
constexpr ptrdiff_t kBlocksPerMessage = 1 << 10;

kv::AccountId AccountOf(WorkerId worker) { return kv::AccountId(worker.value()); }

// What a pipeline without reservations keeps: the blocks in use, and room to grow.
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

void KvMemory::Open(PipelineId pipeline, std::span<const Rank> ranks, int blocks_max, bool reserves,
                    sched::Scheduler& scheduler) {
  Pool pool{.scheduler = &scheduler, .max = blocks_max, .limit = blocks_max, .reserves = reserves};
  std::vector<kv::BlockLedger::Share> shares;
  for (const Rank& rank : ranks) {
    ledger_.SetCapacity(AccountOf(rank.worker), rank.kv_bytes);
    shares.push_back({AccountOf(rank.worker), rank.bytes_per_block});
    pool.workers.push_back(rank.worker);
  }
  ledger_.Open(PoolOf(pipeline), std::move(shares), blocks_max);
  if (!reserves) ledger_.Raise(PoolOf(pipeline), blocks_max);
  Apply(pipeline, pools_.emplace(pipeline, std::move(pool)).first->second);
}

void KvMemory::Close(PipelineId pipeline) {
  if (!pools_.contains(pipeline)) return;
  ledger_.Close(PoolOf(pipeline));
  pools_.erase(pipeline);
  shrunk_.erase(pipeline);
  starved_.erase(pipeline);
}

void KvMemory::Retire(PipelineId pipeline) {
  Pool& pool = pools_.at(pipeline);
  pool.retiring = true;
  EndReservations(pipeline, pool);
}

void KvMemory::EndReservations(PipelineId pipeline, Pool& pool) {
  pool.reserves = false;
  pool.requests.clear();
  pool.reserved = 0;
  ledger_.Keep(PoolOf(pipeline), 0);
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

void KvMemory::LoseWorker(WorkerId worker) { ledger_.CloseAccount(AccountOf(worker)); }

// First memory that no pipeline has, so that cached blocks stay; then what the pipeline has beyond
// its reservations; then what others have.
bool KvMemory::Reserve(PipelineId pipeline, RequestId request, int blocks) {
  Pool& pool = pools_.at(pipeline);
  if (!pool.reserves) return true;
  if (blocks > pool.max) return true;  // the scheduler refuses it
  const int needed = pool.reserved + blocks;
  if (needed > pool.max) return false;  // some request of the pipeline must end first
  ledger_.RaiseIfFree(PoolOf(pipeline), ledger_.limit(PoolOf(pipeline)) + blocks);
  const bool fits =
      ledger_.limit(PoolOf(pipeline)) >= needed || ledger_.Raise(PoolOf(pipeline), needed);
  Apply(pipeline, pool);
  if (!fits) {
    const bool waits_for_requests = ledger_.FitsWithout(
        [&](kv::PoolId id) { return pools_.at(PipelineId(id.value())).reserves; }, PoolOf(pipeline),
        blocks);
    if (!waits_for_requests) starved_.insert(pipeline);
    return false;
  }
  const bool fresh = pool.requests.emplace(request, blocks).second;
  MR_CHECK(fresh) << "request " << request << " has reserved blocks already";
  pool.reserved += blocks;
  ledger_.Keep(PoolOf(pipeline), pool.reserved);
  return true;
}

void KvMemory::Release(PipelineId pipeline, RequestId request) {
  const auto there = pools_.find(pipeline);
  if (there == pools_.end()) return;
  Pool& pool = there->second;
  const auto found = pool.requests.extract(request);
  if (found.empty()) return;
  pool.reserved -= found.mapped();
  ledger_.Keep(PoolOf(pipeline), pool.reserved);
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

uint64_t KvMemory::BeforeSteps(PipelineId pipeline) {
  Pool& pool = pools_.at(pipeline);
  if (pool.GrowsOnDemand()) Grow(pipeline, pool);
  SendReturned(pipeline, pool);
  return pool.returns;
}

void KvMemory::AfterSteps(PipelineId pipeline) {
  const Pool& pool = pools_.at(pipeline);
  if (pool.GrowsOnDemand() && pool.scheduler->steps_in_flight() == 0 &&
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
  if (!pool.reserves) limit = std::max(limit, KeptBy(*pool.scheduler));
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
    for (WorkerId worker : pool.workers) {
      outbox_.Send(worker, ReturnBlocks{pipeline, pool.returns, {from, end}});
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
