#include "tensor/testing/bits_ref.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/cpu/float16.h"

namespace millrace::tensor {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;
constexpr int kPartition = 256;
constexpr size_t kBlock = 32;

using Lanes = std::array<float, kLanes>;

float SumOf(Lanes lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The sum of f(x[i]) in runs of 16; add(sum, x) returns the new sum.
template <typename Add>
float SumInRuns(std::span<const float> x, Add add) {
  Lanes sums[4] = {};
  const size_t whole = x.size() / (4 * kLanes) * 4 * kLanes;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool in_four = i < whole, in_run = i < x.size() / kLanes * kLanes;
    const size_t sum = in_four ? i / kLanes % 4 : in_run ? 0 : 1;
    sums[sum][i % kLanes] = add(sums[sum][i % kLanes], x[i]);
  }
  Lanes all;
  for (int i = 0; i < kLanes; ++i) all[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  return SumOf(all);
}

float SumInOrder(std::span<const float> x, std::span<const float> w) {
  float sum = 0;
  for (size_t k = 0; k < x.size(); ++k) sum = std::fma(x[k], w[k], sum);
  return sum;
}

float Rounded(float x) { return FloatFromBF16(BF16FactorOf(x)); }

// As a factor of attention.
float Limbs(float x, SumRule rule) {
  if (rule == SumRule::kInOrder) return x;
  const float high = Rounded(x);
  return rule == SumRule::kBF16 ? high : high + Rounded(x - high);
}

// In blocks; zeros fill the last one.
float SumOfBlocks(std::span<const float> x, std::span<const float> w,
                  Multiply multiply = Multiply::kFused) {
  float sum = 0;
  for (size_t begin = 0; begin < x.size(); begin += kBlock) {
    float parts[2] = {0, 0};  // of the even k and of the odd
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t k = begin + i;
      const bool inside = k < x.size();
      const float a = inside ? x[k] : 0.0f, b = inside ? w[k] : 0.0f;
      float& part = parts[i % 2];
      part = multiply == Multiply::kFused ? std::fma(a, b, part) : a * b + part;
    }
    sum += parts[0] + parts[1];
  }
  return sum;
}

float AddSquare(float sum, float v) { return std::fma(FactorOf(v), FactorOf(v), sum); }

float RootScale(float squares, size_t n, float epsilon) {
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
}

float Scaled(float y, float shifted) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

float Polynomial(float x, std::span<const float> highest_first) {
  float p = 0;
  for (float term : highest_first) p = std::fma(p, x, term);
  return p;
}

// The nearest whole number is in the lowest bits of x + kNearestInteger.
constexpr float kNearestInteger = 12582912.0f;  // 1.5 * 2^23
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kPower[] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                            0x1.ebf9bcp-3f,  0x1.62e42ap-1f, 1.0f};
constexpr float kRoundedPower[] = {0x1.3f96a4p-5f, 0x1.5f56a4p-3f, 0x1.f5f97ep-2f,
                                   0x1.6a033cp-1f + 0x1p-9f};

struct Softmax {
  float max = kMinusInfinity, sum = 0;
  std::vector<float> values;
};

struct Sequence {
  std::span<const float> keys, values;  // [position][dim]
  size_t dim;
};

float SumBy(SumRule rule, std::span<const float> x, std::span<const float> w,
            Multiply multiply = Multiply::kFused) {
  return rule == SumRule::kInOrder ? SumInOrder(x, w) : SumOfBlocks(x, w, multiply);
}

// The sum over keys [base, base + weights) of their weights times their values, of one dimension.
float WeighedSum(const Sequence& all, int base, std::span<const float> weights, size_t i,
                 SumRule rule) {
  std::vector<float> values;
  for (size_t t = 0; t < weights.size(); ++t)
    values.push_back(all.values[(base + t) * all.dim + i]);
  return SumBy(rule, weights, values);
}

// Keys [first, end) of a partition that starts at `base`, a multiple of blocks.
Softmax AttendPartition(std::span<const float> q, int first, int end, int base, const Sequence& all,
                        float scale, SumRule rule) {
  Softmax part;
  std::vector<float> scores(static_cast<size_t>(end - base), kMinusInfinity);
  for (int t = first; t < end; ++t) {
    scores[t - base] = SumBy(rule, q, all.keys.subspan(t * all.dim, all.dim));
    part.max = std::max(part.max, scores[t - base]);
  }
  const bool rounds = rule == SumRule::kBF16;
  const float by = scale * kLog2E;
  part.max = part.max * by - (rounds ? 0.5f : 0.0f);
  Lanes sums = {};
  std::vector<float> weights(scores.size(), 0.0f);
  for (int t = first; t < end; ++t) {
    const float x = scores[t - base] * by - part.max;
    weights[t - base] = rounds ? RoundedPowerOfTwoBits(x) : Limbs(PowerOfTwoBits(x), rule);
    sums[(t - base) % kLanes] += weights[t - base];
  }
  for (size_t i = 0; i < all.dim; ++i) {
    part.values.push_back(WeighedSum(all, base, weights, i, rule));
  }
  part.sum = SumOf(sums);
  return part;
}

}  // namespace

float ProductBits(std::span<const float> x, std::span<const float> w, int chains, SumRule rule,
                  Multiply multiply) {
  if (rule == SumRule::kTwoBF16) {
    std::vector<float> low;
    for (float v : x) low.push_back(v - Rounded(v));
    return ProductBits(x, w, chains, SumRule::kBF16, multiply) +
           ProductBits(low, w, chains, SumRule::kBF16, multiply);
  }
  std::vector<float> weights(w.begin(), w.end());
  if (rule == SumRule::kBF16) std::ranges::transform(w, weights.begin(), FactorOf);
  std::vector<float> rounded(x.begin(), x.end());
  if (rule == SumRule::kBF16) std::ranges::transform(x, rounded.begin(), Rounded);
  std::vector<float> sums;
  for (int c = 0; c < chains; ++c) {
    const size_t begin = x.size() * c / chains, end = x.size() * (c + 1) / chains;
    sums.push_back(SumBy(rule, std::span(rounded).subspan(begin, end - begin),
                         std::span(weights).subspan(begin, end - begin), multiply));
  }
  for (size_t n = sums.size() / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

std::vector<float> RmsNormBits(std::span<const float> x, std::span<const float> weight,
                               float epsilon) {
  const float squares = SumInRuns(x, AddSquare);
  const float scale = RootScale(squares, x.size(), epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(FactorOf(x[i] * scale) * FactorOf(weight[i]));
  return y;
}

std::vector<float> LayerNormBits(std::span<const float> x, std::span<const float> weight,
                                 std::span<const float> bias, float epsilon) {
  const float sum = SumInRuns(x, [](float all, float v) { return all + v; });
  const float mean = FactorOf(sum / static_cast<float>(x.size()));
  const float squares = SumInRuns(x, [&](float all, float v) { return AddSquare(all, v - mean); });
  const float scale = RootScale(squares, x.size(), epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const float normed = FactorOf((x[i] - mean) * scale) * FactorOf(weight[i]);
    y.push_back(bias.empty() ? normed : normed + FactorOf(bias[i]));
  }
  return y;
}

float PowerOfTwoBits(float x) {
  if (x < -50.0f) return 0.0f;
  const float shifted = x + kNearestInteger;
  return Scaled(Polynomial(x - (shifted - kNearestInteger), kPower), shifted);
}

float ExpBits(float x) {
  const float near = std::min(std::max(x, -41.0f), 88.0f);
  const float shifted = std::fma(near, kLog2E, kNearestInteger);
  const float rest = std::fma(near, kLog2E, -(shifted - kNearestInteger));
  return Scaled(Polynomial(rest, kPower), shifted);
}

float RoundedPowerOfTwoBits(float x) {
  if (x < -49.5f) return 0.0f;
  const float shifted = x + kNearestInteger;
  const float y = Scaled(Polynomial(x - (shifted - kNearestInteger), kRoundedPower), shifted);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) & 0xffff0000u);
}

std::vector<float> RopeBits(std::span<const float> x, std::span<const float> cos,
                            std::span<const float> sin) {
  const size_t half = x.size() / 2;
  std::vector<float> y(x.begin(), x.end());
  for (size_t i = 0; i < half; ++i) {
    const float a = FactorOf(x[i]), b = FactorOf(x[half + i]);
    const float c = FactorOf(cos[i]), s = FactorOf(sin[i]);
    y[i] = FactorOf(std::fma(-b, s, a * c));
    y[half + i] = FactorOf(std::fma(a, s, b * c));
  }
  return y;
}

std::vector<float> AttendBits(std::span<const float> q, int position, std::span<const float> keys,
                              std::span<const float> values, const AttentionSpec& spec,
                              SumRule rule) {
  const int first = spec.window > 0 ? std::max(0, position - spec.window + 1) : 0;
  Softmax all;
  all.values.assign(q.size(), 0.0f);
  std::vector<float> query;
  for (float v : q) query.push_back(Limbs(v, rule));
  for (int base = first / kPartition * kPartition; base <= position; base += kPartition) {
    const Softmax part =
        AttendPartition(query, std::max(first, base), std::min(position + 1, base + kPartition),
                        base, {keys, values, q.size()}, spec.scale, rule);
    const float max = std::max(all.max, part.max);
    const float keep = PowerOfTwoBits(all.max - max), take = PowerOfTwoBits(part.max - max);
    all.max = max;
    all.sum = std::fma(part.sum, take, all.sum * keep);
    for (size_t i = 0; i < q.size(); ++i) {
      all.values[i] = FactorOf(std::fma(part.values[i], take, all.values[i] * keep));
    }
  }
  for (float& v : all.values) v *= 1.0f / all.sum;
  return all.values;
}

}  // namespace millrace::tensor
