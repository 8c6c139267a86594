// Products against gemm_ref, and the promise of batch invariance, bit for bit.
#include "tensor/cpu/gemm.h"

#include <cmath>

#include "tensor/testing/gemm_ref.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

// Storage type of the weight and the tolerance, relative to the sum of the products' magnitudes.
// The reference uses the stored weights, so only f32 accumulation is inexact for every type.
struct WeightStorage {
  DType dtype;
  double tolerance;
};

class GemmTest : public testing::TestWithParam<WeightStorage> {
 protected:
  DType dtype() const { return GetParam().dtype; }

  std::unique_ptr<PackedMatrix> Pack(Device& device, const PackSpec& spec) {
    return Must(device.Pack(spec));
  }

  // Compares one product with the reference.
  void Check(Device& device, int m, const PackSpec& spec, bool bias, bool residual) {
    auto w = Pack(device, spec);
    const int n = w->n(), k = w->k();
    TestRows x = TestRows::Random(m, k, 1, 3), y(m, n, 5), want(m, n);
    if (dtype() == DType::kBF16) {  // the product rounds them
      for (float& v : x.numbers) v = FloatFromBF16(BF16FromFloat(v));
    }
    TestRows add = TestRows::Random(m, n, 2, 1), b = TestRows::Random(1, n, 3);
    auto vector = Must(device.NewVector(b.Copy(0)));
    MatMulExtras extras;
    if (bias) extras.bias = vector.get();
    if (residual) extras.residual = add.view();
    std::fill(y.numbers.begin(), y.numbers.end(), 7.0f);
    device.MatMul(x.view(), *w, y.view(), extras);
    MatMulRef(x.view(), spec, bias ? b.row(0) : nullptr, extras.residual, want.view());
    for (int r = 0; r < m; ++r) {
      for (int j = 0; j < n; ++j) {
        ASSERT_NEAR(y.row(r)[j], want.row(r)[j], GetParam().tolerance * (k + 2))
            << "[" << r << ", " << j << "] of " << m << " x " << n << " x " << k;
      }
      for (int j = n; j < y.stride && r + 1 < m; ++j)
        ASSERT_EQ(y.row(r)[j], 7.0f) << "beyond the row";
    }
  }
};

TEST_P(GemmTest, AgreesWithTheReferenceOverOddShapes) {
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    const int shapes[][3] = {{1, 1, 1},     {1, 32, 8},    {1, 33, 7},     {2, 31, 64},
                             {3, 96, 100},  {5, 65, 17},   {7, 160, 33},   {13, 64, 9},
                             {14, 40, 50},  {15, 64, 600}, {29, 33, 1030}, {64, 70, 40},
                             {300, 34, 24}, {600, 33, 5}};
    for (const auto& [m, n, k] : shapes) {
      TestWeight w(dtype(), n, k, 9);
      for (bool row_parallel : {false, true}) {
        Check(*device, m, {.parts = {&w.host, 1}, .row_parallel = row_parallel}, m % 2 == 0,
              m % 3 == 0);
      }
    }
  });
}

TEST_P(GemmTest, StacksPartsAndReadsTransposedOnes) {
  ForEachTarget([&] {
    auto device = MakeCpu(1);
    TestWeight a(dtype(), 40, 33, 1), b(dtype(), 8, 33, 2), c(dtype(), 55, 33, 3);
    const HostMatrix parts[] = {a.host, b.host, c.host};
    Check(*device, 5, {.parts = parts}, true, false);
    TestWeight d(dtype(), 33, 40, 4), e(dtype(), 33, 9, 5);
    const HostMatrix columns[] = {d.host, e.host};
    Check(*device, 5, {.parts = columns, .transposed = true}, false, true);
  });
}

TEST_P(GemmTest, TransposedPackIsTheSameMatrix) {
  TestWeight w(dtype(), 70, 45, 1), t(dtype(), 45, 70, 1);
  for (int i = 0; i < 70; ++i) {
    for (int j = 0; j < 45; ++j) t.Set(j * 70 + i, ElementOf(w.host, i, j));
  }
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    auto a = Pack(*device, {.parts = {&w.host, 1}});
    auto b = Pack(*device, {.parts = {&t.host, 1}, .transposed = true});
    TestRows x = TestRows::Random(20, 45, 2), y(20, 70), z(20, 70);
    device->MatMul(x.view(), *a, y.view());
    device->MatMul(x.view(), *b, z.view());
    EXPECT_TRUE(SameBits(y.row(0), z.row(0), y.numbers.size()));
  });
}

TEST_P(GemmTest, ResidualMayBeTheResultItself) {
  auto device = MakeCpu(2);
  TestWeight w(dtype(), 50, 64, 1);
  auto packed = Pack(*device, {.parts = {&w.host, 1}});
  TestRows x = TestRows::Random(17, 64, 1), y = TestRows::Random(17, 50, 2), z(17, 50);
  TestRows before = y;
  device->MatMul(x.view(), *packed, z.view(), {.residual = before.view()});
  device->MatMul(x.view(), *packed, y.view(), {.residual = y.view()});
  EXPECT_TRUE(SameBits(y.row(0), z.row(0), y.numbers.size()));
}

// A row alone has the same bits as in any batch, with any number of threads.
TEST_P(GemmTest, RowIsTheSameBitsInEveryBatchAndWithEveryThreadCount) {
  constexpr int kRows = 531, kK = 1100, kN = 75;
  TestRows x = TestRows::Random(kRows, kK, 1);
  TestRows add = TestRows::Random(kRows, kN, 2);
  TestWeight w(dtype(), kN, kK, 3);
  ForEachTarget(
      [&] {
        for (bool row_parallel : {false, true}) {
          auto single = MakeCpu(1);
          auto packed = Pack(*single, {.parts = {&w.host, 1}, .row_parallel = row_parallel});
          TestRows alone(kRows, kN);
          for (int r = 0; r < kRows; r += 7) {
            single->MatMul(x.view().Slice(r, 1), *packed, alone.view().Slice(r, 1),
                           {.residual = add.view().Slice(r, 1)});
          }
          for (int threads : {1, 2, 3, 4}) {
            auto device = MakeCpu(threads);
            for (int batch : {2, 3, 14, 16, 40, 64, 530}) {
              const int first = (threads * 7) % (kRows - batch);
              TestRows y(batch, kN);
              device->MatMul(x.view().Slice(first, batch), *packed, y.view(),
                             {.residual = add.view().Slice(first, batch)});
              for (int r = 0; r < batch; ++r) {
                if ((first + r) % 7 != 0) continue;
                ASSERT_TRUE(SameBits(y.row(r), alone.row(first + r), kN))
                    << "row " << r << " of " << batch << ", " << threads << " threads";
              }
            }
          }
        }
      },
      Weight::kHeavy);
}

// Ranks that hold equal cuts of K, added pairwise, give the bits of a single rank.
TEST_P(GemmTest, VirtualShardsMakeTensorParallelDegreesAgree) {
  constexpr int kN = 40, kRows = 18;
  ForEachTarget(
      [&] {
        for (int k : {64, 8 * 83, 8 * 700}) {
          auto device = MakeCpu(2);
          TestWeight w(dtype(), kN, k, 1);
          TestRows x = TestRows::Random(kRows, k, 2), want(kRows, kN);
          auto whole = Pack(*device, {.parts = {&w.host, 1}, .row_parallel = true});
          device->MatMul(x.view(), *whole, want.view());
          for (int degree : {1, 2, 4, 8}) {
            std::vector<TestRows> sums;
            for (int rank = 0; rank < degree; ++rank) {
              const int cut = k / degree;
              const HostMatrix slice{
                  static_cast<const uint8_t*>(w.host.data) + rank * cut * BytesOf(dtype()), dtype(),
                  kN, cut, k};
              auto part = Pack(
                  *device, {.parts = {&slice, 1}, .row_parallel = true, .tensor_parallel = degree});
              sums.emplace_back(kRows, kN);
              device->MatMul(x.view().Columns(rank * cut, cut), *part, sums.back().view());
            }
            for (int step = 1; step < degree; step *= 2) {
              for (int rank = 0; rank < degree; rank += 2 * step) {
                device->Add(sums[rank + step].view(), sums[rank].view());
              }
            }
            EXPECT_TRUE(SameBits(sums[0].row(0), want.row(0), want.numbers.size()))
                << "degree " << degree << ", k " << k;
          }
          // Bias and residual once, after the sum, as for the whole product.
          TestRows bias = TestRows::Random(1, kN, 3), residual = TestRows::Random(kRows, kN, 4);
          auto vector = *device->NewVector({bias.row(0), kN});
          TestRows full(kRows, kN), late(kRows, kN);
          for (const MatMulExtras& extras :
               {MatMulExtras{}, MatMulExtras{vector.get(), {}}, MatMulExtras{{}, residual.view()},
                MatMulExtras{vector.get(), residual.view()}}) {
            device->MatMul(x.view(), *whole, full.view(), extras);
            device->FinishProduct(want.view(), late.view(), extras);
            EXPECT_TRUE(SameBits(late.row(0), full.row(0), full.numbers.size())) << k;
          }
        }
      },
      Weight::kHeavy);
}

INSTANTIATE_TEST_SUITE_P(Types, GemmTest,
                         testing::Values(WeightStorage{DType::kF32, 2e-7},
                                         WeightStorage{DType::kBF16, 2e-7},
                                         WeightStorage{DType::kF16, 2e-7}),
                         [](const auto& info) { return DTypeName(info.param.dtype); });

// A part of a larger matrix: some of its columns, here the outputs of a [k, n] weight.
TEST(PackTest, PartsMayBeColumnsOfALargerMatrix) {
  constexpr int kK = 19, kN = 70, kFirst = 11, kCount = 37;
  auto device = MakeCpu(1);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    TestWeight w(dtype, kK, kN, 1);
    const HostMatrix columns{static_cast<const uint8_t*>(w.host.data) + kFirst * BytesOf(dtype),
                             dtype, kK, kCount, kN};
    auto whole = *device->Pack({.parts = {&w.host, 1}, .transposed = true});
    auto part = *device->Pack({.parts = {&columns, 1}, .transposed = true});
    TestRows x = TestRows::Random(5, kK, 2), want(5, kN), got(5, kCount);
    device->MatMul(x.view(), *whole, want.view());
    device->MatMul(x.view(), *part, got.view());
    for (int r = 0; r < 5; ++r) {
      EXPECT_TRUE(SameBits(got.row(r), want.row(r) + kFirst, kCount)) << r;
    }
  }
}

TEST(PackTest, RefusesPartsThatDoNotFit) {
  auto device = MakeCpu(1);
  TestWeight a(DType::kF32, 4, 8, 1), b(DType::kF32, 4, 9, 1), c(DType::kBF16, 4, 8, 1);
  const HostMatrix widths[] = {a.host, b.host}, types[] = {a.host, c.host};
  EXPECT_EQ(device->Pack({.parts = widths}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Pack({.parts = types}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Pack({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::tensor
