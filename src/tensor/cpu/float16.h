// Conversions between f32 and the 16-bit storage types, one number at a time, rounding to nearest
// even: the definition the vector code agrees with bit for bit (NaN payloads aside). Any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace millrace::tensor {

// A factor nearer to zero than this counts as zero: docs/decisions/0038-small-factors-are-zero.md.
inline constexpr float kSmallestFactor = 0x1p-50f;
inline float FactorOf(float x) { return std::fabs(x) < kSmallestFactor ? 0.0f : x; }

inline float FloatFromBF16(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t BF16FromFloat(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((u >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// A factor that is stored as bf16.
inline uint16_t BF16FactorOf(float x) { return BF16FromFloat(FactorOf(x)); }
inline uint16_t BF16FactorOf(uint16_t bf16) {
  constexpr uint16_t kSmallest = std::bit_cast<uint32_t>(kSmallestFactor) >> 16;
  return (bf16 & 0x7fffu) < kSmallest ? 0 : bf16;
}

inline float FloatFromF16(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t rest = uint32_t{h & 0x7fffu} << 13;
  if (rest >= 0x0f800000u) return std::bit_cast<float>(sign | 0x7f800000u | rest);  // Inf, NaN
  // After the shift the exponent is too small by 112; the product also normalises subnormals.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f));
}

inline uint16_t F16FromFloat(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return sign | 0x7e00u;
  if (a >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more: Inf
  if (a < 0x38800000u) {  // subnormal: adding 0.5 leaves the bits, rounded, at the bottom
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) -
                                        0x3f000000u);
  }
  return sign | static_cast<uint16_t>((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
}

}  // namespace millrace::tensor
