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

using DU = hn::CappedTag<uint32_t, kUnitLanes>;
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

void ChooseBases(const uint32_t* words, int k, uint32_t* bases) {
  const DU du;
  const VU least = hn::Set(du, kShortExponents - 1);
  for (size_t j = 0; j < kShortBases; j += hn::Lanes(du)) {
    // Outputs j and on are in the words of unit j / 16 of each block.
    const size_t first = j / kUnitLanes * kUnitWords + j % kUnitLanes;
    VU largest = least;
    for (int block = 0; block < k / kBlockK; ++block) {
      for (size_t i = 0; i < kUnitPairs; ++i) {
        const VU word = hn::LoadU(
            du, words + first + static_cast<size_t>(block) * 2 * kUnitWords + i * kUnitLanes);
        largest = hn::Max(largest, ExponentOf(word));
        largest = hn::Max(largest, ExponentOf(hn::ShiftRight<16>(word)));
      }
    }
    hn::StoreU(hn::ShiftLeft<kShortBaseBit>(hn::Sub(largest, least)), du, bases + j);
  }
}

bool EncodeGroup(const uint32_t* words, const uint32_t* bases, uint32_t* group) {
  const DU du;
  const VU byte = hn::Set(du, 0xff);
  VU outside = hn::Zero(du);
  for (size_t j = 0; j < kUnitLanes; j += hn::Lanes(du)) {
    const VU base = hn::ShiftRight<kShortBaseBit>(hn::LoadU(du, bases + j));
    // 24 bits: the even number above the odd one.
    const auto pair = [&](size_t i) {
      const VU both = hn::LoadU(du, words + i * kUnitLanes + j);
      return hn::Or(hn::ShiftLeft<12>(Shorten(both, base, outside)),
                    Shorten(hn::ShiftRight<16>(both), base, outside));
    };
    const VU last = pair(3);
    const auto store = [&](size_t i, VU rest) {
      hn::StoreU(hn::Or(hn::ShiftLeft<8>(pair(i)), rest), du, group + i * kUnitLanes + j);
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

void ChooseShortBases(const uint32_t* words, int k, uint32_t* bases) {
  HWY_DYNAMIC_DISPATCH(ChooseBases)(words, k, bases);
}

bool EncodeShortGroup(const uint32_t* words, const uint32_t* bases, uint32_t* group) {
  return HWY_DYNAMIC_DISPATCH(EncodeGroup)(words, bases, group);
}

}  // namespace millrace::tensor
#endif
