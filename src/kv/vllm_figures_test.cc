// The examples of the vLLM paper (SOSP'23 section 4, figures 6 to 9) as block tables; block size 4.
#include <gtest/gtest.h>

#include <set>

#include "kv/kv_cache.h"

namespace millrace::kv {
namespace {

KvCache Pool(int num_blocks) {
  return KvCache({.block_size = 4, .num_blocks = num_blocks, .prefix_caching = false});
}

std::vector<BlockIndex> Indices(const BlockTable& table) {
  std::vector<BlockIndex> indices;
  for (BlockHandle block : table) indices.push_back(block.index);
  return indices;
}

// Figure 6: a prompt of 7 tokens takes two blocks, 4 and 3 filled; the first generated token fills
// the second block, the next one opens a third. At most one block is partly filled.
TEST(VllmFigure6, BlockTableTranslation) {
  KvCache kv = Pool(9);
  BlockTable table;
  ASSERT_TRUE(kv.Grow(table, 7));
  EXPECT_EQ(Indices(table), (std::vector<BlockIndex>{0, 1}));
  ASSERT_TRUE(kv.Grow(table, 8));
  EXPECT_EQ(table.size(), 2u);
  ASSERT_TRUE(kv.Grow(table, 9));
  EXPECT_EQ(Indices(table), (std::vector<BlockIndex>{0, 1, 2}));
  EXPECT_EQ(kv.available(), 6);
}

// Figure 7: two requests at once; their blocks interleave in the pool and never overlap.
TEST(VllmFigure7, TwoRequestsShareThePool) {
  KvCache kv = Pool(9);
  BlockTable a, b;
  ASSERT_TRUE(kv.Grow(a, 7));  // Four score and seven years ago our
  ASSERT_TRUE(kv.Grow(b, 6));  // It was the best of times
  ASSERT_TRUE(kv.Grow(a, 9));  // ... fathers brought
  EXPECT_EQ(Indices(a), (std::vector<BlockIndex>{0, 1, 4}));
  EXPECT_EQ(Indices(b), (std::vector<BlockIndex>{2, 3}));
  kv.Free(a, std::nullopt);
  EXPECT_EQ(kv.available(), 7);
  ASSERT_TRUE(kv.Grow(b, 4 * 9));
  EXPECT_EQ(kv.available(), 0);
}

// Figure 8: two samples of one prompt name the same two blocks. The one that writes first into the
// last block gets a copy; the other then owns the old block and writes in place.
TEST(VllmFigure8, ParallelSamplingCopiesOnWrite) {
  KvCache kv = Pool(9);
  BlockTable a1, a2;
  ASSERT_TRUE(kv.Grow(a1, 7));
  kv.Fork(a1, a2);
  EXPECT_EQ(kv.device().refs(0), 2);
  EXPECT_EQ(kv.device().refs(1), 2);
  std::vector<BlockCopy> copies;
  EXPECT_TRUE(kv.MakeWritable(a1, 1, copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, 1);
  EXPECT_EQ(copies[0].to, 2);
  EXPECT_EQ(Indices(a1), (std::vector<BlockIndex>{0, 2}));
  EXPECT_EQ(kv.device().refs(1), 1);
  EXPECT_FALSE(kv.MakeWritable(a2, 1, copies));
  EXPECT_EQ(copies.size(), 1u);
  EXPECT_EQ(Indices(a2), (std::vector<BlockIndex>{0, 1}));
  EXPECT_EQ(kv.device().refs(0), 2);
}

// Figure 9: beam search, width 4. Candidates 1 and 2 win; freeing 0 and 3 frees exactly blocks 2,
// 4, 5 and 8. The four new candidates share 0, 1, 3; two of them share 6, two share 7.
TEST(VllmFigure9, BeamSearchForksAndFrees) {
  KvCache kv = Pool(16);
  BlockTable c0, c1, c2, c3;
  ASSERT_TRUE(kv.Grow(c0, 4));
  kv.Fork(c0, c3);
  ASSERT_TRUE(kv.Grow(c0, 8));
  ASSERT_TRUE(kv.Grow(c3, 8));
  ASSERT_TRUE(kv.Grow(c0, 12));
  ASSERT_TRUE(kv.Grow(c3, 12));
  kv.Fork(c0, c1);
  kv.Fork(c0, c2);
  for (BlockTable* c : {&c0, &c1, &c2, &c3}) ASSERT_TRUE(kv.Grow(*c, 16));
  EXPECT_EQ(Indices(c0), (std::vector<BlockIndex>{0, 1, 3, 5}));
  EXPECT_EQ(Indices(c1), (std::vector<BlockIndex>{0, 1, 3, 6}));
  EXPECT_EQ(Indices(c2), (std::vector<BlockIndex>{0, 1, 3, 7}));
  EXPECT_EQ(Indices(c3), (std::vector<BlockIndex>{0, 2, 4, 8}));
  EXPECT_EQ(kv.device().refs(0), 4);
  EXPECT_EQ(kv.device().refs(1), 3);

  kv.Free(c0, std::nullopt);
  kv.Free(c3, std::nullopt);
  std::set<BlockIndex> freed;
  for (BlockIndex i = 0; i < 9; ++i) {
    if (kv.device().state(i) == BlockState::kFree) freed.insert(i);
  }
  EXPECT_EQ(freed, (std::set<BlockIndex>{2, 4, 5, 8}));

  kv.Fork(c1, c0);
  kv.Fork(c2, c3);
  std::set<BlockIndex> fresh;
  for (BlockTable* c : {&c0, &c1, &c2, &c3}) {
    ASSERT_TRUE(kv.Grow(*c, 20));
    fresh.insert(c->back().index);
  }
  EXPECT_EQ(fresh.size(), 4u);
  for (BlockIndex shared : {0, 1, 3}) EXPECT_EQ(kv.device().refs(shared), 4);
  for (BlockIndex shared : {6, 7}) EXPECT_EQ(kv.device().refs(shared), 2);
  kv.CheckIntegrity(std::vector<const BlockTable*>{&c0, &c1, &c2, &c3}, {});
}

}  // namespace
}  // namespace millrace::kv
