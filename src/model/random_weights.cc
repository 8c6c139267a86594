#include "model/random_weights.h"

#include <cstring>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::model {
namespace {

// For |value| < 65504; rounds to nearest even.
uint16_t ToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x38800000) {  // normal in f16
    const uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
    return static_cast<uint16_t>(sign | (rounded - (112 << 10)));
  }
  // Near 0.5 the spacing of f32 equals that of f16's subnormals, so the addition rounds.
  float magnitude;
  std::memcpy(&magnitude, &bits, 4);
  magnitude += 0.5f;
  std::memcpy(&bits, &magnitude, 4);
  return static_cast<uint16_t>(sign | (bits - 0x3f000000));
}

uint16_t ToBFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Four values from one hash: 16 bits each, uniform in (-a, a) with a = std * sqrt(3).
template <typename T, typename Convert>
void Fill(uint64_t key, int64_t first, std::span<uint8_t> out, Convert convert) {
  constexpr float kStep = static_cast<float>(kRandomWeightStd * 1.7320508075688772 / 32768.0);
  const int64_t count = static_cast<int64_t>(out.size() / sizeof(T));
  for (int64_t i = 0; i < count; i += 4) {
    const uint64_t hash = Mix64(key ^ static_cast<uint64_t>((first + i) / 4));
    T values[4];
    for (int lane = 0; lane < 4; ++lane) {
      const int32_t level = static_cast<int32_t>(hash >> (16 * lane) & 0xffff) - 32768;
      values[lane] = convert((static_cast<float>(level) + 0.5f) * kStep);
    }
    const int64_t n = std::min<int64_t>(4, count - i);
    std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(T), values,
                static_cast<size_t>(n) * sizeof(T));
  }
}

template <typename T>
void FillConstant(T value, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); i += sizeof(T)) std::memcpy(out.data() + i, &value, sizeof(T));
}

}  // namespace

uint64_t TensorKey(uint64_t seed, std::string_view tensor) {
  uint64_t key = Mix64(seed);
  for (char c : tensor) key = Mix64(key ^ static_cast<unsigned char>(c));
  return key;
}

void FillWeights(uint64_t key, WeightKind kind, DType dtype, int64_t first,
                 std::span<uint8_t> out) {
  MR_CHECK(first % 4 == 0) << first;
  const bool one = kind == WeightKind::kNormWeight;
  switch (dtype) {
    case DType::kF32:
      if (one) return FillConstant(1.0f, out);
      return Fill<float>(key, first, out, [](float v) { return v; });
    case DType::kF16:
      if (one) return FillConstant(ToHalf(1.0f), out);
      return Fill<uint16_t>(key, first, out, ToHalf);
    case DType::kBF16:
      if (one) return FillConstant(ToBFloat(1.0f), out);
      return Fill<uint16_t>(key, first, out, ToBFloat);
  }
}

}  // namespace millrace::model
