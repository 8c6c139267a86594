#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::kv {
namespace {

constexpr size_t kFreedPrefetchAhead = 8;  // entries of a table's blocks that are prefetched while
                                           // it is released

}  // namespace

KvCache::KvCache(const KvOptions& options)
    : options_(options),
      device_(options.num_blocks, options.eviction),
      host_(options.num_host_blocks),
      index_(options.prefix_caching ? options.num_blocks : 0, options.block_size),
      scratch_(options.block_size),
      seen_(std::max(options.num_blocks, options.num_host_blocks), 0),
      moved_to_(seen_.size()) {
  match_.reserve(options.num_blocks);
}

BlockHandle KvCache::Take() {
  const auto allocation = device_.Allocate();
  MR_CHECK(allocation.has_value()) << "no block left; the caller must count before it allocates";
  if (allocation->evicted) index_.Erase(allocation->block.index);
  return allocation->block;
}

bool KvCache::Grow(BlockTable& table, int tokens) {
  const int missing = BlocksFor(tokens) - static_cast<int>(table.size());
  if (missing > available()) return false;
  for (int i = 0; i < missing; ++i) table.push_back(Take());
  return true;
}

int KvCache::SetLimit(int limit) {
  limit = std::clamp(limit, 0, device_.total());
  if (limit >= device_.limit()) {
    device_.RaiseLimit(limit);
    return device_.limit();
  }
  device_.LowerLimit(limit);
  while (device_.limit() > limit) {
    const auto evicted = device_.EvictOne();
    if (!evicted) break;
    index_.Erase(*evicted);
    device_.LowerLimit(limit);
  }
  return device_.limit();
}

bool KvCache::FirstSight(BlockIndex block) { return std::exchange(seen_[block], round_) != round_; }

void KvCache::Fork(const BlockTable& from, BlockTable& to) {
  MR_CHECK(to.empty()) << "fork into a table that holds blocks";
  to.insert(to.end(), from.begin(), from.end());
  NewRound();
  for (BlockHandle block : from) {
    if (FirstSight(block.index)) device_.AddRef(block);
  }
}

void KvCache::Forget(BlockIndex block) {
  if (!options_.prefix_caching || !index_.Contains(block)) return;
  index_.Erase(block);
  device_.SetCached(block, false);
}

bool KvCache::MakeWritable(BlockTable& table, int i, std::vector<BlockCopy>& copies) {
  const BlockHandle old = table[i];
  if (!NeedsCopy(table, i)) {
    Forget(old.index);
    return false;
  }
  table[i] = Take();
  copies.push_back({old.index, table[i].index});
  device_.DropRef(old, std::nullopt);
  return true;
}

void KvCache::Release(BlockPool& pool, BlockTable& table, std::optional<StepId> in_use_by) {
  NewRound();
  for (size_t i = table.size(); i-- > 0;) {
    if (i >= kFreedPrefetchAhead) {
      const BlockIndex soon = table[i - kFreedPrefetchAhead].index;
      pool.Prefetch(soon);
      __builtin_prefetch(&seen_[soon], 1);
    }
    if (FirstSight(table[i].index)) pool.DropRef(table[i], in_use_by);
  }
  table.clear();
}

void KvCache::Free(BlockTable& table, std::optional<StepId> in_use_by) {
  Release(device_, table, in_use_by);
}

int KvCache::CountDistinct(std::span<const BlockTable* const> tables) {
  NewRound();
  int distinct = 0;
  for (const BlockTable* table : tables) {
    for (BlockHandle block : *table) distinct += FirstSight(block.index) ? 1 : 0;
  }
  return distinct;
}

bool KvCache::Move(BlockPool& from, BlockPool& to, std::span<const SwapMove> moves,
                   std::vector<BlockCopy>& copies) {
  NewRound();
  int distinct = 0;
  for (const SwapMove& move : moves) {
    for (BlockHandle block : *move.from) distinct += FirstSight(block.index) ? 1 : 0;
  }
  if (distinct > to.available()) return false;
  NewRound();
  for (const SwapMove& move : moves) {
    MR_CHECK(move.to->empty()) << "swap into a table that holds blocks";
    for (BlockHandle block : *move.from) {
      if (FirstSight(block.index)) {
        const auto allocation = to.Allocate();
        if (allocation->evicted) index_.Erase(allocation->block.index);
        moved_to_[block.index] = allocation->block;
        copies.push_back({block.index, allocation->block.index});
      } else {
        to.AddRef(moved_to_[block.index]);
      }
      move.to->push_back(moved_to_[block.index]);
    }
  }
  for (const SwapMove& move : moves) Release(from, *move.from, move.in_use_by);
  return true;
}

bool KvCache::SwapOut(std::span<const SwapMove> moves, std::vector<BlockCopy>& copies) {
  return Move(device_, host_, moves, copies);
}

bool KvCache::SwapIn(std::span<const SwapMove> moves, std::vector<BlockCopy>& copies) {
  return Move(host_, device_, moves, copies);
}

PrefixChain KvCache::NewChain(std::string_view salt) {
  PrefixChain chain;
  chain.epoch = epoch_;
  if (options_.prefix_caching) chain.root = hasher_.Root(options_.identity, epoch_, salt);
  return chain;
}

void KvCache::NameBlocks(PrefixChain& chain, const TokenView& tokens, int blocks) {
  const int size = options_.block_size;
  while (std::ssize(chain.nodes) < blocks) {
    const int i = static_cast<int>(chain.nodes.size());
    const Digest& parent = i == 0 ? chain.root : chain.nodes.back().name;
    const Digest name = options_.hashes_collide
                            ? Digest{}
                            : hasher_.Block(parent, tokens.Slice(i * size, size, scratch_));
    chain.nodes.push_back({name});
  }
}

PrefixLink KvCache::ParentOf(const PrefixChain& chain, int block) const {
  return block == 0 ? RootLink(chain.root) : chain.nodes[block - 1].link;
}

PrefixMatch KvCache::Match(PrefixChain& chain, const TokenView& tokens, int tokens_max) {
  match_.clear();
  PrefixMatch match;
  if (!options_.prefix_caching || chain.epoch != epoch_) return match;
  const int size = options_.block_size;
  const int blocks = tokens_max / size;
  NameBlocks(chain, tokens, blocks);
  PrefixLink parent = RootLink(chain.root);
  for (; match.blocks < blocks; ++match.blocks) {
    const auto hit = index_.Find(chain.nodes[match.blocks].name, parent,
                                 tokens.Slice(match.blocks * size, size, scratch_));
    if (!hit) break;
    parent = hit->link;
    match_.push_back(*hit);
    match.unowned += device_.state(hit->block) == BlockState::kCached ? 1 : 0;
  }
  return match;
}

int KvCache::CachedTokens(std::span<const TokenId> prompt, std::string_view salt,
                          PrefixChain& names) {
  if (!prefix_caching()) return 0;
  if (!IsCurrent(names)) names = NewChain(salt);
  const PrefixMatch match =
      Match(names, {.prompt = prompt, .output = {}}, static_cast<int>(prompt.size()) - 1);
  return match.blocks * block_size();
}

void KvCache::TakeMatch(PrefixChain& chain, BlockTable& table) {
  MR_CHECK(table.empty()) << "a prefix is taken into an empty table";
  for (size_t i = 0; i < match_.size(); ++i) {
    table.push_back(device_.HandleOf(match_[i].block));
    device_.AddHit(table.back());
    chain.nodes[i].link = match_[i].link;
  }
  chain.indexed = static_cast<int>(match_.size());
}

void KvCache::Index(PrefixChain& chain, const TokenView& tokens, const BlockTable& table,
                    int computed) {
  if (!options_.prefix_caching || chain.epoch != epoch_) return;
  const int size = options_.block_size;
  const int full = computed / size;
  if (full <= chain.indexed) return;
  NameBlocks(chain, tokens, full);
  for (; chain.indexed < full; ++chain.indexed) {
    const int i = chain.indexed;
    const auto block_tokens = tokens.Slice(i * size, size, scratch_);
    const PrefixLink parent = ParentOf(chain, i);
    PrefixChain::Node& node = chain.nodes[i];
    if (const auto hit = index_.Find(node.name, parent, block_tokens)) {
      node.link = hit->link;
    } else {
      // The block may be indexed under a parent that was evicted since; rename it.
      if (index_.Contains(table[i].index)) index_.Erase(table[i].index);
      node.link = index_.Insert(table[i].index, node.name, parent, block_tokens);
      device_.SetCached(table[i].index, true);
    }
  }
}

void KvCache::ResetPrefixes() {
  ++epoch_;
  if (!options_.prefix_caching) return;
  for (BlockIndex i = 0; i < device_.total(); ++i) Forget(i);
}

void KvCache::CheckIntegrity(std::span<const BlockTable* const> device_tables,
                             std::span<const BlockTable* const> host_tables) const {
  const auto check = [](const BlockPool& pool, std::span<const BlockTable* const> tables) {
    std::vector<int> refs(pool.total(), 0);
    std::vector<size_t> last_table(pool.total(), 0);
    for (size_t t = 0; t < tables.size(); ++t) {
      for (BlockHandle block : *tables[t]) {
        MR_CHECK(pool.IsCurrent(block))
            << "a table names block " << block.index << ", which was reallocated";
        if (std::exchange(last_table[block.index], t + 1) != t + 1) ++refs[block.index];
      }
    }
    pool.CheckIntegrity(refs);
  };
  check(device_, device_tables);
  check(host_, host_tables);
  int indexed = 0;
  for (BlockIndex i = 0; options_.prefix_caching && i < device_.total(); ++i) {
    if (!index_.Contains(i)) continue;
    ++indexed;
    MR_CHECK(device_.state(i) != BlockState::kFree)
        << "free block " << i << " is in the prefix index";
  }
  MR_CHECK(indexed == index_.size());
  MR_CHECK(!options_.prefix_caching || device_.count(BlockState::kCached) <= indexed);
}

}  // namespace millrace::kv
