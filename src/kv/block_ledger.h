// BlockLedger: the KV memory of all workers, and how it is divided among the pools that share it.
// An account is the memory of one worker. A pool is the block pool of one pipeline: each of its
// blocks takes memory from several accounts, because a block holds the KV of all hops.
//
// What is divided are limits: how many blocks a pool may hold (block_pool.h), whether it uses them
// or not. The limits of the pools of an account never add up to more than its capacity, so the
// workers hold what was planned, however many pools there are. A pool keeps its limit when its
// blocks become free, because it probably needs them again and may find prefixes in them. When
// another pool needs memory, the ledger takes it from the pool that asked least recently. This is
// an approximation of least recently used blocks: it compares pools, and each pool gives up its own
// least recently used blocks.
//
// Pure accounting. Owned by the controller and used by its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/strong_id.h"

namespace millrace::kv {

using AccountId = StrongId<struct AccountIdTag>;
using PoolId = StrongId<struct PoolIdTag>;

class BlockLedger {
 public:
  // What one block of a pool takes from an account.
  struct Share {
    AccountId account;
    int64_t bytes_per_block = 0;
  };
  // Lowers a pool's limit to `limit` or as far as it can, and returns the pool's limit then. Must
  // not call the ledger.
  using Shrink = std::function<int(PoolId pool, int limit)>;

  explicit BlockLedger(Shrink shrink) : shrink_(std::move(shrink)) {}

  // May be less than what pools hold. Then none gets more until they hold less.
  void SetCapacity(AccountId account, int64_t bytes);
  // The worker is gone: pools no longer take memory from it.
  void CloseAccount(AccountId account);

  // Begins with a limit of 0 blocks. REQUIRES: the accounts have a capacity, each occurs once, and
  // bytes_per_block >= 1.
  void Open(PoolId pool, std::vector<Share> shares, int blocks_max);
  void Close(PoolId pool);
  // The pool takes no more blocks and gives none: it holds `limit` blocks until it is closed, on
  // these of its accounts. REQUIRES: limit <= limit(pool).
  void Freeze(PoolId pool, int limit, std::span<const AccountId> accounts);

  int limit(PoolId pool) const { return pools_.at(pool).limit; }
  int kept(PoolId pool) const { return pools_.at(pool).kept; }
  // Other pools cannot take the pool's limit below `blocks`.
  void Keep(PoolId pool, int blocks) { pools_.at(pool).kept = blocks; }
  // Raises the limit towards `limit` with memory that no pool has. Returns the new limit.
  int RaiseIfFree(PoolId pool, int limit);
  // The same, and takes memory from other pools as far as needed. False: even so the limit is lower
  // than `limit` and the pool's maximum.
  bool Raise(PoolId pool, int limit);

  // Whether the pool could have `limit` blocks if those for which `gone` is true held nothing.
  bool FitsWithout(const std::function<bool(PoolId)>& gone, PoolId pool, int limit) const;
  // Whether the two pools take memory from the same account.
  bool ShareMemory(PoolId a, PoolId b) const;
  // Held by the pools of the account, in bytes: the sum of their limits.
  int64_t held(AccountId account) const { return accounts_.at(account).held; }
  int64_t capacity(AccountId account) const { return accounts_.at(account).capacity; }
  // Recounts everything; aborts with the reason on a mismatch.
  void CheckIntegrity() const;

 private:
  struct Account {
    int64_t capacity = 0, held = 0;
    int64_t most = 0;  // that may be held: the capacity, or what was held when it became lower
    std::set<PoolId> pools;
  };
  struct Pool {
    std::vector<Share> shares;
    int blocks_max = 0, limit = 0, kept = 0;
    bool frozen = false;
    uint64_t asked = 0;  // when it last asked for memory, in calls
  };

  static int64_t BytesPerBlock(const Pool& pool, AccountId account);
  void SetLimit(Pool& pool, int limit);
  void Take(PoolId from, int blocks);
  void TakeFromOthers(PoolId to, const Share& share, int limit);

  const Shrink shrink_;
  std::map<AccountId, Account> accounts_;
  std::map<PoolId, Pool> pools_;
  std::vector<std::pair<uint64_t, PoolId>> others_;  // of one call; kept to reuse its memory
  uint64_t calls_ = 0;
};

}  // namespace millrace::kv
