// Boxes of KV: the dense bytes are what was written, wherever the pool stores it, and a pool filled
// from them holds the same bytes.
#include "tensor/cpu/kv_box.h"

#include <algorithm>
#include <numeric>

#include "tensor/testing/kv_box_ref.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

using Bytes = std::vector<std::byte>;

// A table of `count` blocks in scattered order.
std::vector<BlockIndex> Table(int count, int num_blocks, uint64_t seed) {
  std::vector<BlockIndex> table(static_cast<size_t>(num_blocks));
  std::iota(table.begin(), table.end(), 0);
  Rng rng(seed);
  for (size_t i = table.size(); i > 1; --i) {
    std::swap(table[i - 1],
              table[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(i) - 1))]);
  }
  table.resize(static_cast<size_t>(count));
  return table;
}

// Writes tokens [0, tokens) of every layer, as a model would.
void Fill(Device& device, KvPool& pool, std::span<const BlockIndex> table, int tokens,
          uint64_t seed) {
  const KvShape& shape = pool.shape();
  const int columns = shape.num_kv_heads * shape.head_dim;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    TestRows k = TestRows::Random(tokens, columns, seed + 2 * static_cast<uint64_t>(layer));
    TestRows v = TestRows::Random(tokens, columns, seed + 2 * static_cast<uint64_t>(layer) + 1);
    const AttentionSpan span{0, tokens, 0, table};
    const TestStep step(device, pool, {&span, 1});
    device.WriteKv(step.all(), layer, k.view(), v.view());
  }
}

Bytes Export(const Device& device, const KvPool& pool, const PoolKvBox& box,
             std::span<const BlockIndex> table) {
  Bytes out(box.Bytes(pool.shape()));
  device.ExportKv(pool, box, table, out);
  return out;
}

class PoolKvBoxTest : public testing::TestWithParam<DType> {};

// Compares with the reference, head by head, over odd shapes and all kinds of edges.
TEST_P(PoolKvBoxTest, AgreesWithTheReference) {
  for (const int head_dim : {64, 32, 80, 7, 128, 24, 1}) {
    ForEachTarget([&] {
      auto device = MakeCpu(1);
      const KvShape shape{1, 2, head_dim, 48, 5, GetParam()};
      auto pool = Must(device->NewKvPool(shape));
      const auto table = Table(4, shape.num_blocks, 1);
      Fill(*device, *pool, table, 150, 7);
      for (const auto& [first, end] : std::vector<std::pair<int, int>>{
               {0, 150}, {0, 1}, {16, 32}, {5, 9}, {15, 17}, {47, 49}, {31, 130}, {3, 3}}) {
        const KvHeadSpan span{static_cast<const CpuKvPool*>(pool.get()), 0, 1, table, first, end};
        const size_t bytes = BytesOf(GetParam()) * static_cast<size_t>((end - first) * head_dim);
        // Also at odd addresses.
        Bytes keys(bytes + 1), values(bytes + 1), keys_ref(bytes + 1), values_ref(bytes + 1);
        ExportKvHead(span, keys.data() + 1, values.data() + 1);
        ExportKvHeadRef(span, keys_ref.data() + 1, values_ref.data() + 1);
        ASSERT_EQ(keys, keys_ref) << head_dim << ": " << first << ", " << end;
        ASSERT_EQ(values, values_ref) << head_dim << ": " << first << ", " << end;
      }
    });
  }
}

// Random boxes between pools of different block size, layers, heads and tables, piece by piece;
// everything outside the box stays unchanged.
TEST_P(PoolKvBoxTest, BoxesTravelBetweenPoolsOfAnyShape) {
  Rng rng(3);
  const auto pick = [&](int low, int high) { return static_cast<int>(rng.Between(low, high)); };
  for (int round = 0; round < 40; ++round) {
    auto device = MakeCpu(1);
    const int layers = pick(1, 4), heads = pick(1, 4), tokens = pick(1, 200);
    const int head_dim = (std::array{8, 16, 20, 33, 64})[static_cast<size_t>(pick(0, 4))];
    const KvShape a{layers, heads, head_dim, 16 * pick(1, 4), 24, GetParam()};
    // The other pool has only layers [l0, l1) and heads [h0, h1), numbered from 0.
    const int l0 = pick(0, layers - 1), l1 = pick(l0 + 1, layers);
    const int h0 = pick(0, heads - 1), h1 = pick(h0 + 1, heads);
    const KvShape b{l1 - l0, h1 - h0, head_dim, 16 * pick(1, 4), 30, GetParam()};
    auto from = Must(device->NewKvPool(a)), to = Must(device->NewKvPool(b));
    const auto from_table =
        Table((tokens + a.block_size - 1) / a.block_size, a.num_blocks, rng.Next());
    const auto to_table =
        Table((tokens + b.block_size - 1) / b.block_size, b.num_blocks, rng.Next());
    Fill(*device, *from, from_table, tokens, rng.Next());
    Fill(*device, *to, to_table, tokens, rng.Next());
    const PoolKvBox whole{0, l1 - l0, 0, h1 - h0, 0, tokens};
    const Bytes before = Export(*device, *to, whole, to_table);

    const int first = pick(0, tokens - 1), end = pick(first, tokens);
    // In two pieces, cut at any token.
    const int cut = pick(first, end);
    for (const auto& [begin, stop] : {std::pair{first, cut}, std::pair{cut, end}}) {
      const Bytes piece = Export(*device, *from, {l0, l1, h0, h1, begin, stop}, from_table);
      device->ImportKv(*to, {0, l1 - l0, 0, h1 - h0, begin, stop}, to_table, piece);
    }
    const Bytes source = Export(*device, *from, {l0, l1, h0, h1, 0, tokens}, from_table);
    const Bytes after = Export(*device, *to, whole, to_table);
    const size_t row = BytesOf(GetParam()) * static_cast<size_t>(head_dim);
    for (size_t i = 0; i < after.size(); ++i) {
      const int token = static_cast<int>(i / row) % tokens;
      const bool inside = token >= first && token < end;
      ASSERT_EQ(after[i], inside ? source[i] : before[i]) << "token " << token << " of " << tokens;
    }
  }
}

// Beyond equal bytes: attention over the filled pool gives the same bits.
TEST_P(PoolKvBoxTest, AttentionContinuesOverImportedKv) {
  constexpr int kTokens = 75, kHeads = 4, kKvHeads = 2, kHeadDim = 40;
  auto device = MakeCpu(1);
  auto from = Must(device->NewKvPool({1, kKvHeads, kHeadDim, 16, 8, GetParam()}));
  auto to = Must(device->NewKvPool({1, kKvHeads, kHeadDim, 64, 4, GetParam()}));
  const auto from_table = Table(5, 8, 1), to_table = Table(2, 4, 2);
  Fill(*device, *from, from_table, kTokens, 5);
  const PoolKvBox box{0, 1, 0, kKvHeads, 0, kTokens};
  device->ImportKv(*to, box, to_table, Export(*device, *from, box, from_table));
  TestRows q = TestRows::Random(1, kHeads * kHeadDim, 9);
  TestRows out(1, kHeads * kHeadDim), want(1, kHeads * kHeadDim);
  const AttentionSpan there{0, 1, kTokens - 1, to_table}, here{0, 1, kTokens - 1, from_table};
  for (const auto& [pool, span, to_rows] :
       {std::tuple{from.get(), &here, &want}, {to.get(), &there, &out}}) {
    const TestStep step(*device, *pool, {span, 1});
    device->Attend(step.all(), 0, {.scale = 0.2f}, q.view(), to_rows->view());
  }
  EXPECT_TRUE(SameBits(out.row(0), want.row(0), kHeads * kHeadDim));
}

INSTANTIATE_TEST_SUITE_P(Types, PoolKvBoxTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace millrace::tensor
