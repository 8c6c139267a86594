#include "tensor/cpu/amx_rows.h"

namespace millrace::tensor {

int AmxTiles(const GemmCall& call) {
  return (call.limbs * call.x.rows + kAmxTileRows - 1) / kAmxTileRows;
}

size_t AmxTileBytes(const GemmCall& call) {
  return static_cast<size_t>(AmxTiles(call)) * static_cast<size_t>(call.w->packed_k()) *
         kAmxTileRows * sizeof(uint16_t);
}

}  // namespace millrace::tensor

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include "tensor/cpu/float16.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,fma")
namespace millrace::tensor {
namespace {

// Forms with a mask, because GCC 12 warns of the others.
constexpr __mmask16 kAll = 0xffff;

// The bf16 nearest to each factor (float16.h), in the upper half of each word.
__m512i Rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512 size = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
  const __mmask16 counts = _mm512_cmp_ps_mask(size, _mm512_set1_ps(kSmallestFactor), _CMP_NLT_UQ);
  return _mm512_maskz_and_epi32(counts, _mm512_mask_mov_epi32(rounded, is_nan, quiet),
                                _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

inline void PackNumbers(const float* from, int count, int limb, uint16_t* to) {
  const auto inside = static_cast<__mmask16>((1u << std::clamp(count, 0, 16)) - 1);
  const __m512 x = _mm512_maskz_loadu_ps(inside, from);
  __m512i rounded = Rounded(x);
  if (limb == 1) rounded = Rounded(_mm512_sub_ps(x, _mm512_castsi512_ps(rounded)));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_maskz_cvtepi32_epi16(kAll, _mm512_maskz_srli_epi32(kAll, rounded, 16)));
}

// 32 numbers, zeros from `count` on.
void CopyNumbers(const uint16_t* from, int count, uint16_t* to) {
  const __mmask32 inside = count >= kBlockK ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(inside, from));
}

}  // namespace

void AmxPackNumbers(const float* from, int count, int limb, uint16_t* to) {
  PackNumbers(from, count, limb, to);
}

void AmxPackTile(const GemmCall& call, Rows x, int i, uint16_t* tiles) {
  const CpuPackedMatrix& w = *call.w;
  const int rows = call.limbs * x.rows;
  ForEachAmxSegment(call, [&](const AmxSegment& segment) {
    uint16_t* to = tiles + AmxTileAt(call, segment, i);
    const int end = w.ChainStart(segment.chain + 1);
    int k = w.ChainStart(segment.chain) + segment.begin * kBlockK - w.PackedStart(segment.chain);
    for (int block = 0; block < segment.blocks(); ++block, k += kBlockK, to += kAmxTileNumbers) {
      for (int r = 0; r < rows; ++r) {
        const int limb = r % call.limbs;
        const size_t at = static_cast<size_t>(r / call.limbs) * x.stride + k;
        uint16_t* row = to + static_cast<size_t>(r) * kBlockK;
        if (x.type == DType::kBF16) {
          CopyNumbers(static_cast<const uint16_t*>(x.data) + at, end - k, row);
          continue;
        }
        const float* from = static_cast<const float*>(x.data) + at;
        PackNumbers(from, end - k, limb, row);
        PackNumbers(from + 16, end - k - 16, limb, row + 16);
      }
      std::fill(to + static_cast<size_t>(rows) * kBlockK, to + kAmxTileNumbers, uint16_t{0});
    }
  });
}

}  // namespace millrace::tensor
HWY_POP_ATTRIBUTES

#else  // no tiles: AmxIsThere() is false, and nothing calls these

namespace millrace::tensor {

void AmxPackNumbers(const float*, int, int, uint16_t*) {}
void AmxPackTile(const GemmCall&, Rows, int, uint16_t*) {}

}  // namespace millrace::tensor
#endif
