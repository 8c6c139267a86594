// Products on tiles against the same products by fused multiply-adds, bit by bit: the machine's
// tiles, or emulated ones.
#include "tensor/cpu/amx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "tensor/cpu/amx_gemm.h"
#include "tensor/cpu/cpu_features.h"
#include "tensor/testing/amx_emulator.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

// Tiles for the length of a test; none, said aloud, where neither kind is possible.
class AmxTest : public testing::Test {
 protected:
  void SetUp() override {
    executed_ = AmxEmulator::executed();
    if (AmxEmulator::IsPossible()) {
      emulator_.emplace();
      std::puts("tiles are emulated: this processor has no AMX");
    } else if (!AmxIsThere()) {
      std::puts("tiles were not run: this processor has neither AMX nor AVX-512");
    }
  }
  void TearDown() override {
    if (emulator_) {
      EXPECT_GT(AmxEmulator::executed(), executed_);
    }
    emulator_.reset();
    ASSERT_TRUE(SetCpuActivations("bf16").ok());
  }

  // y = x W^T + bias + residual on tiles, if there are any.
  static void Multiply(TestRows& x, const TestWeight& w, bool row_parallel, TestRows& y) {
    auto device = MakeCpu(2);
    auto packed = Must(device->Pack({.parts = {&w.host, 1}, .row_parallel = row_parallel}));
    const std::vector<float> numbers = TestRows::Random(1, w.host.rows, 5).Copy(0);
    auto bias = Must(device->NewVector(numbers));
    device->MatMul(x.view(), *packed, y.view(), {bias.get(), y.view()});
  }
  template <typename Body>
  static void WithoutTiles(Body body) {
    const bool there = AmxIsThere();
    SetAmxForTest(false);
    body();
    SetAmxForTest(there);
  }

 private:
  std::optional<AmxEmulator> emulator_;
  int64_t executed_ = 0;
};

TEST_F(AmxTest, TilesGiveTheBitsOfMultiplyAdds) {
  for (const char* activations : {"bf16", "bf16x2"}) {
    ASSERT_TRUE(SetCpuActivations(activations).ok());
    for (const auto& [m, n, k] :
         {std::array{1, 33, 70}, {4, 70, 330}, {16, 160, 704}, {17, 40, 88}, {70, 65, 500}}) {
      for (bool row_parallel : {false, true}) {
        for (bool shortens : {false, true}) {
          TestWeight w(DType::kBF16, n, k, 9);
          Rng rng(4);
          for (int i = 0; i < n * k; ++i) {  // exponents that 12 bits hold, or do not
            const int exponent = static_cast<int>(rng.Between(0, shortens ? 4 : 60));
            w.Set(static_cast<size_t>(i),
                  std::ldexp(static_cast<float>(rng.Uniform() - 0.5), -exponent));
          }
          TestRows x = TestRows::Random(m, k, 1, 3), y = TestRows::Random(m, n, 2, 5);
          TestRows want = y;
          Multiply(x, w, row_parallel, y);
          WithoutTiles([&] { Multiply(x, w, row_parallel, want); });
          for (int r = 0; r < m; ++r) {
            ASSERT_TRUE(SameBits(y.row(r), want.row(r), static_cast<size_t>(n)))
                << activations << ", row " << r << " of " << m << " x " << n << " x " << k;
          }
        }
      }
    }
  }
}

TEST_F(AmxTest, SpecialNumbersPassThroughTiles) {
  TestWeight w(DType::kBF16, 40, 64, 3);
  w.Set(5, HUGE_VALF);
  w.Set(64 + 7, 1e-39f);  // denormal: zero
  TestRows x = TestRows::Random(5, 64, 1), y(5, 40), want(5, 40);
  x.row(1)[9] = NAN;
  x.row(2)[3] = 1e-40f;
  Multiply(x, w, false, y);
  WithoutTiles([&] { Multiply(x, w, false, want); });
  for (int r = 0; r < 5; ++r) {
    for (int j = 0; j < 40; ++j) {
      EXPECT_EQ(std::isnan(y.row(r)[j]), std::isnan(want.row(r)[j]));
      if (std::isnan(want.row(r)[j])) continue;
      EXPECT_TRUE(SameBits(y.row(r) + j, want.row(r) + j, 1));
    }
  }
}

// Of one tile and of several, and of so few rows that tiles are not used.
TEST_F(AmxTest, RowsInBF16GiveTheSameBits) {
  constexpr int kN = 100, kK = 500;
  TestWeight w(DType::kBF16, kN, kK, 9);
  for (const bool row_parallel : {false, true}) {
    auto device = MakeCpu(2);
    auto packed = Must(device->Pack({.parts = {&w.host, 1}, .row_parallel = row_parallel}));
    if (AmxIsThere()) {
      ASSERT_EQ(packed->input(), DType::kBF16);
    }
    for (const int m : {1, 9, 70}) {
      TestRows x = TestRows::Random(m, kK, 1, 3), y(m, kN), want(m, kN);
      auto buffer = Must(device->NewBuffer(sizeof(float) * static_cast<size_t>(m * kK)));
      const Rows narrow = buffer->View(m, kK, packed->input());
      for (int r = 0; r < m && narrow.type == DType::kBF16; ++r) {
        auto* row = static_cast<uint16_t*>(narrow.Slice(r, 1).data);
        std::ranges::transform(x.Copy(r), row, BF16FromFloat);
      }
      device->MatMul(narrow.type == DType::kBF16 ? narrow : x.view(), *packed, y.view());
      WithoutTiles([&] { MakeCpu(1)->MatMul(x.view(), *packed, want.view()); });
      EXPECT_TRUE(SameBits(y.row(0), want.row(0), want.numbers.size())) << m;
    }
  }
}

TEST_F(AmxTest, GatedProductsOnTilesHaveTheSameBits) {
  for (const char* activations : {"bf16", "bf16x2"}) {
    ASSERT_TRUE(SetCpuActivations(activations).ok());
    for (const int m : {1, 40}) {
      constexpr int kN = 96, kK = 420;
      TestWeight w(DType::kBF16, 2 * kN, kK, 9);
      TestRows x = TestRows::Random(m, kK, 1), y(m, kN), want(m, kN);
      const auto multiply = [&](TestRows& to) {
        auto device = MakeCpu(2);
        auto packed = Must(device->Pack({.parts = {&w.host, 1}, .gated = true}));
        auto weight = Must(device->NewVector(TestRows::Random(1, kK, 2).Copy(0)));
        auto bias = Must(device->NewVector(TestRows::Random(1, 2 * kN, 3).Copy(0)));
        TestRows normed(m, kK), both(m, 2 * kN);
        device->GatedMatMul(x.view(), {.weight = weight.get()}, normed.view(), *packed, bias.get(),
                            Activation::kSilu, both.view(), to.view());
      };
      multiply(y);
      WithoutTiles([&] { multiply(want); });
      EXPECT_TRUE(SameBits(y.row(0), want.row(0), want.numbers.size())) << activations << ", " << m;
    }
  }
}

// A prompt in two chunks and a token, over blocks of garbage that only the tokens replace.
TEST_F(AmxTest, AttentionOnTilesGivesTheBitsOfMultiplyAdds) {
  for (const auto& shape : {std::array{2, 2, 64}, {8, 2, 40}, {3, 1, 7}, {2, 1, 80}}) {
    const int heads = shape[0], kv_heads = shape[1], dim = shape[2];
    for (int window : {0, 70}) {
      constexpr int kLength = 330;
      TestRows q = TestRows::Random(kLength, heads * dim, 1), out(kLength, heads * dim),
               want(kLength, heads * dim);
      TestRows k = TestRows::Random(kLength, kv_heads * dim, 2);
      TestRows v = TestRows::Random(kLength, kv_heads * dim, 3);
      const auto attend = [&](TestRows& to) {
        auto device = MakeCpu(2);
        auto pool = Must(device->NewKvPool({.num_layers = 1,
                                            .num_kv_heads = kv_heads,
                                            .head_dim = dim,
                                            .num_blocks = 22,
                                            .dtype = DType::kBF16}));
        std::vector<BlockIndex> blocks(22);
        std::iota(blocks.rbegin(), blocks.rend(), 0);
        TestRows garbage(22 * 16, kv_heads * dim);
        std::ranges::fill(garbage.numbers, NAN);
        const AttentionSpan all{0, 22 * 16, 0, blocks};
        const TestStep fill(*device, *pool, {&all, 1});
        device->WriteKv(fill.all(), 0, garbage.view(), garbage.view());
        for (const auto& [start, end] :
             {std::pair{0, 37}, {37, kLength - 1}, {kLength - 1, kLength}}) {
          const int rows = end - start;
          const AttentionSpan span{0, rows, start, blocks};
          const TestStep step(*device, *pool, {&span, 1});
          device->WriteKv(step.all(), 0, k.view().Slice(start, rows), v.view().Slice(start, rows));
          device->Attend(step.all(), 0, {0.3f, window}, q.view().Slice(start, rows),
                         to.view().Slice(start, rows));
        }
      };
      attend(out);
      WithoutTiles([&] { attend(want); });
      for (int r = 0; r < kLength; ++r) {
        ASSERT_TRUE(SameBits(out.row(r), want.row(r), static_cast<size_t>(heads * dim)))
            << "row " << r << ", " << heads << " heads of " << dim << ", window " << window;
        ASSERT_FALSE(std::isnan(want.row(r)[0])) << r;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::tensor
