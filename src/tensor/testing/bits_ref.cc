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

float Rounded(float x) { return FloatFromBF16(BF16FromFloat(x)); }

// In blocks; zeros fill the last one.
float SumOfBlocks(std::span<const float> x, std::span<const float> w) {
  float sum = 0;
  for (size_t begin = 0; begin < x.size(); begin += kBlock) {
    float parts[2] = {0, 0};  // of the even k and of the odd
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t k = begin + i;
      const bool inside = k < x.size();
      parts[i % 2] = std::fma(inside ? x[k] : 0.0f, inside ? w[k] : 0.0f, parts[i % 2]);
    }
    sum += parts[0] + parts[1];
  }
  return sum;
}

float RootScale(float squares, size_t n, float epsilon) {
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
}

// Taylor's series of e^r from its highest term down to r^2 / 2.
float ExpSeries(float r) {
  float p = 1.0f / 720.0f;
  for (float term : {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f}) p = std::fma(p, r, term);
  return p;
}

float ExpRemainder(float x, float n) {
  return std::fma(-n, -2.12194440e-4f, std::fma(-n, 0.693359375f, x));
}

struct Softmax {
  float max = kMinusInfinity, sum = 0;
  std::vector<float> values;
};

struct Sequence {
  std::span<const float> keys, values;  // [position][dim]
  size_t dim;
};

float SumBy(SumRule rule, std::span<const float> x, std::span<const float> w) {
  return rule == SumRule::kInOrder ? SumInOrder(x, w) : SumOfBlocks(x, w);
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
    scores[t - base] = SumBy(rule, q, all.keys.subspan(t * all.dim, all.dim)) * scale;
    part.max = std::max(part.max, scores[t - base]);
  }
  Lanes sums = {};
  std::vector<float> weights(scores.size(), 0.0f);
  for (int t = first; t < end; ++t) {
    const float weight = ExpOfNegativeBits(scores[t - base] - part.max);
    weights[t - base] = rule == SumRule::kBF16 ? Rounded(weight) : weight;
    sums[(t - base) % kLanes] += weights[t - base];
  }
  for (size_t i = 0; i < all.dim; ++i) {
    part.values.push_back(WeighedSum(all, base, weights, i, rule));
  }
  part.sum = SumOf(sums);
  return part;
}

}  // namespace

float ProductBits(std::span<const float> x, std::span<const float> w, int chains, SumRule rule) {
  if (rule == SumRule::kTwoBF16) {
    std::vector<float> low;
    for (float v : x) low.push_back(v - Rounded(v));
    return ProductBits(x, w, chains, SumRule::kBF16) + ProductBits(low, w, chains, SumRule::kBF16);
  }
  std::vector<float> rounded(x.begin(), x.end());
  if (rule == SumRule::kBF16) std::ranges::transform(x, rounded.begin(), Rounded);
  std::vector<float> sums;
  for (int c = 0; c < chains; ++c) {
    const size_t begin = x.size() * c / chains, end = x.size() * (c + 1) / chains;
    sums.push_back(
        SumBy(rule, std::span(rounded).subspan(begin, end - begin), w.subspan(begin, end - begin)));
  }
  for (size_t n = sums.size() / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

std::vector<float> RmsNormBits(std::span<const float> x, std::span<const float> weight,
                               float epsilon) {
  const float squares = SumInRuns(x, [](float sum, float v) { return std::fma(v, v, sum); });
  const float scale = RootScale(squares, x.size(), epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * weight[i]);
  return y;
}

std::vector<float> LayerNormBits(std::span<const float> x, std::span<const float> weight,
                                 std::span<const float> bias, float epsilon) {
  const float mean =
      SumInRuns(x, [](float sum, float v) { return sum + v; }) / static_cast<float>(x.size());
  const float squares =
      SumInRuns(x, [&](float sum, float v) { return std::fma(v - mean, v - mean, sum); });
  const float scale = RootScale(squares, x.size(), epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const float normed = (x[i] - mean) * scale * weight[i];
    y.push_back(bias.empty() ? normed : normed + bias[i]);
  }
  return y;
}

float ExpOfNegativeBits(float x) {
  if (x < -87.0f) return 0.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23: the lowest bits are the nearest integer
  const float shifted = std::fma(x, 1.44269504088896341f, magic);
  const float r = ExpRemainder(x, shifted - magic);
  const float p = std::fma(std::fma(ExpSeries(r), r, 1.0f), r, 1.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

float ExpBits(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.3f) return 0.0f;
  const float clamped = std::min(std::max(x, -87.5f), 89.0f);
  const float n = std::nearbyint(clamped * 1.44269504088896341f);
  const float r = ExpRemainder(clamped, n);
  const float p = std::fma(ExpSeries(r), r * r, r) + 1.0f;
  const int whole = static_cast<int>(n), half = whole >> 1;
  const auto power = [](int e) {
    return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(whole - half);
}

std::vector<float> AttendBits(std::span<const float> q, int position, std::span<const float> keys,
                              std::span<const float> values, const AttentionSpec& spec,
                              SumRule rule) {
  const int first = spec.window > 0 ? std::max(0, position - spec.window + 1) : 0;
  Softmax all;
  all.values.assign(q.size(), 0.0f);
  std::vector<float> query(q.begin(), q.end());
  if (rule == SumRule::kBF16) std::ranges::transform(q, query.begin(), Rounded);
  for (int base = first / kPartition * kPartition; base <= position; base += kPartition) {
    const Softmax part =
        AttendPartition(query, std::max(first, base), std::min(position + 1, base + kPartition),
                        base, {keys, values, q.size()}, spec.scale, rule);
    const float max = std::max(all.max, part.max);
    const float keep = ExpOfNegativeBits(all.max - max), take = ExpOfNegativeBits(part.max - max);
    all.max = max;
    all.sum = std::fma(part.sum, take, all.sum * keep);
    for (size_t i = 0; i < q.size(); ++i) {
      all.values[i] = std::fma(part.values[i], take, all.values[i] * keep);
    }
  }
  for (float& v : all.values) v *= 1.0f / all.sum;
  return all.values;
}

}  // namespace millrace::tensor
