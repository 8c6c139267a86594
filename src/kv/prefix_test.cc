#include <gtest/gtest.h>

#include <numeric>

#include "kv/kv_cache.h"

namespace millrace::kv {
namespace {

constexpr int kPrefixBlock = 4;

// One sequence that computes all its tokens at once.
struct OneSequence {
  std::vector<TokenId> tokens;
  PrefixChain chain;
  BlockTable table;
  int hit_tokens = 0;
};

std::vector<TokenId> Tokens(int first, int count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixTest : public testing::Test {
 protected:
  static KvOptions Options() { return {.block_size = kPrefixBlock, .num_blocks = 8}; }
  KvCache kv_{Options()};
};

OneSequence Begin(KvCache& kv, std::vector<TokenId> tokens, std::string_view salt = "") {
  OneSequence life{.tokens = std::move(tokens), .chain = kv.NewChain(salt), .table = {}};
  const TokenView view{life.tokens, {}};
  life.hit_tokens = kv.Match(life.chain, view, view.size() - 1).blocks * kPrefixBlock;
  kv.TakeMatch(life.chain, life.table);
  EXPECT_TRUE(kv.Grow(life.table, view.size()));
  return life;
}

void Computed(KvCache& kv, OneSequence& life, int tokens) {
  kv.Index(life.chain, {life.tokens, {}}, life.table, tokens);
}

void End(KvCache& kv, OneSequence& life) { kv.Free(life.table, std::nullopt); }

int HitsOf(KvCache& kv, std::vector<TokenId> tokens, std::string_view salt = "") {
  OneSequence life = Begin(kv, std::move(tokens), salt);
  End(kv, life);
  return life.hit_tokens;
}

// Feature 17 and trap 16: floor((len - 1) / B) * B tokens; one token is always computed.
TEST_F(PrefixTest, ASecondPromptFindsAllFullBlocksButTheLastToken) {
  for (int length : {1, 3, 4, 5, 8, 9, 12}) {
    KvCache kv(Options());
    OneSequence first = Begin(kv, Tokens(0, length));
    Computed(kv, first, length);
    End(kv, first);
    EXPECT_EQ(first.hit_tokens, 0);
    EXPECT_EQ(HitsOf(kv, Tokens(0, length)), (length - 1) / kPrefixBlock * kPrefixBlock) << length;
  }
}

// Trap 11: only full blocks, and only once their KV is there.
TEST_F(PrefixTest, NothingIsFoundBeforeItIsComputed) {
  OneSequence first = Begin(kv_, Tokens(0, 12));
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 12)), 0);
  Computed(kv_, first, 7);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 12)), 4);
  Computed(kv_, first, 8);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 12)), 8);
  EXPECT_EQ(HitsOf(kv_, Tokens(1, 12)), 0);
}

// Traps 13 and 20: salt and identity are part of every name and cannot be confused.
TEST_F(PrefixTest, OtherSaltOtherModelNoHit) {
  OneSequence first = Begin(kv_, Tokens(0, 9), "alice");
  Computed(kv_, first, 9);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 9), "alice"), 8);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 9), "bob"), 0);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 9)), 0);
  BlockHasher hasher;
  EXPECT_NE(hasher.Root("ab", 1, "c"), hasher.Root("a", 1, "bc"));
  EXPECT_NE(hasher.Root("a", 1, ""), hasher.Root("", 1, "a"));
  EXPECT_NE(hasher.Root("a", 1, ""), hasher.Root("a", 2, ""));
}

// Trap 15: names are the same in every process.
TEST_F(PrefixTest, NamesAreFixed) {
  BlockHasher hasher;
  const Digest root = hasher.Root("model", 1, "salt");
  const Digest block = hasher.Block(root, Tokens(0, 4));
  EXPECT_EQ(root, BlockHasher().Root("model", 1, "salt"));
  EXPECT_EQ(block, BlockHasher().Block(root, Tokens(0, 4)));
  const std::vector<TokenId> tokens = {1, 2, 3, -1};
  EXPECT_EQ(Hex(hasher.Block(hasher.Root("model", 7, ""), tokens).bytes),
            "bab0da454f647f0a2afc731e9a5ddfdcacd9ae65d9b7e05155b0fd08502e761d");
  EXPECT_NE(block, hasher.Block(block, Tokens(0, 4)));
}

// Feature 18 and trap 14: when all names are equal, tokens and parents still decide.
TEST_F(PrefixTest, EqualHashesNeverReturnAnotherPrefix) {
  KvOptions options = Options();
  options.num_blocks = 64;
  options.hashes_collide = true;
  KvCache kv(options);
  std::vector<OneSequence> lives;
  // Same second block after different first blocks, and same first block under another salt.
  for (auto [head, salt] : {std::pair{0, ""}, {100, ""}, {0, "other"}}) {
    std::vector<TokenId> tokens = Tokens(head, 4);
    const auto tail = Tokens(50, 5);
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    lives.push_back(Begin(kv, tokens, salt));
    EXPECT_EQ(lives.back().hit_tokens, 0);
    Computed(kv, lives.back(), 9);
  }
  EXPECT_GT(kv.index().collisions(), 0u);
  for (OneSequence& life : lives) {
    OneSequence again = Begin(kv, life.tokens, &life == &lives[2] ? "other" : "");
    EXPECT_EQ(again.hit_tokens, 8);
    EXPECT_EQ(again.table[0], life.table[0]);
    EXPECT_EQ(again.table[1], life.table[1]);
    End(kv, again);
  }
  EXPECT_EQ(HitsOf(kv, Tokens(50, 9)), 0);
}

// Feature 19: tails are evicted before heads, the least recently used sequence first, blocks in use
// never.
TEST_F(PrefixTest, TailsAreEvictedBeforeHeads) {
  OneSequence old = Begin(kv_, Tokens(0, 12));
  OneSequence young = Begin(kv_, Tokens(100, 12));
  Computed(kv_, old, 12);
  Computed(kv_, young, 12);
  End(kv_, old);
  End(kv_, young);
  EXPECT_EQ(kv_.device().count(BlockState::kCached), 6);
  BlockTable other;
  const auto left = [&](int head) {
    PrefixChain chain = kv_.NewChain("");
    const auto tokens = Tokens(head, 13);
    return kv_.Match(chain, {tokens, {}}, 12).blocks;
  };
  const int expected[][2] = {{3, 3}, {3, 3}, {2, 3}, {1, 3}, {0, 3}, {0, 2}, {0, 1}, {0, 0}};
  for (int taken = 1; taken <= 8; ++taken) {
    ASSERT_TRUE(kv_.Grow(other, taken * kPrefixBlock));
    EXPECT_EQ(left(0), expected[taken - 1][0]) << taken;
    EXPECT_EQ(left(100), expected[taken - 1][1]) << taken;
  }
  EXPECT_FALSE(kv_.Grow(other, 9 * kPrefixBlock));
}

// Trap 10: hits are taken before anything is allocated, and count against what is available.
TEST_F(PrefixTest, TakingAHitUsesUpAnAvailableBlock) {
  OneSequence first = Begin(kv_, Tokens(0, 32));
  Computed(kv_, first, 32);
  End(kv_, first);
  ASSERT_EQ(kv_.available(), 8);
  PrefixChain chain = kv_.NewChain("");
  const auto tokens = Tokens(0, 32);
  const PrefixMatch match = kv_.Match(chain, {tokens, {}}, 31);
  EXPECT_EQ(match.blocks, 7);
  EXPECT_EQ(match.unowned, 7);
  BlockTable table;
  kv_.TakeMatch(chain, table);
  EXPECT_EQ(kv_.available(), 1);
  ASSERT_TRUE(kv_.Grow(table, 32));
  for (int i = 0; i < 7; ++i) EXPECT_EQ(table[i].index, i);
  kv_.CheckIntegrity(std::vector<const BlockTable*>{&table}, {});
}

// The same prefix computed twice at once keeps its first block, and its continuation is still
// found.
TEST_F(PrefixTest, TheFirstCopyIsKept) {
  OneSequence a = Begin(kv_, Tokens(0, 5));
  OneSequence b = Begin(kv_, Tokens(0, 9));
  Computed(kv_, a, 5);
  Computed(kv_, b, 9);
  EXPECT_NE(a.table[0], b.table[0]);
  OneSequence c = Begin(kv_, Tokens(0, 9));
  EXPECT_EQ(c.hit_tokens, 8);
  EXPECT_EQ(c.table[0], a.table[0]);
  EXPECT_EQ(c.table[1], b.table[1]);
}

// Trap 19: a reset drops what is cached and keeps what is in use.
TEST_F(PrefixTest, ResetForgetsAndFreesNothingInUse) {
  OneSequence first = Begin(kv_, Tokens(0, 9));
  Computed(kv_, first, 9);
  kv_.ResetPrefixes();
  kv_.CheckIntegrity(std::vector<const BlockTable*>{&first.table}, {});
  EXPECT_EQ(kv_.index().size(), 0);
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 9)), 0);
  Computed(kv_, first, 9);
  EXPECT_EQ(kv_.index().size(), 0) << "a chain from before the reset is not cached after it";
  End(kv_, first);
  EXPECT_EQ(kv_.device().count(BlockState::kFree), 8);
}

// Writing a cached block that no other table names removes it from the index first.
TEST_F(PrefixTest, AWrittenBlockIsNoLongerFound) {
  OneSequence first = Begin(kv_, Tokens(0, 8));
  Computed(kv_, first, 8);
  std::vector<BlockCopy> copies;
  EXPECT_FALSE(kv_.MakeWritable(first.table, 1, copies));
  EXPECT_EQ(HitsOf(kv_, Tokens(0, 9)), 4);
  kv_.CheckIntegrity(std::vector<const BlockTable*>{&first.table}, {});
}

// Trap 9: a table may repeat a block (a sliding window); the block still counts once.
TEST_F(PrefixTest, ARepeatedBlockCountsOnce) {
  BlockTable table;
  ASSERT_TRUE(kv_.Grow(table, 8));
  table.push_back(table[0]);
  BlockTable fork;
  kv_.Fork(table, fork);
  EXPECT_EQ(kv_.device().refs(table[0].index), 2);
  kv_.CheckIntegrity(std::vector<const BlockTable*>{&table, &fork}, {});
  kv_.Free(table, std::nullopt);
  kv_.Free(fork, std::nullopt);
  EXPECT_EQ(kv_.available(), 8);
}

TEST(TokenView, SlicesAcrossTheBorder) {
  const std::vector<TokenId> prompt = {0, 1, 2, 3, 4}, output = {5, 6, 7};
  const TokenView view{prompt, output};
  std::vector<TokenId> scratch(8);
  for (int start = 0; start <= 8; ++start) {
    for (int count = 0; start + count <= 8; ++count) {
      const auto slice = view.Slice(start, count, scratch);
      ASSERT_EQ(std::ssize(slice), count);
      for (int i = 0; i < count; ++i) EXPECT_EQ(slice[i], start + i);
    }
  }
  EXPECT_EQ(view[4], 4);
  EXPECT_EQ(view[5], 5);
}

}  // namespace
}  // namespace millrace::kv
