// Compares with brute force on small grids: the need is covered exactly once, by sources that have
// it, and at the least cost.
#include "cluster/transfer/kv_rectangles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::cluster {
namespace {

using stage::KvBox;

TEST(KvHeads, AreDividedInOrderAndRepeatIfThereAreFew) {
  EXPECT_EQ(KvHeadsOf({1, 4}, 8), (HeadRange{2, 4}));
  for (int r = 0; r < 8; ++r) EXPECT_EQ(KvHeadsOf({r, 8}, 2), (HeadRange{r / 4, r / 4 + 1})) << r;
  for (const int size : {1, 2, 4, 8}) {
    for (const int heads : {1, 2, 4, 8, 16, 32}) {
      int next = 0;
      for (int r = 0; r < size; ++r) {
        const HeadRange has = KvHeadsOf({r, size}, heads);
        EXPECT_EQ(has.end - has.first, std::max(1, heads / size));
        EXPECT_LE(has.first, next);
        next = has.end;
      }
      EXPECT_EQ(next, heads);
    }
  }
}

// Counts how often each (layer, head, token) is covered. Expects each piece to lie in its source.
std::map<std::tuple<int, int, int>, int> Covered(const std::vector<KvPiece>& pieces,
                                                 std::span<const KvHolder> holders, int kv_heads) {
  std::map<std::tuple<int, int, int>, int> covered;
  for (const KvPiece& p : pieces) {
    const HeadRange has = KvHeadsOf(holders[p.source].rank, kv_heads);
    EXPECT_TRUE(holders[p.source].layers.Contains(p.box.layers));
    EXPECT_LE(has.first, p.box.first_head);
    EXPECT_GE(has.end, p.box.end_head);
    for (int l = p.box.layers.begin; l < p.box.layers.end; ++l) {
      for (int h = p.box.first_head; h < p.box.end_head; ++h) {
        for (int t = p.box.first_token; t < p.box.end_token; ++t) ++covered[{l, h, t}];
      }
    }
  }
  return covered;
}

// The least remote heads and pieces, found by trying every assignment of a hop's heads to sources.
std::pair<int, int> Best(const KvBox& need, std::span<const KvHolder> hop, int kv_heads, int head,
                         int last_source) {
  if (head == need.end_head) return {0, 0};
  std::pair<int, int> best{1 << 20, 1 << 20};
  for (size_t s = 0; s < hop.size(); ++s) {
    const HeadRange has = KvHeadsOf(hop[s].rank, kv_heads);
    if (head < has.first || head >= has.end) continue;
    auto rest = Best(need, hop, kv_heads, head + 1, static_cast<int>(s));
    rest.first += hop[s].same_host ? 0 : 1;
    rest.second += static_cast<int>(s) == last_source ? 0 : 1;
    best = std::min(best, rest);
  }
  return best;
}

TEST(CoverKv, IsExactAndMinimalForEveryPipeline) {
  const uint64_t cases = 3000 * TestScale();
  int replicated = 0, cut = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Rng rng(seed);
    const int kv_heads = 1 << rng.Between(0, 3);
    const int layers = static_cast<int>(rng.Between(1, 6));
    // A pipeline's hops: disjoint layers, each with its own degree. Some have each rank twice.
    std::vector<KvHolder> holders;
    std::vector<std::vector<KvHolder>> hops;
    for (int l = 0; l < layers;) {
      const int end = static_cast<int>(rng.Between(l + 1, layers));
      const int size = 1 << rng.Between(0, 3);
      hops.emplace_back();
      for (int copy = static_cast<int>(rng.Between(0, 4)) / 4; copy >= 0; --copy) {
        for (int r = 0; r < size; ++r) {
          hops.back().push_back({{l, end}, {r, size}, rng.Between(0, 2) == 0});
        }
      }
      holders.insert(holders.end(), hops.back().begin(), hops.back().end());
      replicated += size > kv_heads;
      l = end;
    }
    KvBox need;
    need.layers.begin = static_cast<int>(rng.Between(0, layers - 1));
    need.layers.end = static_cast<int>(rng.Between(need.layers.begin + 1, layers));
    const int size = 1 << rng.Between(0, 3);
    const HeadRange mine = KvHeadsOf({static_cast<int>(rng.Between(0, size - 1)), size}, kv_heads);
    need.first_head = mine.first;
    need.end_head = mine.end;
    need.first_token = static_cast<int>(rng.Between(0, 3));
    need.end_token = static_cast<int>(rng.Between(need.first_token + 1, 6));
    const auto pieces = CoverKv(need, holders, kv_heads);
    ASSERT_TRUE(pieces.ok()) << pieces.status().ToString();
    const auto covered = Covered(*pieces, holders, kv_heads);
    for (const auto& [host, times] : covered) ASSERT_EQ(times, 1) << "seed " << seed;
    ASSERT_EQ(static_cast<int>(covered.size()), need.layers.size() *
                                                    (need.end_head - need.first_head) *
                                                    (need.end_token - need.first_token));
    int remote = 0, pieces_least = 0, remote_least = 0;
    for (const KvPiece& p : *pieces) {
      if (!holders[p.source].same_host) {
        remote += p.box.layers.size() * (p.box.end_head - p.box.first_head);
      }
    }
    for (const auto& hop : hops) {
      const int overlap = std::min(need.layers.end, hop.front().layers.end) -
                          std::max(need.layers.begin, hop.front().layers.begin);
      if (overlap <= 0) continue;
      const auto [far, few] = Best(need, hop, kv_heads, need.first_head, -1);
      remote_least += far * overlap;
      pieces_least += few;
    }
    ASSERT_EQ(remote, remote_least) << "seed " << seed;
    ASSERT_EQ(static_cast<int>(pieces->size()), pieces_least) << "seed " << seed;
    cut += pieces->size() > 1;
  }
  EXPECT_GT(replicated, 100);
  EXPECT_GT(cut, 100);
}

// Whatever way the holders overlap, the need is covered once, and a gap is reported exactly if
// there is one.
TEST(CoverKv, GapsAreFoundAndNamed) {
  const uint64_t cases = 3000 * TestScale();
  int gaps = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Rng rng(seed);
    const int kv_heads = 1 << rng.Between(0, 2);
    std::vector<KvHolder> holders(static_cast<size_t>(rng.Between(0, 6)));
    for (KvHolder& h : holders) {
      h.layers.begin = static_cast<int>(rng.Between(0, 4));
      h.layers.end = static_cast<int>(rng.Between(h.layers.begin + 1, 6));
      h.rank.size = 1 << rng.Between(0, 2);
      h.rank.rank = static_cast<int>(rng.Between(0, h.rank.size - 1));
      h.same_host = rng.Between(0, 1);
    }
    KvBox need{.layers = {1, static_cast<int>(rng.Between(2, 6))},
               .first_head = 0,
               .end_head = static_cast<int>(rng.Between(1, kv_heads)),
               .first_token = 2,
               .end_token = 4};
    bool whole = true;
    for (int l = need.layers.begin; l < need.layers.end; ++l) {
      for (int h = need.first_head; h < need.end_head; ++h) {
        whole = whole && std::ranges::any_of(holders, [&](const KvHolder& holder) {
                  const HeadRange has = KvHeadsOf(holder.rank, kv_heads);
                  return holder.layers.Contains(l) && h >= has.first && h < has.end;
                });
      }
    }
    const auto pieces = CoverKv(need, holders, kv_heads);
    ASSERT_EQ(pieces.ok(), whole) << "seed " << seed;
    if (!whole) {
      ++gaps;
      ASSERT_EQ(pieces.status().code(), StatusCode::kInvalidArgument);
      ASSERT_NE(pieces.status().message().find("head"), std::string::npos);
      continue;
    }
    for (const auto& [host, times] : Covered(*pieces, holders, kv_heads)) ASSERT_EQ(times, 1);
  }
  EXPECT_GT(gaps, 100);
  EXPECT_LT(gaps, static_cast<int>(cases) - 100);
  const KvHolder first_half{{0, 4}, {0, 2}};
  const auto status = CoverKv({{2, 4}, 0, 8, 0, 16}, std::span(&first_half, 1), 8).status();
  EXPECT_EQ(status.message(), "no source has head 4 of layers [2, 4)");
}

TEST(CoverKv, InvalidInputsAreRefused) {
  const KvHolder all{{0, 4}, {0, 1}};
  const auto code = [&](const KvBox& need, const KvHolder& holder) {
    return CoverKv(need, std::span(&holder, 1), 8).status().code();
  };
  EXPECT_EQ(code({{0, 4}, 0, 8, 0, 16}, all), StatusCode::kOk);
  for (const KvBox& need :
       {KvBox{{2, 2}, 0, 8, 0, 16}, KvBox{{-1, 2}, 0, 8, 0, 16}, KvBox{{0, 4}, 3, 3, 0, 16},
        KvBox{{0, 4}, 0, 9, 0, 16}, KvBox{{0, 4}, 0, 8, 5, 5}, KvBox{{0, 4}, 0, 8, -1, 5}}) {
    EXPECT_EQ(code(need, all), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code({{0, 4}, 0, 8, 0, 16}, {{0, 4}, {2, 2}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 4}, 0, 8, 0, 16}, {{0, 4}, {0, 0}}), StatusCode::kInvalidArgument);
  const std::vector<KvHolder> many(kKvSourcesMax + 1, all);
  EXPECT_EQ(CoverKv({{0, 4}, 0, 8, 0, 16}, many, 8).status().code(), StatusCode::kInvalidArgument);
}

TEST(SplitKv, CoversOnceWithinTheLimit) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    KvBox box;
    box.layers = {static_cast<int>(rng.Between(0, 3)), static_cast<int>(rng.Between(4, 8))};
    box.first_head = static_cast<int>(rng.Between(0, 3));
    box.end_head = static_cast<int>(rng.Between(4, 8));
    box.first_token = static_cast<int>(rng.Between(0, 3));
    box.end_token = static_cast<int>(rng.Between(4, 20));
    const auto unit = static_cast<size_t>(rng.Between(1, 50));
    const auto limit = static_cast<size_t>(rng.Between(50, 3000));
    const auto chunks = SplitKv(box, unit, limit);
    std::vector<KvPiece> pieces;
    size_t total = 0;
    for (const KvBox& c : chunks) {
      const size_t bytes = unit * static_cast<size_t>(c.layers.size()) *
                           static_cast<size_t>(c.end_head - c.first_head) *
                           static_cast<size_t>(c.end_token - c.first_token);
      ASSERT_LE(bytes, limit);
      ASSERT_GT(bytes, 0u);
      total += bytes;
      pieces.push_back({0, c});
    }
    const KvHolder all{{0, 8}, {0, 1}};
    const auto covered = Covered(pieces, std::span(&all, 1), 8);
    for (const auto& [host, times] : covered) ASSERT_EQ(times, 1);
    ASSERT_EQ(total, unit * covered.size()) << "seed " << seed;
  }
  // 32 layers, 8 heads of 128 in 2 bytes, 1000 tokens: two heads of a layer are 1,024,000 bytes.
  EXPECT_EQ(SplitKv({{0, 32}, 0, 8, 0, 1000}, 512).size(), 128u);
  EXPECT_EQ(SplitKv({{0, 32}, 0, 8, 0, 16}, 512).size(), 2u);
}

}  // namespace
}  // namespace millrace::cluster
