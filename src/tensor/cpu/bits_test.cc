// Decisions 0017 and 0038: every x86 with fused multiply-add computes the bits of the scalar
// reference, and with bf16 they do not depend on what the processor does with denormals.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
    if (CpuNumericClass() != "cpu-bits-3") return;
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

// What the reference says, where it must not matter whether denormals are flushed.
template <typename Bits>
std::vector<float> EitherWay(Bits bits) {
  const std::vector<float> kept = bits();
  const FlushDenormals flush;
  ExpectBits(kept.data(), bits(), "denormals flushed");
  return kept;
}

// Numbers of both signs from denormals up to 1/16, and zeros.
TestRows Small(int rows, int cols, uint64_t seed) {
  TestRows x = TestRows::Random(rows, cols, seed);
  Rng rng(seed + 1);
  for (float& v : x.numbers) v = std::ldexp(v, -static_cast<int>(rng.Between(4, 150)));
  return x;
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
    const FlushDenormals flush;  // f32 and f16 need it
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

TEST(BitsTest, ProductsOfSmallNumbers) {
  ForEachX86([] {
    auto device = MakeCpu(2);
    for (const auto& [m, n, k] : {std::array{1, 33, 70}, {3, 40, 704}, {40, 34, 96}}) {
      const TestRows numbers = Small(n, k, 8);
      std::vector<uint16_t> stored;
      for (float v : numbers.numbers) stored.push_back(BF16FromFloat(v));
      const HostMatrix host{stored.data(), DType::kBF16, n, k};
      auto packed = Must(device->Pack({.parts = {&host, 1}}));
      TestRows x = Small(m, k, 1), y(m, n);
      device->MatMul(x.view(), *packed, y.view());
      for (int j = 0; j < n; ++j) {
        std::vector<float> row;
        for (int i = 0; i < k; ++i) row.push_back(ElementOf(host, j, i));
        for (int r = 0; r < m; ++r) {
          for (Multiply multiply : {Multiply::kFused, Multiply::kApart}) {
            ExpectBits(y.row(r) + j, EitherWay([&] {
                         return std::vector{
                             ProductBits(x.Copy(r), row, 1, RuleOf(DType::kBF16), multiply)};
                       }),
                       "product");
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

TEST(BitsTest, NormsOfSmallNumbers) {
  ForEachX86([] {
    auto device = MakeCpu(1);
    for (int n : {7, 100, 704}) {
      // As sums of products are: whole multiples of 2^-114.
      TestRows x = Small(1, n, 7), y(1, n), w = Small(1, n, 5), b = Small(1, n, 6);
      for (float& v : x.numbers) v = std::ldexp(std::nearbyint(std::ldexp(v, 114)), -114);
      auto weight = Must(device->NewVector(w.Copy(0)));
      auto bias = Must(device->NewVector(b.Copy(0)));
      for (float epsilon : {1e-5f, 1e-30f}) {
        device->RmsNorm(x.view(), *weight, epsilon, y.view());
        ExpectBits(y.row(0), EitherWay([&] { return RmsNormBits(x.Copy(0), w.Copy(0), epsilon); }),
                   "RMS");
        device->LayerNorm(x.view(), *weight, bias.get(), epsilon, y.view());
        ExpectBits(y.row(0), EitherWay([&] {
                     return LayerNormBits(x.Copy(0), w.Copy(0), b.Copy(0), epsilon);
                   }),
                   "layer norm");
      }
    }
  });
}

TEST(BitsTest, RotatedPositions) {
  constexpr int kDim = 40, kPositions = 9;
  for (const auto& make : {&Wide, &Small}) {
    const TestRows cos = make(kPositions, kDim / 2, 2), sin = make(kPositions, kDim / 2, 3);
    const TestRows x = make(kPositions, kDim, 4);
    std::vector<int32_t> positions(kPositions);
    std::iota(positions.begin(), positions.end(), 0);
    ForEachX86([&] {
      TestRows y = x;
      RopeRows(y.view(), kDim, positions.data(),
               {cos.numbers.data(), sin.numbers.data(), kPositions, kDim});
      for (int r = 0; r < kPositions; ++r) {
        ExpectBits(y.row(r),
                   EitherWay([&] { return RopeBits(x.Copy(r), cos.Copy(r), sin.Copy(r)); }),
                   "rotated");
      }
    });
  }
}

void CompareAttention(const std::function<TestRows(int, int, uint64_t)>& numbers,
                      std::initializer_list<DType> types) {
  constexpr int kDim = 40, kLength = 600;
  TestRows q = numbers(kLength, kDim, 1), k = numbers(kLength, kDim, 2),
           v = numbers(kLength, kDim, 3);
  for (TestRows* x : {&k, &v}) {  // as they are stored
    for (float& number : x->numbers) number = FloatFromBF16(BF16FactorOf(number));
  }
  std::vector<BlockIndex> blocks((kLength + 15) / 16);
  std::iota(blocks.begin(), blocks.end(), 0);
  ForEachX86([&] {
    for (DType dtype : types) {
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
          ExpectBits(out.row(r), EitherWay([&] {
                       return AttendBits(q.Copy(r), r, k.numbers, v.numbers, spec, RuleOf(dtype));
                     }),
                     "attention");
        }
      }
    }
  });
}

TEST(BitsTest, Attention) { CompareAttention(Wide, {DType::kF32, DType::kBF16}); }

// The weights of some keys are too small to count, and so are some values.
TEST(BitsTest, AttentionOfSmallNumbers) {
  CompareAttention(Small, {DType::kBF16});
  const auto far_apart = [](int rows, int cols, uint64_t seed) {
    TestRows x = Small(rows, cols, seed);
    for (size_t i = 0; i < x.numbers.size(); i += 5) x.numbers[i] = std::ldexp(x.numbers[i], 60);
    return x;
  };
  CompareAttention(far_apart, {DType::kBF16});
}

// A weight rounded to bf16 is one of the two that are nearest to the true one.
TEST(BitsTest, RoundedPowers) {
  EXPECT_EQ(RoundedPowerOfTwoBits(0.5f), 1.0f);
  EXPECT_EQ(RoundedPowerOfTwoBits(-49.6f), 0.0f);
  EXPECT_EQ(RoundedPowerOfTwoBits(-HUGE_VALF), 0.0f);
  for (float x = 0.5f; x > -49.5f; x -= 0.00037f) {
    const double exact = std::exp2(x - 0.5), got = RoundedPowerOfTwoBits(x);
    ASSERT_LE(std::abs(got - exact), exact * (0x1p-8 + 1e-4)) << x;
    ASSERT_NEAR(PowerOfTwoBits(x) / std::exp2(x), 1.0, 3e-7) << x;
  }
}

TEST(BitsTest, Exponentials) {
  std::vector<float> x{0.0f, -0.0f, -87.0f, -87.1f, -1e30f, -HUGE_VALF};
  Rng rng(3);
  while (x.size() < 4001) x.push_back(static_cast<float>(-100 * rng.Uniform()));
  std::vector<float> want;
  for (float v : x) want.push_back(PowerOfTwoBits(v * (0.75f * 1.44269504088896341f)));
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

// Activations are rounded before they are multiplied: then no bit depends on denormals.
TEST(BitsTest, ActivationsOfSmallNumbers) {
  TestRows gate = Wide(1, 2003, 4), up = Small(1, 2003, 5);
  for (size_t i = 0; i < gate.numbers.size(); ++i) {
    float& v = gate.numbers[i];
    v = i % 2 == 0 ? v * 20 : std::ldexp(std::nearbyint(std::ldexp(up.numbers[i], 114)), -114);
  }
  for (Activation f :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    ForEachX86([&] {
      EitherWay([&] {
        TestRows y(1, 2003);
        std::vector<uint16_t> rounded(2003);
        GatedActivateRows(gate.view(), up.view(), f, y.view());
        RoundRows(y.view(), {rounded.data(), 1, 2003, 2003, DType::kBF16});
        std::vector<float> bits;
        for (uint16_t h : rounded) bits.push_back(FloatFromBF16(h));
        return bits;
      });
    });
  }
}

// The class is what workers compare when they join.
TEST(BitsTest, ClassIsTheDefinitionNotTheInstructionSet) {
  ForEachTarget([] {
    const std::string features = CpuFeatures();
    const bool fuses = features == "amx" || features == "avx512" || features == "avx2";
    EXPECT_EQ(CpuNumericClass(), fuses ? "cpu-bits-3" : "cpu-bits-3-" + features);
  });
  ASSERT_TRUE(SetCpuActivations("bf16x2").ok());
  EXPECT_EQ(CpuNumericClass().substr(0, 17), "cpu-bits-3-bf16x2");
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
