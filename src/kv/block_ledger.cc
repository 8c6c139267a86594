#include "kv/block_ledger.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace millrace::kv {

void BlockLedger::SetCapacity(AccountId account, int64_t bytes) {
  Account& set = accounts_[account];
  set.capacity = bytes;
  set.most = std::max(bytes, set.held);
}

void BlockLedger::CloseAccount(AccountId account) {
  const auto closed = accounts_.extract(account);
  if (closed.empty()) return;
  for (PoolId id : closed.mapped().pools) {
    std::erase_if(pools_.at(id).shares, [&](const Share& s) { return s.account == account; });
  }
}

void BlockLedger::Open(PoolId pool, std::vector<Share> shares, int blocks_max) {
  for (const Share& share : shares) {
    MR_CHECK(share.bytes_per_block >= 1);
    MR_CHECK(accounts_.at(share.account).pools.insert(pool).second)
        << "pool " << pool << " names an account twice";
  }
  const bool fresh =
      pools_.emplace(pool, Pool{.shares = std::move(shares), .blocks_max = blocks_max}).second;
  MR_CHECK(fresh) << "pool " << pool << " is already open";
}

void BlockLedger::Close(PoolId pool) {
  Pool& closed = pools_.at(pool);
  SetLimit(closed, 0);
  for (const Share& share : closed.shares) accounts_.at(share.account).pools.erase(pool);
  pools_.erase(pool);
}

void BlockLedger::Freeze(PoolId pool, int limit, std::span<const AccountId> accounts) {
  Pool& frozen = pools_.at(pool);
  MR_CHECK(limit <= frozen.limit) << "pool " << pool << " is frozen at " << limit << " blocks";
  SetLimit(frozen, 0);
  std::erase_if(frozen.shares, [&](const Share& share) {
    const bool gone = std::ranges::find(accounts, share.account) == accounts.end();
    if (gone) accounts_.at(share.account).pools.erase(pool);
    return gone;
  });
  SetLimit(frozen, limit);
  frozen.frozen = true;
}

// REQUIRES: the pool takes memory from the account.
int64_t BlockLedger::BytesPerBlock(const Pool& pool, AccountId account) {
  return std::ranges::find(pool.shares, account, &Share::account)->bytes_per_block;
}

void BlockLedger::SetLimit(Pool& pool, int limit) {
  for (const Share& share : pool.shares) {
    accounts_.at(share.account).held += share.bytes_per_block * (limit - pool.limit);
  }
  pool.limit = limit;
}

int BlockLedger::RaiseIfFree(PoolId pool, int limit) {
  Pool& raised = pools_.at(pool);
  int64_t more = std::min(limit, raised.blocks_max) - raised.limit;
  for (const Share& share : raised.shares) {
    const Account& account = accounts_.at(share.account);
    more = std::min(more, (account.capacity - account.held) / share.bytes_per_block);
  }
  raised.asked = ++calls_;
  if (more > 0 && !raised.frozen) SetLimit(raised, raised.limit + static_cast<int>(more));
  return raised.limit;
}

bool BlockLedger::Raise(PoolId pool, int limit) {
  limit = std::min(limit, pools_.at(pool).blocks_max);
  if (RaiseIfFree(pool, limit) >= limit) return true;
  const std::vector<Share> shares = pools_.at(pool).shares;
  for (const Share& share : shares) TakeFromOthers(pool, share, limit);
  return RaiseIfFree(pool, limit) >= limit;
}

void BlockLedger::Take(PoolId from, int blocks) {
  Pool& pool = pools_.at(from);
  const int left = shrink_(from, pool.limit - blocks);
  MR_CHECK(left <= pool.limit) << "pool " << from << " grew when it was asked to shrink";
  SetLimit(pool, left);
}

// Takes memory of one account until `to` can have `limit` blocks there, from the pool that asked
// least recently first. A few pools give enough, so they are heaped and not sorted.
void BlockLedger::TakeFromOthers(PoolId to, const Share& share, int limit) {
  const Account& account = accounts_.at(share.account);
  const Pool& taker = pools_.at(to);
  const auto lacking = [&] {
    return share.bytes_per_block * (limit - taker.limit) - (account.capacity - account.held);
  };
  if (lacking() <= 0) return;
  others_.clear();
  for (PoolId id : account.pools) {
    const Pool& other = pools_.at(id);
    if (id != to && !other.frozen && other.limit > other.kept)
      others_.emplace_back(other.asked, id);
  }
  std::ranges::make_heap(others_, std::greater());
  while (!others_.empty() && lacking() > 0) {
    std::ranges::pop_heap(others_, std::greater());
    const PoolId id = others_.back().second;
    others_.pop_back();
    const Pool& other = pools_.at(id);
    const int64_t of_other = BytesPerBlock(other, share.account);
    const int64_t blocks = (lacking() + of_other - 1) / of_other;
    Take(id, static_cast<int>(std::min<int64_t>(blocks, other.limit - other.kept)));
  }
}

bool BlockLedger::FitsWithout(const std::function<bool(PoolId)>& gone, PoolId pool,
                              int limit) const {
  const Pool& wanting = pools_.at(pool);
  return limit <= wanting.blocks_max &&
         std::ranges::all_of(wanting.shares, [&](const Share& share) {
           const Account& account = accounts_.at(share.account);
           int64_t bytes = limit * share.bytes_per_block;
           for (PoolId id : account.pools) {
             const Pool& other = pools_.at(id);
             if (id != pool && !gone(id))
               bytes += other.limit * BytesPerBlock(other, share.account);
           }
           return bytes <= account.capacity;
         });
}

bool BlockLedger::ShareMemory(PoolId a, PoolId b) const {
  return std::ranges::any_of(pools_.at(a).shares, [&](const Share& share) {
    return accounts_.at(share.account).pools.contains(b);
  });
}

void BlockLedger::CheckIntegrity() const {
  std::map<AccountId, int64_t> held;
  for (const auto& [id, pool] : pools_) {
    MR_CHECK(0 <= pool.limit && pool.limit <= pool.blocks_max) << "pool " << id;
    for (const Share& share : pool.shares) {
      held[share.account] += share.bytes_per_block * pool.limit;
      MR_CHECK(accounts_.at(share.account).pools.contains(id)) << "pool " << id;
    }
  }
  for (const auto& [id, account] : accounts_) {
    MR_CHECK(held[id] == account.held)
        << "account " << id << " holds " << held[id] << " bytes, recorded " << account.held;
    MR_CHECK(account.held <= account.most)
        << "account " << id << " holds " << account.held << " bytes of " << account.capacity;
  }
}

}  // namespace millrace::kv
