// ShortBlocks: reads a panel of short bf16 block by block, as AMX's tiles want it. For amx_gemm.cc
// only, whose compiler options it needs.
#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensor/cpu/packed_matrix.h"
#include "tensor/cpu/panel.h"
#include "tensor/cpu/short_bf16.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,fma")
namespace millrace::tensor {

// How far ahead a panel that is read once is prefetched.
inline constexpr int kShortFetchBlocks = 6;

// Forms with a mask, because GCC 12 warns of the others.
inline constexpr __mmask16 kAllWords = 0xffff;

// The blocks of a panel of short bf16 as plain units, one after the other (short_bf16.h).
class ShortBlocks {
 public:
  // Blocks from k on. `panel_after`: the panel that is read after this one.
  ShortBlocks(const CpuPackedMatrix& w, int panel, int k, int panel_after)
      : group_(static_cast<uint32_t>(k / kShortGroup)) {
    const Asides asides = w.asides(panel);
    const auto next = std::lower_bound(asides.groups.begin(), asides.groups.end(), group_);
    const auto skipped = static_cast<size_t>(next - asides.groups.begin());
    aside_ = asides.groups.data() + skipped;
    aside_words_ = asides.words + skipped * kPlainWords;
    const auto* panel_words = reinterpret_cast<const uint32_t*>(w.panel(panel));
    words_ = panel_words + kShortBases + group_ * kShortGroupWords;
    ahead_ = reinterpret_cast<const uint8_t*>(words_) + kShortFetchBlocks * kBlockBytes;
    end_ = w.panel(panel + 1);
    next_ = w.panel(panel_after);
    for (size_t half = 0; half < 2; ++half) {  // of both numbers of a word
      const __m512i base = _mm512_loadu_si512(panel_words + half * kUnitLanes);
      bases_[half] = _mm512_or_si512(base, _mm512_maskz_srli_epi32(kAllWords, base, 16));
    }
  }

  // With kFetches, prefetches the block that follows kShortFetchBlocks later, little by little: a
  // burst would hold up the loads.
  template <bool kFetches>
  void Next(uint32_t* units) {
    if (kFetches && ahead_ >= end_ && next_ != nullptr) {
      ahead_ = next_;
      next_ = nullptr;
    }
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < kUnitPairs / kShortGroup; ++i, ++group_, units += kPlainWords) {
        if (*aside_ == group_) [[unlikely]] {
          std::copy_n(aside_words_, kPlainWords, units);
          ++aside_;
          aside_words_ += kPlainWords;
        } else {
          Widen(words_, bases_[half], units);
        }
        if constexpr (kFetches) Fetch();
        words_ += kShortGroupWords;
      }
    }
  }

 private:
  static constexpr size_t kPlainWords = kShortGroup * kUnitLanes;  // of a group
  static constexpr size_t kBlockBytes = kBlockK / kShortGroup * kShortGroupWords * sizeof(uint32_t);

  void Fetch() {
    for (size_t at = 0; at < kShortGroupWords * sizeof(uint32_t); at += 64, ahead_ += 64) {
      __builtin_prefetch(ahead_, 0, 2);
    }
  }

  static void Widen(const uint32_t* from, __m512i base, uint32_t* to) {
    const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + kUnitLanes),
                  third = _mm512_loadu_si512(from + 2 * kUnitLanes);
    // The fourth pair: the last bytes of the three words.
    __m512i fourth = _mm512_maskz_slli_epi32(kAllWords, third, 24);
    fourth = _mm512_maskz_shrdi_epi32(kAllWords, fourth, second, 8);
    fourth = _mm512_maskz_shrdi_epi32(kAllWords, fourth, first, 8);
    _mm512_storeu_si512(to, WidenPair(first, base));
    _mm512_storeu_si512(to + kUnitLanes, WidenPair(second, base));
    _mm512_storeu_si512(to + 2 * kUnitLanes, WidenPair(third, base));
    _mm512_storeu_si512(to + 3 * kUnitLanes, WidenPair(fourth, base));
  }

  // From 12 bits of each, the even number's above the odd one's. An arithmetic shift puts exponent
  // and mantissa in place and fills the bits between sign and exponent with copies of the sign.
  static __m512i WidenPair(__m512i words, __m512i base) {
    // For each byte, the first of its bits in 64: those of two words. 12 bits go to the top of 16.
    constexpr uint64_t kFrom = 0x2c24'3830'0c04'1810;
    const __m512i both = _mm512_maskz_multishift_epi64_epi8(
        ~__mmask64{0}, _mm512_set1_epi64(static_cast<long long>(kFrom)), words);
    const __m512i kept = _mm512_and_si512(_mm512_maskz_srai_epi16(~__mmask32{0}, both, 4),
                                          _mm512_set1_epi16(static_cast<short>(0x87ff)));
    return _mm512_add_epi16(kept, base);
  }

  const uint32_t *words_, *aside_, *aside_words_;
  uint32_t group_;
  const uint8_t *ahead_, *end_, *next_;
  __m512i bases_[2];
};

}  // namespace millrace::tensor
HWY_POP_ATTRIBUTES
