// Short bf16: bf16 weights stored in 12 bits without losing a bit. A weight's exponents span far
// less than the 8 bits of bf16 allow: within an output nearly all lie within a factor of 2^15 of
// the largest. So each lane of a panel keeps a base, and a number keeps its sign, its exponent as 4
// bits above the base, and its mantissa. Where memory bandwidth is the limit, three quarters of the
// bytes give four thirds of the speed, and no answer changes.
//
// The packs of four k are a group: 3 x 16 words, from which a word lane makes its 2 x 4 numbers
// with shifts, a mask and an addition. For word lane j and k = 0..3, with low_k the bits of value j
// and high_k those of value j + 16 (each sign, exponent, mantissa from the top):
//
//   word 0   low_0 (12)   high_0 (12)   top 8 bits of low_3, high_3
//   word 1   low_1        high_1        middle 8 bits
//   word 2   low_2        high_2        last 8 bits
//
// A group with an exponent outside its lane's window is kept aside unchanged (packed_matrix.h).
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::tensor {

inline constexpr int kShortGroup = 4;            // k of a group
inline constexpr size_t kShortLanes = 16;        // word lanes, two numbers each
inline constexpr size_t kShortGroupWords = 48;   // of a group
inline constexpr size_t kShortBases = 32;        // words before a panel's groups
inline constexpr uint32_t kShortExponents = 16;  // of a lane
inline constexpr int kShortBaseBit = 23;  // bases are stored in the form that is added to an f32

// `packs`: [k][16] words of bf16 packs (widen-inl.h). Chooses for each of the 32 values of a pack
// the base whose window ends at the largest exponent over k.
void ChooseShortBases(const uint32_t* packs, int k, uint32_t* bases);

// Writes the group of packs [4][16]. False when one of its numbers does not fit; `words` is then
// undefined.
bool EncodeShortGroup(const uint32_t* packs, const uint32_t* bases, uint32_t* words);

}  // namespace millrace::tensor
