// Paged attention against attention_ref, and the invariance of every bit to batch, chunks, block
// tables and threads.
#include "tensor/cpu/attention.h"

#include <cmath>
#include <numeric>

#include "tensor/testing/attention_ref.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

// Storage type of the cache and the tolerance, relative to values in [-1, 1]. The reference sees
// keys, values and queries as they are multiplied; over bf16, weights are rounded to it too.
struct CacheStorage {
  DType dtype;
  double tolerance;
};

struct Heads {
  int heads, kv_heads, head_dim;
};

// A number after rounding to `dtype`.
float Stored(DType dtype, float x) {
  switch (dtype) {
    case DType::kF32: return x;
    case DType::kBF16: return FloatFromBF16(BF16FromFloat(x));
    case DType::kF16: return FloatFromF16(F16FromFloat(x));
  }
  return 0;
}

// One sequence: its inputs, and its collected result rows.
struct Sequence {
  Sequence(const Heads& h, int length, uint64_t seed)
      : length(length),
        q(TestRows::Random(length, h.heads * h.head_dim, seed)),
        k(TestRows::Random(length, h.kv_heads * h.head_dim, seed + 1)),
        v(TestRows::Random(length, h.kv_heads * h.head_dim, seed + 2)),
        out(length, h.heads * h.head_dim) {}
  int length;
  TestRows q, k, v, out;
  std::vector<BlockIndex> blocks;
};

struct Chunk {
  Sequence* sequence;
  int start, rows;
};

class AttentionTest : public testing::TestWithParam<CacheStorage> {
 protected:
  DType dtype() const { return GetParam().dtype; }

  void MakePool(Device& device, const Heads& heads, int num_blocks, int block_size) {
    heads_ = heads;
    pool_ = Must(device.NewKvPool({.num_layers = 2,
                                   .num_kv_heads = heads.kv_heads,
                                   .head_dim = heads.head_dim,
                                   .block_size = block_size,
                                   .num_blocks = num_blocks,
                                   .dtype = dtype()}));
    free_.resize(num_blocks);
    std::iota(free_.begin(), free_.end(), 0);
    Rng rng(num_blocks);
    for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[rng.Between(0, i - 1)]);
  }

  void GiveBlocks(Sequence& s) {
    const int size = pool_->shape().block_size;
    s.blocks.clear();
    for (int i = 0; i < (s.length + size - 1) / size; ++i) {
      s.blocks.push_back(free_.back());
      free_.pop_back();
    }
  }

  // One step with these chunks, in layer 1: writes their keys and values, attends, collects rows.
  void Step(Device& device, const std::vector<Chunk>& chunks, const AttentionSpec& spec) {
    int rows = 0;
    for (const Chunk& c : chunks) rows += c.rows;
    const int q_cols = heads_.heads * heads_.head_dim, kv_cols = heads_.kv_heads * heads_.head_dim;
    TestRows q(rows, q_cols, 3), k(rows, kv_cols, 1), v(rows, kv_cols, 2), out(rows, q_cols, 1);
    std::vector<AttentionSpan> spans;
    int row = 0;
    for (const Chunk& c : chunks) {
      spans.push_back({row, c.rows, c.start, c.sequence->blocks});
      for (int i = 0; i < c.rows; ++i, ++row) {
        std::copy_n(c.sequence->q.row(c.start + i), q_cols, q.row(row));
        std::copy_n(c.sequence->k.row(c.start + i), kv_cols, k.row(row));
        std::copy_n(c.sequence->v.row(c.start + i), kv_cols, v.row(row));
      }
    }
    const TestStep step(device, *pool_, spans);
    device.WriteKv(step.all(), 1, k.view(), v.view());
    device.Attend(step.all(), 1, spec, q.view(), out.view());
    row = 0;
    for (const Chunk& c : chunks) {
      for (int i = 0; i < c.rows; ++i, ++row) {
        std::copy_n(out.row(row), q_cols, c.sequence->out.row(c.start + i));
      }
    }
  }

  // The expected rows of a sequence.
  TestRows Reference(Sequence s, const Heads& heads, const AttentionSpec& spec) {
    TestRows want(s.length, heads.heads * heads.head_dim);
    for (float& x : s.k.numbers) x = Stored(dtype(), x);
    for (float& x : s.v.numbers) x = Stored(dtype(), x);
    if (dtype() == DType::kBF16) {
      for (float& x : s.q.numbers) x = Stored(dtype(), x);
    }
    AttendRef(s.q.view(), 0, s.k.view(), s.v.view(), heads.head_dim, spec, want.view());
    return want;
  }

  void ExpectNear(const TestRows& got, const TestRows& want) {
    for (size_t i = 0; i < want.numbers.size(); ++i) {
      if (std::abs(got.numbers[i] - want.numbers[i]) <= GetParam().tolerance) continue;
      FAIL() << got.numbers[i] << " for " << want.numbers[i] << " in row " << i / want.stride
             << ", column " << i % want.stride;
    }
  }

  Heads heads_{};
  std::unique_ptr<KvPool> pool_;
  std::vector<BlockIndex> free_;
};

TEST_P(AttentionTest, AgreesWithTheReferenceOverOddShapes) {
  const Heads shapes[] = {{4, 4, 64}, {8, 2, 32}, {3, 1, 80}, {2, 2, 7}, {6, 3, 48}, {5, 1, 128}};
  for (const Heads& heads : shapes) {
    for (int window : {0, 1, 40, 270}) {
      const AttentionSpec spec{.scale = 1.0f / std::sqrt(static_cast<float>(heads.head_dim)),
                               .window = window};
      Sequence a(heads, 70, 1), b(heads, 290, 2), c(heads, 1, 3);
      const TestRows want[] = {Reference(a, heads, spec), Reference(b, heads, spec),
                               Reference(c, heads, spec)};
      ForEachTarget([&] {
        auto device = MakeCpu(2);
        MakePool(*device, heads, 64, window % 3 == 0 ? 16 : 48);
        for (Sequence* s : {&a, &b, &c}) GiveBlocks(*s);
        Step(*device, {{&a, 0, 33}, {&b, 0, 280}}, spec);
        Step(*device, {{&b, 280, 9}, {&c, 0, 1}, {&a, 33, 37}}, spec);
        Step(*device, {{&b, 289, 1}}, spec);
        ExpectNear(a.out, want[0]);
        ExpectNear(b.out, want[1]);
        ExpectNear(c.out, want[2]);
      });
    }
  }
}

// Scores in the hundreds: the exponentials stay finite and one key gets all the weight.
TEST_P(AttentionTest, LargeScoresStayFinite) {
  auto device = MakeCpu(1);
  MakePool(*device, {1, 1, 16}, 64, 16);
  Sequence s(heads_, 600, 1);
  for (float& x : s.q.numbers) x *= 100;
  for (float& x : s.k.numbers) x *= 100;
  GiveBlocks(s);
  Step(*device, {{&s, 0, 600}}, {.scale = 1.0f});
  for (float x : s.out.numbers) ASSERT_TRUE(std::isfinite(x) && std::abs(x) <= 1.0f) << x;
}

// NaN must not be averaged away: later stages must detect it.
TEST_P(AttentionTest, NaNPropagates) {
  auto device = MakeCpu(1);
  MakePool(*device, {1, 1, 16}, 16, 16);
  Sequence s(heads_, 40, 1);
  s.k.row(20)[3] = NAN;
  GiveBlocks(s);
  Step(*device, {{&s, 0, 10}}, {.scale = 1.0f});
  Step(*device, {{&s, 10, 30}}, {.scale = 1.0f});
  for (int r = 0; r < 40; ++r) EXPECT_EQ(std::isnan(s.out.row(r)[5]), r >= 20) << r;
}

// The same sequence: whole; in chunks beside others; token by token; in other blocks; with 1 to 4
// threads, which also cut its context.
TEST_P(AttentionTest, BitsDoNotDependOnBatchChunksBlocksOrThreads) {
  const Heads heads{4, 2, 40};
  constexpr int kLength = 700;
  ForEachTarget(
      [&] {
        for (int window : {0, 333}) {
          const AttentionSpec spec{.scale = 0.3f, .window = window};
          auto single = MakeCpu(1);
          MakePool(*single, heads, 256, 16);
          Sequence whole(heads, kLength, 7), other(heads, kLength, 8);
          GiveBlocks(whole);
          Step(*single, {{&whole, 0, kLength}}, spec);
          for (int threads : {1, 2, 3, 4}) {
            auto device = MakeCpu(threads);
            MakePool(*device, heads, 200, 16);
            Sequence s(heads, kLength, 7);
            GiveBlocks(s);
            GiveBlocks(other);
            // Chunks of growing size beside a decoding neighbour, then single tokens.
            int done = 0;
            for (int chunk = 1; done + chunk < kLength - 5; chunk = chunk * 2 + threads) {
              Step(*device, {{&other, done, 1}, {&s, done, chunk}, {&other, done + 1, 3}}, spec);
              done += chunk;
            }
            for (; done < kLength; ++done) Step(*device, {{&s, done, 1}}, spec);
            for (int r = 0; r < kLength; ++r) {
              ASSERT_TRUE(SameBits(s.out.row(r), whole.out.row(r), s.out.stride))
                  << "row " << r << ", " << threads << " threads, window " << window;
            }
          }
        }
      },
      Weight::kHeavy);
}

TEST_P(AttentionTest, CopiedBlocksGiveTheSameAttention) {
  const Heads heads{2, 1, 24};
  auto device = MakeCpu(2);
  MakePool(*device, heads, 16, 32);
  Sequence s(heads, 60, 3);
  s.blocks = {2, 5};
  const AttentionSpec spec{.scale = 0.2f};
  Step(*device, {{&s, 0, 60}}, spec);
  auto host = Must(device->NewKvPool({2, heads.kv_heads, heads.head_dim, 32, 4, dtype()}));
  // Out to another pool and back to other blocks; the copies of one call run in order.
  device->CopyBlocks(*pool_, *host, std::vector<BlockCopy>{{2, 0}, {5, 3}});
  device->CopyBlocks(*host, *pool_, std::vector<BlockCopy>{{0, 9}, {3, 10}});
  device->CopyBlocks(*pool_, *pool_, std::vector<BlockCopy>{{9, 11}, {11, 12}, {10, 9}});
  s.blocks = {12, 9};
  TestRows out(60, heads.heads * heads.head_dim);
  const AttentionSpan span{0, 60, 0, s.blocks};
  const TestStep step(*device, *pool_, {&span, 1});
  device->Attend(step.all(), 1, spec, s.q.view(), out.view());
  EXPECT_TRUE(SameBits(out.row(0), s.out.row(0), out.numbers.size()));
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest,
                         testing::Values(CacheStorage{DType::kF32, 3e-6},
                                         CacheStorage{DType::kBF16, 2e-3},
                                         CacheStorage{DType::kF16, 3e-6}),
                         [](const auto& info) { return DTypeName(info.param.dtype); });

}  // namespace
}  // namespace millrace::tensor
