#include "tensor/cpu/short_bf16.h"

#include <algorithm>

namespace millrace::tensor {
namespace {

constexpr uint32_t kExponentMax = 0xff;

uint32_t ExponentOf(uint32_t bf16) { return bf16 >> 7 & kExponentMax; }

// Sign, exponent above the base, mantissa; what of the exponent does not fit goes to `outside`.
uint32_t Shorten(uint32_t bf16, uint32_t base, uint32_t& outside) {
  const uint32_t above = ExponentOf(bf16) - base;
  outside |= above & ~(kShortExponents - 1);
  return bf16 >> 15 << 11 | (above & (kShortExponents - 1)) << 7 | (bf16 & 0x7f);
}

}  // namespace

void ChooseShortBases(const uint32_t* packs, int k, uint32_t* bases) {
  uint32_t largest[kShortBases];
  std::fill_n(largest, kShortBases, kShortExponents - 1);
  for (int i = 0; i < k; ++i, packs += kShortLanes) {
    for (size_t j = 0; j < kShortLanes; ++j) {
      largest[j] = std::max(largest[j], ExponentOf(packs[j]));
      largest[kShortLanes + j] = std::max(largest[kShortLanes + j], ExponentOf(packs[j] >> 16));
    }
  }
  for (size_t j = 0; j < kShortBases; ++j) {
    bases[j] = (largest[j] - (kShortExponents - 1)) * kShortBaseUnit;
  }
}

bool EncodeShortGroup(const uint32_t* packs, const uint32_t* bases, uint32_t* words) {
  uint32_t outside = 0;
  for (size_t j = 0; j < kShortLanes; ++j) {
    const uint32_t low = bases[j] / kShortBaseUnit, high = bases[kShortLanes + j] / kShortBaseUnit;
    uint32_t pair[kShortGroup];  // 24 bits: the low value above the high one
    for (size_t i = 0; i < kShortGroup; ++i) {
      const uint32_t both = packs[i * kShortLanes + j];
      pair[i] = Shorten(both & 0xffff, low, outside) << 12 | Shorten(both >> 16, high, outside);
    }
    words[j] = pair[0] << 8 | pair[3] >> 16;
    words[kShortLanes + j] = pair[1] << 8 | (pair[3] >> 8 & 0xff);
    words[2 * kShortLanes + j] = pair[2] << 8 | (pair[3] & 0xff);
  }
  return outside == 0;
}

}  // namespace millrace::tensor
