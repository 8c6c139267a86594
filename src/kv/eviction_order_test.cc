#include "kv/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "kv/kv_cache.h"

namespace millrace::kv {
namespace {

constexpr int kBlocks = 20;

// The orders as sentences: all that was added, oldest first, and what the order makes of it.
struct Added {
  BlockIndex block = 0;
  bool hit = false;
};
using NaiveOrder = std::vector<BlockIndex> (*)(std::vector<Added>& oldest_first);

std::vector<BlockIndex> NaiveLru(std::vector<Added>& added) {
  std::vector<BlockIndex> order;
  for (const Added& a : added) order.push_back(a.block);
  return order;
}

std::vector<BlockIndex> NaiveSlru(std::vector<Added>& added) {
  while (std::ranges::count(added, true, &Added::hit) > kBlocks * 4 / 5) {
    const auto oldest = std::ranges::find(added, true, &Added::hit);
    const Added demoted{oldest->block, false};
    added.erase(oldest);
    added.push_back(demoted);
  }
  std::vector<BlockIndex> order;
  for (const bool hit : {false, true}) {
    for (const Added& a : added) {
      if (a.hit == hit) order.push_back(a.block);
    }
  }
  return order;
}

TEST(EvictionOrder, EachEqualsItsNaiveModel) {
  const std::map<std::string, NaiveOrder> models = {{"lru", NaiveLru}, {"slru", NaiveSlru}};
  for (const std::string& name : EvictionOrderNames()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(models.contains(name)) << "an order without a naive model";
    Rng rng(7);
    std::vector<BlockEntry> entries(kBlocks);
    const auto order = MakeEvictionOrder(name, entries);
    std::vector<Added> added;
    for (int i = 0; i < 20'000 * TestScale(); ++i) {
      const auto block = static_cast<BlockIndex>(rng.Between(0, kBlocks - 1));
      if (std::erase_if(added, [&](const Added& a) { return a.block == block; }) > 0) {
        order->Remove(block);
      } else if (rng.Between(0, 9) > 0) {
        entries[block].hits = static_cast<uint8_t>(std::max<int64_t>(0, rng.Between(-1, 9)));
        added.push_back({block, entries[block].hits > 0});
        order->Add(block);
      } else if (order->First() != BlockList::kEnd) {
        const BlockIndex evicted = order->First();
        order->Remove(evicted);
        std::erase_if(added, [&](const Added& a) { return a.block == evicted; });
      }
      const std::vector<BlockIndex> expected = models.at(name)(added);
      std::vector<BlockIndex> all;
      order->ForEach([&](BlockIndex b) { all.push_back(b); });
      ASSERT_EQ(all, expected);
      ASSERT_EQ(order->First(), expected.empty() ? BlockList::kEnd : expected.front());
    }
  }
}

TEST(EvictionOrder, IsUnknownByAnotherName) { EXPECT_EQ(MakeEvictionOrder("fifo", {}), nullptr); }

// How many tokens of a prompt that came twice are cached after a crowd of prompts that came once.
int CachedAfterACrowd(const char* eviction) {
  KvCache kv({.block_size = 2, .num_blocks = 8, .eviction = eviction});
  const auto run = [&](const std::vector<TokenId>& prompt) {
    const TokenView view{prompt, {}};
    PrefixChain chain = kv.NewChain("");
    BlockTable table;
    kv.Match(chain, view, view.size() - 1);
    kv.TakeMatch(chain, table);
    EXPECT_TRUE(kv.Grow(table, view.size()));
    kv.Index(chain, view, table, view.size());
    kv.Free(table, std::nullopt);
  };
  const std::vector<TokenId> shared = {1, 1, 1, 1, 1};
  run(shared);
  run(shared);
  for (TokenId once = 10; once < 20; ++once) run(std::vector<TokenId>(5, once));
  PrefixChain names;
  return kv.CachedTokens(shared, "", names);
}

TEST(EvictionOrder, SegmentsKeepWhatIsSharedFromACrowd) {
  EXPECT_EQ(CachedAfterACrowd("lru"), 0);
  EXPECT_EQ(CachedAfterACrowd("slru"), 4);
}

}  // namespace
}  // namespace millrace::kv
