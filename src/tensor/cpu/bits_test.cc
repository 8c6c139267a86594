// Decision 0017: every x86 with fused multiply-add computes the bits of the scalar reference.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "tensor/cpu/cpu_features.h"
#include "tensor/cpu/elementwise.h"
#include "tensor/cpu/flush.h"
#include "tensor/cpu/gemm.h"
#include "tensor/testing/amx_emulator.h"
#include "tensor/testing/bits_ref.h"
#include "tensor/testing/gemm_ref.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

SumRule RuleOf(DType dtype) {
  if (dtype != DType::kBF16) return SumRule::kInOrder;
  return CpuActivationLimbs() == 2 ? SumRule::kTwoBF16 : SumRule::kBF16;
}

// Runs body() with one limb and with two on each instruction set of this machine that promises
// these bits, and on AMX's tiles: the machine's own, or emulated.
template <typename Body>
void ForEachX86(Body body) {
  const FlushDenormals flush;  // for the reference
  if (AmxEmulator::IsPossible()) {
    std::puts("tiles are emulated: this processor has no AMX");
    const AmxEmulator emulator;
    for (const char* activations : {"bf16x2", "bf16"}) {
      ASSERT_TRUE(SetCpuActivations(activations).ok());
      SCOPED_TRACE(CpuName(1));
      body();
    }
  }
  int sets = 0;
  ForEachTarget([&] {
    if (CpuNumericClass() != "cpu-bits-2") return;
    for (const char* activations : {"bf16x2", "bf16"}) {
      ASSERT_TRUE(SetCpuActivations(activations).ok());
      SCOPED_TRACE(CpuName(1));
      body();
    }
    ++sets;
  });
  if (sets == 0)
    std::puts("nothing compared: this processor has no AVX2, and its bits are its own");
}

void ExpectBits(const float* got, const std::vector<float>& want, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(SameBits(got + i, &want[i], 1)) << what << " [" << i << "] of " << want.size()
                                                << ": " << got[i] << ", expected " << want[i];
  }
}

// Numbers whose exponents differ, so that another order of additions gives other bits.
TestRows Wide(int rows, int cols, uint64_t seed) {
  TestRows x = TestRows::Random(rows, cols, seed);
  Rng rng(seed + 1);
  for (float& v : x.numbers) v = std::ldexp(v, static_cast<int>(rng.Between(0, 12)) - 6);
  return x;
}

TEST(BitsTest, Products) {
  ForEachX86([] {
    auto device = MakeCpu(2);
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto& [m, n, k] : {std::array{1, 33, 70}, {3, 40, 704}, {40, 34, 100}}) {
        for (int degree : {0, 1, 2}) {
          TestWeight w(dtype, n, k, 9);
          auto packed = Must(device->Pack({.parts = {&w.host, 1},
                                           .row_parallel = degree > 0,
                                           .tensor_parallel = std::max(1, degree)}));
          TestRows x = Wide(m, k, 1), y(m, n);
          device->MatMul(x.view(), *packed, y.view());
          for (int j = 0; j < n; ++j) {
            std::vector<float> row(static_cast<size_t>(k));
            for (int i = 0; i < k; ++i) row[static_cast<size_t>(i)] = ElementOf(w.host, j, i);
            const int chains = degree == 0 ? 1 : kVirtualShards / degree;
            for (int r = 0; r < m; ++r) {
              ExpectBits(y.row(r) + j, {ProductBits(x.Copy(r), row, chains, RuleOf(dtype))},
                         "product");
            }
          }
        }
      }
    }
  });
}

TEST(BitsTest, Norms) {
  ForEachX86([] {
    auto device = MakeCpu(1);
    for (int n : {1, 7, 8, 15, 16, 17, 24, 63, 64, 100, 168, 704, 2049}) {
      TestRows x = Wide(3, n, 7), y(3, n), w = Wide(1, n, 5), b = Wide(1, n, 6);
      auto weight = Must(device->NewVector(w.Copy(0)));
      auto bias = Must(device->NewVector(b.Copy(0)));
      for (int r = 0; r < 3; ++r) {
        device->RmsNorm(x.view(), *weight, 1e-5f, y.view());
        ExpectBits(y.row(r), RmsNormBits(x.Copy(r), w.Copy(0), 1e-5f), "RMS norm");
        device->LayerNorm(x.view(), *weight, bias.get(), 1e-5f, y.view());
        ExpectBits(y.row(r), LayerNormBits(x.Copy(r), w.Copy(0), b.Copy(0), 1e-5f), "layer norm");
        device->LayerNorm(x.view(), *weight, nullptr, 1e-5f, y.view());
        ExpectBits(y.row(r), LayerNormBits(x.Copy(r), w.Copy(0), {}, 1e-5f), "without bias");
      }
    }
  });
}

TEST(BitsTest, Attention) {
  constexpr int kDim = 40, kLength = 600;
  TestRows q = Wide(kLength, kDim, 1), k = Wide(kLength, kDim, 2), v = Wide(kLength, kDim, 3);
  for (TestRows* x : {&k, &v}) {  // as they are stored
    for (float& number : x->numbers) number = FloatFromBF16(BF16FromFloat(number));
  }
  std::vector<BlockIndex> blocks((kLength + 15) / 16);
  std::iota(blocks.begin(), blocks.end(), 0);
  ForEachX86([&] {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      auto device = MakeCpu(1);
      auto pool = Must(device->NewKvPool({.num_layers = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = kDim,
                                          .num_blocks = static_cast<int>(blocks.size()),
                                          .dtype = dtype}));
      const AttentionSpan span{0, kLength, 0, blocks};
      const TestStep step(*device, *pool, {&span, 1});
      device->WriteKv(step.all(), 0, k.view(), v.view());
      for (int window : {0, 50}) {
        const AttentionSpec spec{0.2f, window};
        TestRows out(kLength, kDim);
        device->Attend(step.all(), 0, spec, q.view(), out.view());
        for (int r = 0; r < kLength; r += 37) {
          ExpectBits(out.row(r),
                     AttendBits(q.Copy(r), r, k.numbers, v.numbers, spec, RuleOf(dtype)),
                     "attention");
        }
      }
    }
  });
}

TEST(BitsTest, Exponentials) {
  std::vector<float> x{0.0f, -0.0f, -87.0f, -87.1f, -1e30f, -HUGE_VALF};
  Rng rng(3);
  while (x.size() < 4001) x.push_back(static_cast<float>(-100 * rng.Uniform()));
  std::vector<float> want;
  for (float v : x) want.push_back(ExpOfNegativeBits(v * 0.75f));
  ForEachX86([&] {
    std::vector<float> got(x.size());
    ExpRow(x, 0.0f, 0.75f, got.data());
    ExpectBits(got.data(), want, "e^x");
  });
}

TEST(BitsTest, Activations) {
  TestRows x = Wide(1, 4003, 4);
  for (float& v : x.numbers) v *= 4;
  for (Activation f :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    std::vector<float> first;  // of the first set, which the others must equal
    ForEachX86([&] {
      TestRows y(1, 4003);
      ActivateRows(x.view(), f, y.view());
      if (f == Activation::kSilu) {
        std::vector<float> want;
        for (float v : x.numbers) want.push_back(v / (1.0f + ExpBits(-v)));
        ExpectBits(y.row(0), want, "silu");
      }
      if (first.empty()) first = y.Copy(0);
      ExpectBits(y.row(0), first, "activation");
    });
  }
}

// The class is what workers compare when they join.
TEST(BitsTest, ClassIsTheDefinitionNotTheInstructionSet) {
  ForEachTarget([] {
    const std::string features = CpuFeatures();
    const bool fuses = features == "amx" || features == "avx512" || features == "avx2";
    EXPECT_EQ(CpuNumericClass(), fuses ? "cpu-bits-2" : "cpu-bits-2-" + features);
  });
  ASSERT_TRUE(SetCpuActivations("bf16x2").ok());
  EXPECT_EQ(CpuNumericClass().substr(0, 17), "cpu-bits-2-bf16x2");
  ASSERT_TRUE(SetCpuActivations("bf16").ok());
  EXPECT_FALSE(SetCpuActivations("f32").ok());
  EXPECT_FALSE(LimitCpuFeatures("avx").ok());
  EXPECT_EQ(LimitCpuFeatures("avx").message(), "must be avx2, avx512 or amx, got 'avx'");
}

// A limit lasts when somebody asks for the name; only AVX-512 reads short weights.
TEST(CpuFeaturesDeathTest, ALimitHolds) {
  const auto limited = [] {
    if (!LimitCpuFeatures("avx2").ok()) return 0;  // this processor has none
    return CpuName(1) == "cpu avx2 x1" && !GemmReadsShortBF16() ? 0 : 1;
  };
  EXPECT_EXIT(std::exit(limited()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace millrace::tensor
