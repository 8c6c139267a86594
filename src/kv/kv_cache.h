// KvCache: the KV ledger of one instance. It combines the device pool, the host (swap) pool and the
// prefix index into the operations on block tables that a scheduler needs: grow, fork, make
// writable (copy-on-write), free, swap, match and index prefixes (vLLM section 4). It sees token
// ids and counts, never a request.
//
// It decides and stages obey: required copies are appended to lists that travel in the StepPlan.
// Operations that need blocks are all or nothing. Owned and called by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/step_plan.h"
#include "kv/block.h"
#include "kv/block_hash.h"
#include "kv/block_pool.h"
#include "kv/eviction_order.h"
#include "kv/prefix_index.h"
#include "kv/token_view.h"

namespace millrace::kv {

struct KvOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  bool prefix_caching = true;
  std::string identity;  // what KV content depends on besides tokens: model, type, rope scaling
  std::string eviction{kLru};   // the name of an order (eviction_order.h)
  bool hashes_collide = false;  // for tests: every block has the same name
};

// How many of a sequence's blocks have names, and how many are in the prefix index. Survives
// preemption, because existing tokens never change.
struct PrefixChain {
  struct Node {
    Digest name;
    PrefixLink link = 0;  // valid below `indexed`
  };
  Digest root;
  uint64_t epoch = 0;       // of the cache when the chain began; 0: not begun
  std::vector<Node> nodes;  // of full blocks, as far as computed
  int indexed = 0;          // leading blocks matched or inserted since the table was last empty
};

struct PrefixMatch {
  int blocks = 0;
  int unowned = 0;  // of these, blocks without an owner, which Allocate could have reused
};

struct SwapMove {
  BlockTable* from = nullptr;
  BlockTable* to = nullptr;
  std::optional<StepId> in_use_by;
};

class KvCache {
 public:
  explicit KvCache(const KvOptions& options);

  int block_size() const { return options_.block_size; }
  int BlocksFor(int tokens) const {
    return (tokens + options_.block_size - 1) / options_.block_size;
  }
  // BlocksFor(tokens) <= table.size() without a division; called for every token of a decode.
  bool Holds(const BlockTable& table, int tokens) const {
    return std::cmp_greater_equal(table.size() * options_.block_size, tokens);
  }
  const BlockPool& device() const { return device_; }
  const BlockPool& host() const { return host_; }
  BlockPool& device() { return device_; }
  int available() const { return device_.available(); }
  // Available once the steps in flight end.
  int soon_available() const {
    return device_.available() + device_.count(BlockState::kPendingFree);
  }

  // Appends blocks until the table holds `tokens`. Returns false and changes nothing when too few
  // blocks are available.
  bool Grow(BlockTable& table, int tokens);
  // `to` shares the blocks of `from`; a block that a table repeats counts once.
  void Fork(const BlockTable& from, BlockTable& to);
  // Whether writing table[i] needs a copy first, because another table also names it.
  bool NeedsCopy(const BlockTable& table, int i) const { return device_.refs(table[i].index) > 1; }
  // Makes table[i] exclusive to this table (copy-on-write, vLLM section 4.4) and removes it from
  // the prefix index. True when it was replaced: the copy is appended to `copies`. REQUIRES: a
  // block available if NeedsCopy.
  bool MakeWritable(BlockTable& table, int i, std::vector<BlockCopy>& copies);
  // Releases the blocks from the end and empties the table.
  void Free(BlockTable& table, std::optional<StepId> in_use_by);
  // The same in the host pool. Steps run in order, so no step in flight can delay it there.
  void FreeHost(BlockTable& table) { Release(host_, table, std::nullopt); }
  // Sets the most device blocks that may be held (block_pool.h). A lower limit takes free blocks
  // and then cached ones in the eviction order, but none in use. Returns the new limit.
  int SetLimit(int limit);
  // All steps up to `step` have ended.
  void CompleteSteps(StepId step) { device_.CompleteSteps(step); }

  // Moves tables between the pools as one group, a shared block once. Returns false and changes
  // nothing when the other pool has too few blocks.
  bool SwapOut(std::span<const SwapMove> moves, std::vector<BlockCopy>& copies);
  bool SwapIn(std::span<const SwapMove> moves, std::vector<BlockCopy>& copies);
  // Distinct blocks that the tables name.
  int CountDistinct(std::span<const BlockTable* const> tables);

  bool prefix_caching() const { return options_.prefix_caching; }
  PrefixChain NewChain(std::string_view salt);
  // False for a chain that was not started, or was started before the last reset.
  bool IsCurrent(const PrefixChain& chain) const { return chain.epoch == epoch_; }
  // The longest indexed prefix of at most `tokens_max` tokens, in full blocks.
  PrefixMatch Match(PrefixChain& chain, const TokenView& tokens, int tokens_max);
  // How many leading tokens of a prompt are indexed, in whole blocks and without its last token,
  // which is always computed. `names` keeps the names of its blocks between calls.
  int CachedTokens(std::span<const TokenId> prompt, std::string_view salt, PrefixChain& names);
  // Puts the blocks of the last Match into an empty table. Call it before allocating anything.
  void TakeMatch(PrefixChain& chain, BlockTable& table);
  // Indexes the table's blocks that are full up to `computed` tokens. A prefix that is already
  // indexed keeps its first block.
  void Index(PrefixChain& chain, const TokenView& tokens, const BlockTable& table, int computed);
  // Nothing cached so far will be hit again; tables in use keep their blocks.
  void ResetPrefixes();
  const PrefixIndex& index() const { return index_; }

  // Conservation: every block in one state, reference counts equal to the tables that name the
  // block.
  void CheckIntegrity(std::span<const BlockTable* const> device_tables,
                      std::span<const BlockTable* const> host_tables) const;

 private:
  BlockHandle Take();
  bool Move(BlockPool& from, BlockPool& to, std::span<const SwapMove> moves,
            std::vector<BlockCopy>& copies);
  void Release(BlockPool& pool, BlockTable& table, std::optional<StepId> in_use_by);
  void NameBlocks(PrefixChain& chain, const TokenView& tokens, int blocks);
  PrefixLink ParentOf(const PrefixChain& chain, int block) const;
  void Forget(BlockIndex block);
  // True the first time in a round that a block is seen.
  bool FirstSight(BlockIndex block);
  void NewRound() { ++round_; }

  KvOptions options_;
  BlockPool device_;
  BlockPool host_;
  PrefixIndex index_;
  BlockHasher hasher_;
  uint64_t epoch_ = 1;
  std::vector<PrefixIndex::Hit> match_;
  std::vector<TokenId> scratch_;       // one block
  std::vector<uint64_t> seen_;         // round in which a block was last seen
  std::vector<BlockHandle> moved_to_;  // valid for blocks seen in this round
  uint64_t round_ = 0;
};

}  // namespace millrace::kv
