#include "tensor/cpu/short_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/short_bf16.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::CappedTag<uint32_t, kShortLanes>;
using VU = hn::Vec<DU>;

// The exponent of the bf16 in the lower half of each word.
VU ExponentOf(VU word) { return hn::And(hn::ShiftRight<7>(word), hn::Set(DU(), 0xff)); }

// Sign, exponent relative to the base, mantissa; exponent bits that do not fit go to `outside`.
VU Shorten(VU word, VU base, VU& outside) {
  const DU du;
  const VU above = hn::Sub(ExponentOf(word), base);
  outside = hn::Or(outside, hn::AndNot(hn::Set(du, kShortExponents - 1), above));
  const VU sign = hn::And(hn::ShiftRight<4>(word), hn::Set(du, 0x800));
  return hn::Or3(sign, hn::ShiftLeft<7>(above), hn::And(word, hn::Set(du, 0x7f)));
}

void ChooseBases(const uint32_t* packs, int k, uint32_t* bases) {
  const DU du;
  const VU least = hn::Set(du, kShortExponents - 1);
  for (size_t j = 0; j < kShortLanes; j += hn::Lanes(du)) {
    VU low = least, high = least;
    for (int i = 0; i < k; ++i) {
      const VU word = hn::LoadU(du, packs + static_cast<size_t>(i) * kShortLanes + j);
      low = hn::Max(low, ExponentOf(word));
      high = hn::Max(high, ExponentOf(hn::ShiftRight<16>(word)));
    }
    hn::StoreU(hn::ShiftLeft<kShortBaseBit>(hn::Sub(low, least)), du, bases + j);
    hn::StoreU(hn::ShiftLeft<kShortBaseBit>(hn::Sub(high, least)), du, bases + kShortLanes + j);
  }
}

bool EncodeGroup(const uint32_t* packs, const uint32_t* bases, uint32_t* words) {
  const DU du;
  const VU byte = hn::Set(du, 0xff);
  VU outside = hn::Zero(du);
  for (size_t j = 0; j < kShortLanes; j += hn::Lanes(du)) {
    const VU low = hn::ShiftRight<kShortBaseBit>(hn::LoadU(du, bases + j));
    const VU high = hn::ShiftRight<kShortBaseBit>(hn::LoadU(du, bases + kShortLanes + j));
    // 24 bits: the low value above the high one.
    const auto pair = [&](size_t i) {
      const VU both = hn::LoadU(du, packs + i * kShortLanes + j);
      return hn::Or(hn::ShiftLeft<12>(Shorten(both, low, outside)),
                    Shorten(hn::ShiftRight<16>(both), high, outside));
    };
    const VU last = pair(3);
    const auto store = [&](size_t i, VU rest) {
      hn::StoreU(hn::Or(hn::ShiftLeft<8>(pair(i)), rest), du, words + i * kShortLanes + j);
    };
    store(0, hn::ShiftRight<16>(last));
    store(1, hn::And(hn::ShiftRight<8>(last), byte));
    store(2, hn::And(last, byte));
  }
  return hn::AllTrue(du, hn::Eq(outside, hn::Zero(du)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(ChooseBases);
HWY_EXPORT(EncodeGroup);

void ChooseShortBases(const uint32_t* packs, int k, uint32_t* bases) {
  HWY_DYNAMIC_DISPATCH(ChooseBases)(packs, k, bases);
}

bool EncodeShortGroup(const uint32_t* packs, const uint32_t* bases, uint32_t* words) {
  return HWY_DYNAMIC_DISPATCH(EncodeGroup)(packs, bases, words);
}

}  // namespace millrace::tensor
#endif
