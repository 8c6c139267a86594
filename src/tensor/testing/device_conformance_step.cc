// Calls on a step's rows: tables, rotation, KV, attention, outputs.
#include <cmath>
#include <numeric>

#include "tensor/testing/attention_ref.h"
#include "tensor/testing/device_conformance.h"
#include "tensor/testing/elementwise_ref.h"
#include "tensor/testing/gemm_ref.h"

namespace millrace::tensor {
namespace {

struct Angles {
  Angles(int positions, int rotary_dim) : cos(positions, rotary_dim / 2), sin(cos) {
    for (int p = 0; p < positions; ++p) {
      for (int i = 0; i < rotary_dim / 2; ++i) {
        cos.row(p)[i] = static_cast<float>(std::cos(p * std::pow(0.7, i)));
        sin.row(p)[i] = static_cast<float>(std::sin(p * std::pow(0.7, i)));
      }
    }
    view = {cos.row(0), sin.row(0), positions, rotary_dim};
  }
  TestRows cos, sin;
  RopeAngles view;
};

}  // namespace

struct DeviceConformance::Sequence {
  Sequence(const KvShape& shape, int heads, int length, uint64_t seed)
      : q(TestRows::Random(length, heads * shape.head_dim, seed)),
        k(TestRows::Random(length, shape.num_kv_heads * shape.head_dim, seed + 1)),
        v(TestRows::Random(length, shape.num_kv_heads * shape.head_dim, seed + 2)),
        out(length, heads * shape.head_dim) {
    for (float& x : q.numbers) x = RoundTo(shape.dtype, x);
  }
  int length() const { return q.shape[0]; }

  TestRows q, k, v, out;
  KvPool* pool = nullptr;
  int first_layer = 0;
  std::vector<BlockIndex> blocks;
};

struct DeviceConformance::Chunk {
  Sequence* sequence;
  int start, rows;
};

namespace {

// Computes the chunks in one step, chunks of one pool side by side as a part.
class StepRun {
 public:
  StepRun(Device& device, const std::vector<DeviceConformance::Chunk>& chunks, int heads,
          int kv_heads, int head_dim)
      : device_(device), chunks_(chunks), spans_(chunks.size()) {
    int rows = 0;
    for (const DeviceConformance::Chunk& chunk : chunks) rows += chunk.rows;
    TestRows q(rows, heads * head_dim), k(rows, kv_heads * head_dim), v(k);
    for (size_t i = 0, row = 0; i < chunks.size(); ++i) {
      const DeviceConformance::Sequence& s = *chunks[i].sequence;
      if (parts_.empty() || parts_.back().pool != s.pool) {
        parts_.push_back({s.pool, s.first_layer, static_cast<int>(row), 0, {}});
      }
      StepPart& part = parts_.back();
      spans_[i] = {part.rows, chunks[i].rows, chunks[i].start, s.blocks};
      part.spans = {part.spans.empty() ? &spans_[i] : part.spans.data(), part.spans.size() + 1};
      part.rows += chunks[i].rows;
      for (int r = chunks[i].start; r < chunks[i].start + chunks[i].rows; ++r, ++row) {
        positions_.push_back(r);
        Copy(s.q, r, q, row);
        Copy(s.k, r, k, row);
        Copy(s.v, r, v, row);
      }
    }
    q_ = std::make_unique<DeviceRows>(device, q, 1);
    k_ = std::make_unique<DeviceRows>(device, k, 2);
    v_ = std::make_unique<DeviceRows>(device, v, 3);
    out_ = std::make_unique<DeviceRows>(device, TestRows(rows, heads * head_dim), 4);
    device.BeginStep({.positions = positions_, .parts = parts_});
  }

  // Parts [first, end).
  void Attend(size_t first, size_t end, int layer, const AttentionSpec& spec) {
    const RowRange at{parts_[first].first_row,
                      parts_[end - 1].first_row + parts_[end - 1].rows - parts_[first].first_row};
    const auto of = [&](const DeviceRows& x) { return x.view().Slice(at.first, at.count); };
    device_.WriteKv(at, layer, of(*k_), of(*v_));
    device_.Attend(at, layer, spec, of(*q_), of(*out_));
  }
  void Attend(int layer, const AttentionSpec& spec) { Attend(0, parts_.size(), layer, spec); }

  void Collect() {
    const TestRows out = out_->Get();
    size_t row = 0;
    for (const DeviceConformance::Chunk& chunk : chunks_) {
      for (int r = chunk.start; r < chunk.start + chunk.rows; ++r, ++row) {
        std::copy_n(&out.numbers[row * static_cast<size_t>(out.stride)], out.stride,
                    chunk.sequence->out.row(r));
      }
    }
    out_->ExpectGaps();
  }

 private:
  static void Copy(const TestRows& from, int r, TestRows& to, size_t row) {
    std::copy_n(&from.numbers[static_cast<size_t>(r) * static_cast<size_t>(from.stride)],
                from.stride, to.row(static_cast<int>(row)));
  }

  Device& device_;
  const std::vector<DeviceConformance::Chunk> chunks_;
  std::vector<AttentionSpan> spans_;
  std::vector<StepPart> parts_;
  std::vector<int32_t> positions_;
  std::unique_ptr<DeviceRows> q_, k_, v_, out_;
};

}  // namespace

void DeviceConformance::Run(const std::vector<Chunk>& chunks, const AttentionSpec& spec,
                            int layer) {
  const KvShape& shape = chunks[0].sequence->pool->shape();
  StepRun run(device(), chunks, chunks[0].sequence->q.shape[1] / shape.head_dim, shape.num_kv_heads,
              shape.head_dim);
  run.Attend(layer, spec);
  run.Collect();
}

void DeviceConformance::ExpectReference(const Sequence& sequence, const AttentionSpec& spec) {
  Sequence s = sequence;
  const KvShape& shape = s.pool->shape();
  TestRows want(s.length(), s.out.shape[1]);
  for (float& x : s.k.numbers) x = RoundTo(shape.dtype, x);
  for (float& x : s.v.numbers) x = RoundTo(shape.dtype, x);
  AttendRef(s.q.view(), 0, s.k.view(), s.v.view(), shape.head_dim, spec, want.view());
  // Over bf16 a device may also round the softmax's weights.
  const double tolerance = shape.dtype == DType::kBF16 ? 2e-3 : GetParam().tolerance;
  ExpectNear(s.out.numbers, want.numbers, "attention", tolerance);
}

namespace {

// A table of blocks in no order, of those that `step` reaches from `first`.
std::vector<BlockIndex> Blocks(int count, int first, int step, int num_blocks) {
  std::vector<BlockIndex> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back((first + i * step) % num_blocks);
  return blocks;
}

TEST_P(DeviceConformance, TablesGiveTheirRowsExactly) {
  for (const DType dtype : kStorageTypes) {
    for (const int n : {1, 7, 33, 100}) {
      TestWeight tokens(dtype, 11, n, 1), positions(dtype, 9, n, 2);
      auto by_token = Must(device().NewTable(tokens.host));
      auto by_position = Must(device().NewTable(positions.host));
      const TokenId ids[] = {10, 0, 3, 3, 7};
      const int32_t at[] = {8, 1, 0, 2, 2};
      device().BeginStep({.tokens = ids, .positions = at});
      const DeviceRows y(device(), {5, n}, 2);
      device().Embed({0, 2}, *by_token, y.view().Slice(0, 2));
      device().Embed({2, 3}, *by_token, y.view().Slice(2, 3));
      device().AddPositions({1, 4}, *by_position, y.view().Slice(1, 4));
      TestRows got = y.Get();
      for (int r = 0; r < 5; ++r) {
        for (int j = 0; j < n; ++j) {
          const float added = r == 0 ? 0 : ElementOf(positions.host, at[r], j);
          ASSERT_EQ(got.row(r)[j], ElementOf(tokens.host, ids[r], j) + added) << r << ", " << j;
        }
      }
      y.ExpectGaps();
    }
  }
}

TEST_P(DeviceConformance, OutputsAreGathered) {
  TestRows x = TestRows::Random(6, 10, 1);
  const DeviceRows on(device(), x, 3), y(device(), {2, 10}, 1);
  const int32_t positions[6] = {}, outputs[] = {5, 0, 0, 3};
  device().BeginStep({.positions = positions, .outputs = outputs});
  for (int first : {0, 2, 1}) {
    device().GatherOutputs(on.view(), first, y.view());
    TestRows got = y.Get();
    for (int r = 0; r < 2; ++r) EXPECT_EQ(got.Copy(r), x.Copy(outputs[first + r])) << first;
  }
}

// Head norms and rotation against the reference, and StoreQkv against its small calls.
TEST_P(DeviceConformance, StoreQkvIsNormsRotationAndWrite) {
  constexpr int kRows = 5, kHeads = 4, kKvHeads = 2;
  for (const auto& [head_dim, rotary_dim] : {std::pair{64, 64}, {80, 32}, {6, 6}, {10, 2}}) {
    const Angles angles(40, rotary_dim);
    auto rope = Must(device().NewRopeTable(angles.view));
    TestRows wq = TestRows::Random(1, head_dim, 2), wk = TestRows::Random(1, head_dim, 3);
    auto q_norm = NewVector(wq), k_norm = NewVector(wk);
    const QkvSpec spec{kHeads, kKvHeads, head_dim, q_norm.get(), k_norm.get(), 1e-6f, rope.get()};
    const int q = spec.q_columns(), kv = spec.kv_columns();
    TestRows qkv = TestRows::Random(kRows, q + 2 * kv, 4);
    const KvShape shape{2, kKvHeads, head_dim, 16, 8};
    auto fused = NewPool(shape), small = NewPool(shape);
    const std::vector<BlockIndex> blocks = {6, 1, 3};
    const AttentionSpan spans[] = {{0, 4, 29, blocks}};  // across the edge of a block
    const int32_t positions[] = {0, 29, 30, 31, 32};     // row 0 belongs to no part
    TestRows got(1, 1);
    std::vector<std::byte> kept[2];
    for (const bool all_at_once : {true, false}) {
      KvPool& pool = all_at_once ? *fused : *small;
      const StepPart part{&pool, 7, 1, 4, spans};
      device().BeginStep({.positions = positions, .parts = {&part, 1}});
      const DeviceRows x(device(), qkv, 2);
      const RowRange at{1, 4};
      const Rows rows = x.view().Slice(1, 4);
      if (all_at_once) {
        device().StoreQkv(at, 8, spec, rows);
      } else {
        device().HeadRmsNorm(rows.Columns(0, q), head_dim, *q_norm, 1e-6f);
        device().HeadRmsNorm(rows.Columns(q, kv), head_dim, *k_norm, 1e-6f);
        device().Rope(at, *rope, head_dim, rows.Columns(0, q));
        device().Rope(at, *rope, head_dim, rows.Columns(q, kv));
        device().WriteKv(at, 8, rows.Columns(q, kv), rows.Columns(q + kv, kv));
      }
      got = x.Get();
      for (int r = 1; r < kRows; ++r) {
        for (int h = 0; h < kHeads; ++h) {
          const std::vector<float> head(got.row(r) + h * head_dim, got.row(r) + (h + 1) * head_dim);
          const std::span<const float> before(qkv.row(r) + h * head_dim,
                                              static_cast<size_t>(head_dim));
          ExpectNear(
              head, RopeRef(RmsNormRef(before, wq.Copy(0), 1e-6f), positions[r], angles.view), "q");
        }
      }
      EXPECT_TRUE(SameBits(got.row(0), qkv.row(0), static_cast<size_t>(q))) << "not in the range";
      const PoolKvBox box{1, 2, 0, kKvHeads, 29, 33};
      kept[all_at_once].resize(box.Bytes(shape));
      device().ExportKv(pool, box, blocks, kept[all_at_once]);
    }
    EXPECT_EQ(kept[0], kept[1]);
    // [K, V][head][token][head_dim]: the last token's second head of v.
    const auto* stored = reinterpret_cast<const float*>(kept[1].data());
    EXPECT_TRUE(SameBits(stored + (2 * kKvHeads * 4 - 1) * head_dim, qkv.row(4) + q + kv + head_dim,
                         static_cast<size_t>(head_dim)));
  }
}

TEST_P(DeviceConformance, AttentionAgreesWithTheReference) {
  const int shapes[][3] = {{4, 4, 64}, {8, 2, 32}, {3, 1, 80}, {2, 2, 7}, {5, 1, 128}};
  for (const DType dtype : kStorageTypes) {
    for (const auto& [heads, kv_heads, head_dim] : shapes) {
      for (const int window : {0, 1, 40, 270}) {
        const KvShape shape{1, kv_heads, head_dim, window % 3 == 0 ? 16 : 48, 37, dtype};
        const AttentionSpec spec{1.0f / std::sqrt(static_cast<float>(head_dim)), window};
        auto pool = NewPool(shape);
        Sequence a(shape, heads, 70, 1), b(shape, heads, 290, 2), c(shape, heads, 1, 3);
        int first = 0;
        for (Sequence* s : {&a, &b, &c}) {
          s->pool = pool.get();
          const int count = (s->length() + shape.block_size - 1) / shape.block_size;
          s->blocks = Blocks(count, first * 10, 10, shape.num_blocks);
          first += count;
        }
        Run({{&a, 0, 33}, {&b, 0, 280}}, spec);
        Run({{&b, 280, 9}, {&c, 0, 1}, {&a, 33, 37}}, spec);
        Run({{&b, 289, 1}}, spec);
        for (const Sequence* s : {&a, &b, &c}) ExpectReference(*s, spec);
      }
    }
  }
}

// Whole; in chunks beside others; token by token; in blocks of another size and order.
TEST_P(DeviceConformance, AttentionsBitsDoNotDependOnBatchChunksOrBlocks) {
  constexpr int kHeads = 4, kLength = 530;
  for (const DType dtype : kStorageTypes) {
    for (const int window : {0, 333}) {
      const AttentionSpec spec{0.3f, window};
      const KvShape shape{1, 2, 40, 16, 101, dtype};
      auto pool = NewPool(shape);
      Sequence whole(shape, kHeads, kLength, 7), other(shape, kHeads, kLength, 8);
      whole.pool = other.pool = pool.get();
      whole.blocks = Blocks(34, 0, 1, 101);
      other.blocks = Blocks(34, 40, 1, 101);
      Run({{&whole, 0, kLength}}, spec);
      for (const int block_size : {16, 64}) {
        KvShape another = shape;
        another.block_size = block_size;
        auto other_pool = NewPool(another);
        Sequence s(shape, kHeads, kLength, 7);
        s.pool = other.pool = other_pool.get();
        s.blocks = Blocks(34, 90, 13, 101);
        other.blocks = Blocks(34, 90 + 34 * 13, 13, 101);
        int done = 0;
        for (int chunk = 1; done + chunk < kLength - 5; chunk = chunk * 2 + 1) {
          Run({{&other, done, 1}, {&s, done, chunk}, {&other, done + 1, 3}}, spec);
          done += chunk;
        }
        for (; done < kLength; ++done) Run({{&s, done, 1}}, spec);
        ASSERT_TRUE(SameBits(s.out.row(0), whole.out.row(0), whole.out.numbers.size()))
            << "window " << window << ", blocks of " << block_size;
      }
    }
  }
}

// Parts of several pools in one step: together, each alone, and some at other layers than others.
TEST_P(DeviceConformance, PoolsOfOneStepDoNotMix) {
  constexpr int kHeads = 2;
  const AttentionSpec spec{.scale = 0.25f};
  const KvShape shape{3, 1, 24, 16, 12};
  std::vector<std::unique_ptr<KvPool>> pools;
  std::vector<std::unique_ptr<Sequence>> sequences, alone;
  for (int i = 0; i < 3; ++i) {
    KvShape own = shape;
    own.block_size = 16 * (i + 1);
    pools.push_back(NewPool(own));
    for (auto* list : {&sequences, &alone}) {
      list->push_back(std::make_unique<Sequence>(shape, kHeads, 40, static_cast<uint64_t>(10 * i)));
      list->back()->pool = pools.back().get();
      list->back()->first_layer = i;  // the model's layer 2 is another one in each pool
      list->back()->blocks = Blocks(3, i + (list == &alone ? 5 : 0), 7, shape.num_blocks);
    }
    Run({{alone.back().get(), 0, 40}}, spec, 2);
    ExpectReference(*alone.back(), spec);
  }
  std::vector<Chunk> chunks;
  for (const auto& s : sequences) chunks.push_back({s.get(), 0, 40});
  for (const bool together : {true, false}) {
    for (const auto& s : sequences) std::ranges::fill(s->out.numbers, 0.0f);
    StepRun run(device(), chunks, kHeads, shape.num_kv_heads, shape.head_dim);
    if (together) {
      run.Attend(2, spec);
    } else {
      run.Attend(2, 3, 2, spec);
      run.Attend(0, 2, 2, spec);
    }
    run.Collect();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          SameBits(sequences[i]->out.row(0), alone[i]->out.row(0), alone[i]->out.numbers.size()))
          << i << (together ? " together" : " in two calls");
    }
  }
  StepRun run(device(), chunks, kHeads, shape.num_kv_heads, shape.head_dim);
  const DeviceRows q(device(), {50, kHeads * shape.head_dim}), out(device(), {50, q.view().cols});
  EXPECT_DEATH(device().Attend({10, 50}, 2, spec, q.view(), out.view()), "partly");
}

// Out to the host's pool and back to other blocks. The copies of one call run in order.
TEST_P(DeviceConformance, CopiedAndExportedBlocksGiveTheSameAttention) {
  for (const DType dtype : kStorageTypes) {
    const KvShape shape{2, 1, 24, 32, 16, dtype};
    const AttentionSpec spec{.scale = 0.2f};
    auto pool = NewPool(shape);
    Sequence s(shape, 2, 60, 3);
    s.pool = pool.get();
    s.blocks = {2, 5};
    Run({{&s, 0, 60}}, spec, 1);
    const TestRows want = s.out;
    KvShape small = shape;
    small.num_blocks = 4;
    auto host = Must(device().NewKvPool(small, Place::kHost));
    device().CopyBlocks(*pool, *host, std::vector<BlockCopy>{{2, 0}, {5, 3}});
    device().CopyBlocks(*host, *pool, std::vector<BlockCopy>{{0, 9}, {3, 10}});
    device().CopyBlocks(*pool, *pool, std::vector<BlockCopy>{{9, 11}, {11, 12}, {10, 9}});
    const auto last_row = [&](KvPool& from, std::vector<BlockIndex> blocks) {
      const AttentionSpan span{0, 1, 59, blocks};
      const TestStep step(device(), from, {&span, 1});
      TestRows q(1, 48);
      q.numbers = s.q.Copy(59);
      const DeviceRows on(device(), q), out(device(), {1, 48});
      device().Attend(step.all(), 1, spec, on.view(), out.view());
      return out.Get().numbers;
    };
    TestRows expected = want;
    EXPECT_EQ(last_row(*pool, {12, 9}), expected.Copy(59));
    // In two pieces, into blocks of another size.
    KvShape other = shape;
    other.block_size = 16;
    auto imported = NewPool(other);
    const std::vector<BlockIndex> table = {3, 9, 1, 14};
    for (const auto& [begin, end] : {std::pair{0, 37}, {37, 60}}) {
      const PoolKvBox box{0, 2, 0, 1, begin, end};
      std::vector<std::byte> bytes(box.Bytes(shape));
      device().ExportKv(*pool, box, s.blocks, bytes);
      device().ImportKv(*imported, box, table, bytes);
    }
    EXPECT_EQ(last_row(*imported, table), expected.Copy(59));
  }
}

}  // namespace
}  // namespace millrace::tensor
