// Weights in 12 bits per number: no bit of a bf16 is lost, and what does not fit is kept aside.
#include "tensor/cpu/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "tensor/cpu/gemm.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

constexpr int kN = 70, kK = 1024;  // the last panel is not full

float Normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.Uniform();
  return static_cast<float>(sum);
}

// A weight whose rows have different magnitudes, as trained ones do.
void FillNormal(TestWeight& w, int n, int k) {
  Rng rng(5);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < k; ++i) {
      w.Set(static_cast<size_t>(j) * k + i, std::ldexp(Normal(rng), -j % 11));
    }
  }
}

// The format of a bf16 weight that may be shortened.
PanelFormat Shortened() {
  return GemmReadsShortBF16() ? PanelFormat::kShortBF16 : PanelFormat::kBF16;
}

class ShortBF16Test : public testing::Test {
 protected:
  std::unique_ptr<CpuPackedMatrix> Pack(const TestWeight& w, bool row_parallel = false) {
    return Must(CpuPackedMatrix::Pack({.parts = {&w.host, 1}, .row_parallel = row_parallel}, arena_,
                                      pool_));
  }

  MemoryArena arena_;
  ThreadPool pool_{2, false};
};

int GroupsAside(const CpuPackedMatrix& w) {
  size_t groups = 0;
  if (w.format() != PanelFormat::kShortBF16) return 0;
  for (int i = 0; i < w.panels(); ++i) groups += w.asides(i).groups.size() - 1;
  return static_cast<int>(groups);
}

// A product with rows of the unit matrix is the weight itself.
void ExpectEveryBit(const TestWeight& w, bool row_parallel) {
  auto device = MakeCpu(2);
  const int n = w.host.rows, k = w.host.cols;
  auto packed = Must(device->Pack({.parts = {&w.host, 1}, .row_parallel = row_parallel}));
  for (int rows : {1, 5, 40}) {
    for (int first = 0; first < k; first += rows) {
      const int count = std::min(rows, k - first);
      TestRows x(count, k), y(count, n);
      for (int r = 0; r < count; ++r) x.row(r)[first + r] = 1;
      device->MatMul(x.view(), *packed, y.view());
      for (int r = 0; r < count; ++r) {
        for (int j = 0; j < n; ++j) {
          uint16_t bits;
          std::memcpy(&bits, &w.bytes[2 * (static_cast<size_t>(j) * k + first + r)], 2);
          const float want = FactorOf(FloatFromBF16(bits)) + 0.0f;  // 0 + -0 is 0
          ASSERT_TRUE(SameBits(&y.row(r)[j], &want, 1)) << j << ", " << first + r << ", " << rows;
        }
      }
    }
  }
}

TEST_F(ShortBF16Test, NormalWeightsTakeThreeQuarters) {
  TestWeight w(DType::kBF16, kN, kK, 1);
  FillNormal(w, kN, kK);
  const auto packed = Pack(w);
  EXPECT_EQ(packed->format(), Shortened());
  const double share =
      static_cast<double>(packed->bytes()) / (2.0 * packed->panels() * kPanelWidth * kK);
  if (GemmReadsShortBF16()) {
    EXPECT_GT(share, 0.75);
    EXPECT_LT(share, 0.78);
  } else {
    EXPECT_EQ(share, 1);
  }
  EXPECT_LE(GroupsAside(*packed), packed->panels() * kK / kShortGroup / 16);
}

TEST_F(ShortBF16Test, EveryBitIsThere) {
  TestWeight w(DType::kBF16, kN, kK, 1);
  FillNormal(w, kN, kK);
  // Zeros, the smallest number, and one number per row far above the others; in the first, last and
  // neighbouring groups.
  for (int at : {0, 1, 7, 8, 500, kK - 1}) {
    w.Set(static_cast<size_t>(at) + 3 * kK, 0.0f);
    w.Set(static_cast<size_t>(at) + 40 * kK, std::numeric_limits<float>::denorm_min() * 0x1p16f);
    w.Set(static_cast<size_t>(at) + 69 * kK, at % 2 == 0 ? 0x1p3f : -0x1p-60f);
  }
  for (bool row_parallel : {false, true}) {
    const auto packed = Pack(w, row_parallel);
    ASSERT_EQ(packed->format(), Shortened());
    EXPECT_EQ(GroupsAside(*packed) > 0, GemmReadsShortBF16());
    ExpectEveryBit(w, row_parallel);
  }
}

// All groups of their 16 outputs are kept aside; the panel is the second of five and not one of the
// sampled panels.
TEST_F(ShortBF16Test, InfinityAndNaNAreKeptExactly) {
  constexpr int kManyN = 5 * kPanelWidth, kFirst = kPanelWidth;
  TestWeight w(DType::kBF16, kManyN, kK, 1);
  FillNormal(w, kManyN, kK);
  w.Set(kFirst * kK + 5, std::numeric_limits<float>::infinity());
  w.Set((kFirst + 6) * kK + 9, std::nanf(""));
  const auto packed = Pack(w);
  ASSERT_EQ(packed->format(), Shortened());
  if (GemmReadsShortBF16()) {
    EXPECT_GE(packed->asides(1).groups.size() - 1, kK / kShortGroup / 2);
  }
  auto device = MakeCpu(1);
  auto there = Must(device->Pack({.parts = {&w.host, 1}}));
  TestRows x(1, kK), y(1, kManyN);
  x.row(0)[5] = 1;
  device->MatMul(x.view(), *there, y.view());
  EXPECT_EQ(y.row(0)[kFirst], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(y.row(0)[kFirst + 6]));
  EXPECT_TRUE(std::isfinite(y.row(0)[kFirst + 7]));
}

TEST_F(ShortBF16Test, WeightsOfAllMagnitudesAreNotShortened) {
  TestWeight w(DType::kBF16, kN, kK, 1);
  Rng rng(3);
  for (size_t i = 0; i < size_t{kN} * kK; ++i) {
    w.Set(i, static_cast<float>(std::exp2(60 * rng.Uniform() - 30)));
  }
  EXPECT_EQ(Pack(w)->format(), PanelFormat::kBF16);
  ExpectEveryBit(w, false);
}

// Zeros fill a shard up to whole blocks. Groups with zeros are kept aside, of which a few are
// worth it.
TEST_F(ShortBF16Test, ShardsAreFilledUp) {
  for (const auto& [k, row_parallel, worth] :
       {std::tuple{8 * 88, true, true}, {8 * 83, true, false}, {1023, false, true}}) {
    TestWeight w(DType::kBF16, kN, k, 1);
    FillNormal(w, kN, k);
    EXPECT_EQ(Pack(w, row_parallel)->format(), worth ? Shortened() : PanelFormat::kBF16) << k;
    ExpectEveryBit(w, row_parallel);
  }
}

// A worker drops layers one by one; those that are left must not keep the others' memory.
TEST(MemoryArenaTest, AnEndedPieceGivesItsPagesBack) {
  MemoryArena arena;
  constexpr size_t kBytes = size_t{1} << 20, kPages = kBytes / 4096;
  std::vector<MemoryArena::Piece> pieces;
  for (int i = 0; i < 3; ++i) {
    pieces.push_back(Must(arena.Allocate(kBytes, "a test")));
    std::memset(pieces.back().data, 1, kBytes);
  }
  const auto resident = [&](void* data) {
    std::vector<unsigned char> pages(kPages);
    EXPECT_EQ(mincore(data, kBytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  };
  void* const middle = pieces[1].data;
  EXPECT_EQ(resident(middle), static_cast<ptrdiff_t>(kPages));
  pieces[1] = {};
  EXPECT_EQ(resident(middle), 0);
  for (const int i : {0, 2}) {
    const auto* bytes = static_cast<const char*>(pieces[static_cast<size_t>(i)].data);
    EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](char c) { return c == 1; })) << i;
  }
}

TEST(PackedMatrixTest, NarrowVectorsAndOtherTypesAreNotShortened) {
  TestWeight f16(DType::kF16, kN, kK, 1), f32(DType::kF32, kN, kK, 1),
      bf16(DType::kBF16, kN, kK, 1);
  MemoryArena arena;
  ThreadPool pool(1, false);
  ForEachTarget([&] {
    const auto format_of = [&](const TestWeight& w) {
      return Must(CpuPackedMatrix::Pack({.parts = {&w.host, 1}}, arena, pool))->format();
    };
    EXPECT_EQ(format_of(f16), PanelFormat::kF16);
    EXPECT_EQ(format_of(f32), PanelFormat::kF32);
    EXPECT_EQ(format_of(bf16), Shortened());
  });
}

}  // namespace
}  // namespace millrace::tensor
