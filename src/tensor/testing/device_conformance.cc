#include "tensor/testing/device_conformance.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tensor/cpu/sample.h"
#include "tensor/testing/elementwise_ref.h"
#include "tensor/testing/gemm_ref.h"

namespace millrace::tensor {

constexpr float kGap = 7.0f;

DeviceRows::DeviceRows(Device& device, TestRows host, int gap)
    : device_(device), cols_(host.shape[1]) {
  const int rows = host.shape[0], stride = cols_ + gap;
  buffer_ = Must(device.NewBuffer(sizeof(float) * static_cast<size_t>(std::max(1, rows * stride))));
  whole_ = buffer_->View(rows, stride);
  TestRows filled(rows, stride);
  std::fill(filled.numbers.begin(), filled.numbers.end(), kGap);
  for (int r = 0; r < rows; ++r) std::copy_n(host.row(r), cols_, filled.row(r));
  device.Write(filled.numbers.data(), whole_);
}

TestRows DeviceRows::Get() const {
  TestRows host(whole_.rows, cols_);
  device_.Read(view(), host.numbers.data());
  return host;
}

void DeviceRows::ExpectGaps() const {
  TestRows all(whole_.rows, whole_.cols);
  device_.Read(whole_, all.numbers.data());
  for (int r = 0; r < whole_.rows; ++r) {
    for (int i = cols_; i < whole_.cols; ++i) ASSERT_EQ(all.row(r)[i], kGap) << "beyond row " << r;
  }
}

float RoundTo(DType dtype, float x) {
  if (dtype == DType::kF32) return x;
  return dtype == DType::kBF16 ? FloatFromBF16(BF16FromFloat(x)) : FloatFromF16(F16FromFloat(x));
}

void DeviceConformance::ExpectNear(const std::vector<float>& got, const std::vector<float>& want,
                                   const char* what, double tolerance) {
  if (tolerance == 0) tolerance = GetParam().tolerance;
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::abs(want[i])))
        << what << " [" << i << "] of " << want.size();
  }
}

namespace {

constexpr int kNormWidths[] = {1, 2, 15, 16, 17, 64, 100, 769};

void ExpectSameBits(const TestRows& a, const TestRows& b, const char* what) {
  ASSERT_EQ(a.numbers.size(), b.numbers.size()) << what;
  EXPECT_TRUE(SameBits(a.numbers.data(), b.numbers.data(), a.numbers.size())) << what;
}

TEST_P(DeviceConformance, SaysWhatItIs) {
  EXPECT_FALSE(device().Name().empty());
  EXPECT_FALSE(device().NumericClass().empty());
  EXPECT_EQ(GetParam().make()->NumericClass(), device().NumericClass());
  EXPECT_GT(device().MemoryAvailable().bytes, 0);
  EXPECT_FALSE(device().MemoryAvailable().source.empty());
  const DeviceLimits limits = device().Limits();
  EXPECT_TRUE(limits.mlp_rows > 0 && limits.sum_rows > 0 && limits.logits_rows > 0);
}

TEST_P(DeviceConformance, TooMuchMemoryIsAnError) {
  EXPECT_EQ(device().NewBuffer(std::numeric_limits<size_t>::max() / 2).status().code(),
            StatusCode::kResourceExhausted);
  for (const Place place : {Place::kDevice, Place::kHost}) {
    EXPECT_EQ(device().NewKvPool({80, 64, 128, 16, 2000000000}, place).status().code(),
              StatusCode::kResourceExhausted);
  }
}

TEST_P(DeviceConformance, BuffersHoldRowsOfAnyType) {
  auto buffer = Must(device().NewBuffer(400));
  EXPECT_EQ(buffer->View(5, 20).stride, 20);
  EXPECT_EQ(buffer->View(10, 20, DType::kBF16).row_bytes(), 40u);
  EXPECT_DEATH(buffer->View(5, 21), "");
  EXPECT_DEATH(buffer->View(10, 21, DType::kF16), "");
  // 16-bit rows, in the middle of others, from unaligned memory and back.
  const Rows all = buffer->View(10, 20, DType::kBF16), part = all.Slice(3, 2).Columns(5, 7);
  std::vector<uint8_t> zeros(400), bytes(1 + 2 * 14), back(2 * 14);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  device().Write(zeros.data(), all);
  device().Write(bytes.data() + 1, part);
  device().Read(part, back.data());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin() + 1));
  std::vector<uint8_t> whole(400);
  device().Read(all, whole.data());
  EXPECT_EQ(std::accumulate(whole.begin(), whole.end(), 0),
            std::accumulate(back.begin(), back.end(), 0))
      << "nothing else was written";
}

TEST_P(DeviceConformance, ProductsAgreeWithTheReference) {
  const int shapes[][3] = {{1, 1, 1},    {1, 33, 7},    {2, 31, 64},    {7, 160, 33},
                           {14, 40, 50}, {15, 64, 600}, {29, 33, 1030}, {130, 34, 24}};
  for (const DType dtype : kStorageTypes) {
    for (const auto& [m, n, k] : shapes) {
      TestWeight w(dtype, n, k, 9);
      for (const bool row_parallel : {false, true}) {
        const PackSpec spec{.parts = {&w.host, 1}, .row_parallel = row_parallel};
        auto packed = Must(device().Pack(spec));
        TestRows x = TestRows::Random(m, k, 1), b = TestRows::Random(1, n, 3), want(m, n);
        TestRows add = TestRows::Random(m, n, 2);
        for (float& v : x.numbers) v = RoundTo(dtype, v);
        const DeviceRows on_x(device(), x, 3), on_add(device(), add, 1), y(device(), {m, n}, 5);
        const bool bias = m % 2 == 0, residual = m % 3 == 0;
        auto vector = NewVector(b);
        MatMulExtras extras{bias ? vector.get() : nullptr, {}};
        if (residual) extras.residual = on_add.view();
        device().MatMul(on_x.view(), *packed, y.view(), extras);
        MatMulRef(x.view(), spec, bias ? b.row(0) : nullptr, residual ? add.view() : Rows{},
                  want.view());
        const TestRows got = y.Get();
        for (size_t i = 0; i < got.numbers.size(); ++i) {
          ASSERT_NEAR(got.numbers[i], want.numbers[i], GetParam().product_tolerance * (k + 2))
              << m << " x " << n << " x " << k << " " << DTypeName(dtype);
        }
        y.ExpectGaps();
      }
    }
  }
}

// The parts of a product: what a rank adds up and finishes equals one device's product.
TEST_P(DeviceConformance, RanksSumsAreOneProduct) {
  constexpr int kM = 5, kN = 40, kK = 512;
  TestWeight w(DType::kBF16, kN, kK, 1);
  TestRows b = TestRows::Random(1, kN, 3);
  const DeviceRows x(device(), TestRows::Random(kM, kK, 1)), want(device(), {kM, kN}),
      residual(device(), TestRows::Random(kM, kN, 2));
  auto bias = NewVector(b);
  const MatMulExtras extras{bias.get(), residual.view()};
  auto whole = Must(device().Pack({.parts = {&w.host, 1}, .row_parallel = true}));
  device().MatMul(x.view(), *whole, want.view(), extras);
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<std::unique_ptr<DeviceRows>> sums;
    const int k = kK / ranks;
    for (int r = 0; r < ranks; ++r) {
      const HostMatrix part{w.bytes.data() + 2 * r * k, DType::kBF16, kN, k, kK};
      auto packed = Must(
          device().Pack({.parts = {&part, 1}, .row_parallel = true, .tensor_parallel = ranks}));
      sums.push_back(std::make_unique<DeviceRows>(device(), TestRows(kM, kN)));
      device().MatMul(x.view().Columns(r * k, k), *packed, sums.back()->view());
    }
    for (int step = 1; step < ranks; step *= 2) {
      for (int r = 0; r < ranks; r += 2 * step) {
        device().Add(sums[static_cast<size_t>(r + step)]->view(),
                     sums[static_cast<size_t>(r)]->view());
      }
    }
    device().FinishProduct(sums[0]->view(), sums[0]->view(), extras);
    ExpectSameBits(sums[0]->Get(), want.Get(), "ranks");
  }
}

TEST_P(DeviceConformance, NormsAgreeWithTheReference) {
  for (const int n : kNormWidths) {
    TestRows x = TestRows::Random(9, n, n), w = TestRows::Random(1, n, 5),
             b = TestRows::Random(1, n, 6);
    auto weight = NewVector(w), bias = NewVector(b);
    const DeviceRows on_x(device(), x, 2), y(device(), {9, n}, 1);
    for (const NormSpec& norm : {NormSpec{NormKind::kRms, weight.get(), nullptr, 1e-5f},
                                 NormSpec{NormKind::kLayer, weight.get(), nullptr, 1e-5f},
                                 NormSpec{NormKind::kLayer, weight.get(), bias.get(), 1e-5f}}) {
      device().Norm(on_x.view(), norm, y.view());
      TestRows got = y.Get();
      for (int r = 0; r < 9; ++r) {
        const std::vector<float> own = norm.bias != nullptr ? b.Copy(0) : std::vector<float>{};
        ExpectNear(got.Copy(r),
                   norm.kind == NormKind::kRms ? RmsNormRef(x.Copy(r), w.Copy(0), 1e-5f)
                                               : LayerNormRef(x.Copy(r), w.Copy(0), own, 1e-5f),
                   "norm", 1e-5);  // of two numbers, the mean cancels most
      }
      y.ExpectGaps();
    }
  }
}

TEST_P(DeviceConformance, ActivationsAgreeWithTheReference) {
  TestRows points(3, 1001), up = TestRows::Random(3, 1001, 4);
  for (size_t i = 0; i < points.numbers.size(); ++i) {
    points.numbers[i] = (static_cast<float>(i) - 1500.0f) / 37.0f;
  }
  points.numbers[5] = 1e30f;
  points.numbers[6] = -1e30f;
  for (const Activation f :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    const DeviceRows x(device(), points, 3), on_up(device(), up), y(device(), {3, 1001}, 1);
    device().GatedActivate(x.view(), on_up.view(), f, y.view());
    device().Activate(x.view(), f, x.view());
    TestRows gated = y.Get(), plain = x.Get();
    for (int r = 0; r < 3; ++r) {
      std::vector<float> want, want_gated;
      for (int i = 0; i < 1001; ++i) {
        want.push_back(ActivateRef(f, points.row(r)[i]));
        want_gated.push_back(want.back() * up.row(r)[i]);
      }
      ExpectNear(plain.Copy(r), want, "activation in place");
      ExpectNear(gated.Copy(r), want_gated, "gated activation");
    }
    x.ExpectGaps();
  }
}

// A device may fuse these; the bits are those of the small calls.
TEST_P(DeviceConformance, FusedProductsAreTheirSmallCalls) {
  constexpr int kM = 21, kK = 72, kN = 45;
  TestWeight w(DType::kF16, 2 * kN, kK, 1);
  auto packed = Must(device().Pack({.parts = {&w.host, 1}}));
  auto weight = NewVector(TestRows::Random(1, kK, 2)), bias = NewVector(TestRows::Random(1, kK, 3)),
       b = NewVector(TestRows::Random(1, 2 * kN, 4));
  const DeviceRows x(device(), TestRows::Random(kM, kK, 5));
  for (const NormSpec& norm : {NormSpec{NormKind::kRms, weight.get(), nullptr, 1e-5f},
                               NormSpec{NormKind::kLayer, weight.get(), bias.get(), 1e-5f}}) {
    const DeviceRows normed(device(), {kM, kK}), want(device(), {kM, 2 * kN}),
        got(device(), {kM, 2 * kN}), gated(device(), {kM, kN}), want_gated(device(), {kM, kN});
    device().Norm(x.view(), norm, normed.view());
    device().MatMul(normed.view(), *packed, want.view(), {b.get(), {}});
    device().GatedActivate(want.view().Columns(0, kN), want.view().Columns(kN, kN),
                           Activation::kSilu, want_gated.view());
    device().NormedMatMul(x.view(), norm, normed.view(), *packed, got.view(), {b.get(), {}});
    ExpectSameBits(got.Get(), want.Get(), "normed");
    device().GatedMatMul(x.view(), norm, normed.view(), *packed, b.get(), Activation::kSilu,
                         got.view(), gated.view());
    ExpectSameBits(gated.Get(), want_gated.Get(), "gated");
    // In place, as models do.
    device().GatedMatMul(x.view(), norm, normed.view(), *packed, b.get(), Activation::kSilu,
                         got.view(), got.view().Columns(0, kN));
    const DeviceRows half(device(), {kM, kN});
    device().Activate(got.view().Columns(0, kN), Activation::kRelu, half.view());
    device().Activate(want_gated.view(), Activation::kRelu, want_gated.view());
    ExpectSameBits(half.Get(), want_gated.Get(), "gated in place");
  }
}

// With panels that a device may join, and without; of one row and of many.
TEST_P(DeviceConformance, GatedProductsAreTheirSmallCalls) {
  constexpr int kK = 96;
  for (const DType dtype : kStorageTypes) {
    for (const auto& [m, n] : {std::pair{1, 64}, {3, 160}, {67, 96}, {530, 64}, {20, 40}}) {
      TestWeight gates(dtype, n, kK, 1), gated(dtype, n, kK, 7);
      const HostMatrix parts[] = {gates.host, gated.host};
      auto packed = Must(device().Pack({.parts = parts, .gated = true}));
      auto plain = Must(device().Pack({.parts = parts}));
      auto weight = NewVector(TestRows::Random(1, kK, 2));
      auto bias = NewVector(TestRows::Random(1, 2 * n, 4));
      const NormSpec norm{NormKind::kRms, weight.get(), nullptr, 1e-5f};
      const DeviceRows x(device(), TestRows::Random(m, kK, 5)), normed(device(), {m, kK}),
          both(device(), {m, 2 * n}), got(device(), {m, n}), want(device(), {m, n});
      for (const Vector* b : std::array<const Vector*, 2>{nullptr, bias.get()}) {
        device().Norm(x.view(), norm, normed.view());
        const DeviceRows other(device(), {m, 2 * n});
        device().MatMul(normed.view(), *plain, both.view(), {b, {}});
        device().MatMul(normed.view(), *packed, other.view(), {b, {}});
        ExpectSameBits(other.Get(), both.Get(), "the plain product of a gated weight");
        device().GatedActivate(both.view().Columns(0, n), both.view().Columns(n, n),
                               Activation::kGeluTanh, want.view());
        device().GatedMatMul(x.view(), norm, normed.view(), *packed, b, Activation::kGeluTanh,
                             both.view(), got.view());
        ExpectSameBits(got.Get(), want.Get(), DTypeName(dtype));
      }
    }
  }
}

// The bits of a row are those of the row alone, for everything that works on rows.
TEST_P(DeviceConformance, ARowDoesNotDependOnItsBatch) {
  constexpr int kRows = 67, kK = 330, kN = 70;
  for (const DType dtype : kStorageTypes) {
    TestWeight w(dtype, kN, kK, 1);
    auto packed =
        Must(device().Pack({.parts = {&w.host, 1}, .row_parallel = dtype == kStorageTypes[1]}));
    auto weight = NewVector(TestRows::Random(1, kK, 2)),
         bias = NewVector(TestRows::Random(1, kN, 3));
    const DeviceRows x(device(), TestRows::Random(kRows, kK, 5)), normed(device(), {kRows, kK}),
        again(device(), {kRows, kK}), all(device(), {kRows, kN});
    const auto run = [&](Rows in, Rows out) {
      const Rows once = normed.view().Slice(0, in.rows), twice = again.view().Slice(0, in.rows);
      device().LayerNorm(in, *weight, nullptr, 1e-5f, once);
      device().NormedMatMul(once, {NormKind::kRms, weight.get(), nullptr, 1e-5f}, twice, *packed,
                            out, {bias.get(), {}});
      device().Activate(out, Activation::kGelu, out);
      device().FinishProduct(out, out, {bias.get(), out});
      device().GatedActivate(out, out, Activation::kSilu, out);
      device().Add(out, out);
    };
    run(x.view(), all.view());
    TestRows want = all.Get();
    for (const int count : {1, 2, 15, 30}) {
      const DeviceRows few(device(), {count, kN});
      for (int first = 0; first + count <= kRows; first += 17) {
        run(x.view().Slice(first, count), few.view());
        const TestRows got = few.Get();
        ASSERT_TRUE(SameBits(got.numbers.data(), want.row(first), got.numbers.size()))
            << "rows [" << first << ", " << first + count << ")";
      }
    }
  }
}

TEST_P(DeviceConformance, ChoosesAsTheDefinitionDoes) {
  constexpr int kRows = 9, kVocab = 517;
  TestRows logits = TestRows::Random(kRows, kVocab, 1);
  for (float& x : logits.numbers) x *= 6;
  logits.row(3)[200] = NAN;
  std::fill_n(logits.row(4), kVocab, -std::numeric_limits<float>::infinity());
  const DeviceRows on(device(), logits, 2);
  TokenChooser chooser;
  for (const ChooseSpec& base :
       {ChooseSpec{}, ChooseSpec{.temperature = 1}, ChooseSpec{.temperature = 0.7, .top_k = 5},
        ChooseSpec{.temperature = 1.3, .top_p = 0.4}, ChooseSpec{.temperature = 1, .min_p = 0.2},
        ChooseSpec{.temperature = 2, .top_k = 1},
        ChooseSpec{.temperature = 1, .top_k = 90, .top_p = 0.9, .min_p = 0.01}}) {
    std::vector<ChooseSpec> how(kRows, base);
    for (int r = 0; r < kRows; ++r) {
      how[static_cast<size_t>(r)].seed = static_cast<uint64_t>(r) * 77;
      how[static_cast<size_t>(r)].position = 1000 - r;
    }
    std::vector<std::optional<TokenId>> got(kRows, TokenId{-5});
    device().Choose(on.view(), how, got);
    for (int r = 0; r < kRows; ++r) {
      EXPECT_EQ(got[static_cast<size_t>(r)],
                chooser.Choose(logits.Copy(r), how[static_cast<size_t>(r)]))
          << r;
    }
    EXPECT_FALSE(got[3] || got[4]) << "not a number, nothing above -inf";
    on.ExpectGaps();
  }
}

}  // namespace
}  // namespace millrace::tensor
