// Norms, rotary positions, activations, embeddings against elementwise_ref, and row by row.
#include "tensor/cpu/elementwise.h"

#include <cmath>

#include "tensor/testing/elementwise_ref.h"
#include "tensor/testing/gemm_ref.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

// Relative to the larger of |want| and 1.
constexpr double kTolerance = 2e-6;

void ExpectNear(const float* got, const std::vector<float>& want, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], kTolerance * std::max(1.0f, std::abs(want[i])))
        << what << " [" << i << "] of " << want.size();
  }
}

constexpr int kWidths[] = {1, 2, 15, 16, 17, 63, 64, 100, 768, 2049};

TEST(ElementwiseTest, NormsAgreeWithTheReference) {
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    for (int n : kWidths) {
      TestRows x = TestRows::Random(9, n, n, 2), y(9, n), w = TestRows::Random(1, n, 5),
               b = TestRows::Random(1, n, 6);
      auto weight = Must(device->NewVector(w.Copy(0)));
      auto bias = Must(device->NewVector(b.Copy(0)));
      device->RmsNorm(x.view(), *weight, 1e-5f, y.view());
      for (int r = 0; r < 9; ++r) {
        ExpectNear(y.row(r), RmsNormRef(x.Copy(r), w.Copy(0), 1e-5f), "RMS norm");
      }
      device->LayerNorm(x.view(), *weight, bias.get(), 1e-5f, y.view());
      for (int r = 0; r < 9; ++r) {
        ExpectNear(y.row(r), LayerNormRef(x.Copy(r), w.Copy(0), b.Copy(0), 1e-5f), "layer norm");
      }
      device->LayerNorm(x.view(), *weight, nullptr, 1e-5f, y.view());
      for (int r = 0; r < 9; ++r) {
        ExpectNear(y.row(r), LayerNormRef(x.Copy(r), w.Copy(0), {}, 1e-5f), "layer norm, no bias");
      }
    }
  });
}

TEST(ElementwiseTest, HeadNormsAndRopeApplyToEveryHead) {
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    for (const auto& [head_dim, rotary_dim] :
         {std::pair{64, 64}, {80, 32}, {96, 24}, {6, 6}, {10, 2}}) {
      constexpr int kHeads = 3, kRows = 4, kPositions = 9;
      TestRows cos(kPositions, rotary_dim / 2), sin(kPositions, rotary_dim / 2);
      for (int p = 0; p < kPositions; ++p) {
        for (int i = 0; i < rotary_dim / 2; ++i) {
          cos.row(p)[i] = static_cast<float>(std::cos(p * std::pow(0.7, i)));
          sin.row(p)[i] = static_cast<float>(std::sin(p * std::pow(0.7, i)));
        }
      }
      const RopeAngles angles{cos.row(0), sin.row(0), kPositions, rotary_dim};
      auto table = Must(device->NewRopeTable(angles));
      TestRows x = TestRows::Random(kRows, kHeads * head_dim, 1, 4),
               w = TestRows::Random(1, head_dim, 2);
      TestRows before = x;
      auto weight = Must(device->NewVector(w.Copy(0)));
      const int32_t positions[kRows] = {0, 8, 3, 3};
      device->HeadRmsNorm(x.view(), head_dim, *weight, 1e-6f);
      device->BeginStep({.positions = positions});
      device->Rope({0, kRows}, *table, head_dim, x.view());
      for (int r = 0; r < kRows; ++r) {
        for (int h = 0; h < kHeads; ++h) {
          const std::span<const float> head(before.row(r) + h * head_dim, head_dim);
          ExpectNear(x.row(r) + h * head_dim,
                     RopeRef(RmsNormRef(head, w.Copy(0), 1e-6f), positions[r], angles), "rope");
        }
      }
    }
  });
}

TEST(ElementwiseTest, ActivationsAgreeWithTheReference) {
  std::vector<float> points;
  for (int i = -4000; i <= 4000; ++i) points.push_back(static_cast<float>(i) / 100.0f);
  for (float v : {-1e30f, -200.0f, -88.0f, -1e-20f, 0.0f, 1e-20f, 88.0f, 200.0f, 1e30f})
    points.push_back(v);
  const int n = static_cast<int>(points.size());
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    for (Activation f :
         {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      TestRows x(1, n), y(1, n), up = TestRows::Random(1, n, 4);
      std::copy(points.begin(), points.end(), x.row(0));
      std::vector<float> want, gated;
      for (int i = 0; i < n; ++i) {
        want.push_back(ActivateRef(f, points[i]));
        gated.push_back(want[i] * up.row(0)[i]);
      }
      device->GatedActivate(x.view(), up.view(), f, y.view());
      ExpectNear(y.row(0), gated, "gated activation");
      device->Activate(x.view(), f, x.view());
      ExpectNear(x.row(0), want, "activation in place");
    }
  });
}

class EmbedTest : public testing::TestWithParam<DType> {};

TEST_P(EmbedTest, GathersExactly) {
  ForEachTarget([&] {
    auto device = MakeCpu(2);
    for (int n : {1, 7, 16, 33, 100}) {
      TestWeight table(GetParam(), 11, n, 1);
      const int32_t ids[] = {10, 0, 3, 3, 7};
      TestRows y = TestRows::Random(5, n, 2, 1);
      TestRows before = y;
      auto rows = Must(device->NewTable(table.host));
      device->BeginStep({.tokens = ids, .positions = ids});
      device->AddPositions({0, 5}, *rows, y.view());
      for (int r = 0; r < 5; ++r) {
        for (int j = 0; j < n; ++j) {
          ASSERT_EQ(y.row(r)[j], before.row(r)[j] + ElementOf(table.host, ids[r], j));
        }
      }
      device->Embed({0, 5}, *rows, y.view());
      for (int r = 0; r < 5; ++r) {
        for (int j = 0; j < n; ++j) ASSERT_EQ(y.row(r)[j], ElementOf(table.host, ids[r], j));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Types, EmbedTest, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

// The bits of a row do not depend on its neighbours or on the number of threads.
TEST(ElementwiseTest, RowIsTheSameBitsInEveryBatchAndWithEveryThreadCount) {
  constexpr int kRows = 64, kN = 1003;
  TestRows x = TestRows::Random(kRows, kN, 1), w = TestRows::Random(1, kN, 2);
  ForEachTarget([&] {
    auto single = MakeCpu(1);
    for (int threads : {1, 2, 3, 4}) {
      auto device = MakeCpu(threads);
      auto weight = Must(device->NewVector(w.Copy(0)));
      const auto run = [&](Device& on, Rows in, Rows out) {
        on.RmsNorm(in, *weight, 1e-5f, out);
        on.LayerNorm(out, *weight, weight.get(), 1e-5f, out);
        on.GatedActivate(out, in, Activation::kSilu, out);
        on.Activate(out, Activation::kGelu, out);
        on.Add(in, out);
      };
      TestRows all(kRows, kN), alone(1, kN);
      run(*device, x.view(), all.view());
      for (int r = 0; r < kRows; r += 5) {
        run(*single, x.view().Slice(r, 1), alone.view());
        ASSERT_TRUE(SameBits(all.row(r), alone.row(0), kN)) << r << ", " << threads << " threads";
      }
    }
  });
}

}  // namespace
}  // namespace millrace::tensor
