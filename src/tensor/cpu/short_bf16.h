// Short bf16: bf16 weights stored in 12 bits without losing a bit. A weight's exponents span far
// less than the 8 bits of bf16 allow: within an output nearly all lie within a factor of 2^15 of
// the largest. So each output of a panel keeps a base, and a number keeps its sign, its exponent as
// 4 bits above the base, and its mantissa. Where memory bandwidth is the limit, three quarters of
// the bytes give four thirds of the speed, and no answer changes.
//
// Four pairs of k are a group: 3 x 16 words, from which the lane of an output makes its 2 x 4
// numbers with shifts, a mask and an addition. For pairs 0..3 of even_i and odd_i (each sign,
// exponent, mantissa from the top):
//
//   word 0   even_0 (12)   odd_0 (12)   top 8 bits of even_3, odd_3
//   word 1   even_1        odd_1        middle 8 bits
//   word 2   even_2        odd_2        last 8 bits
//
// A group with an exponent outside its output's window is kept aside unchanged (packed_matrix.h).
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/cpu/panel.h"

namespace millrace::tensor {

inline constexpr int kShortGroup = 4;            // pairs of k of a group
inline constexpr size_t kShortGroupWords = 48;   // of a group
inline constexpr size_t kShortBases = 32;        // words before a panel's groups
inline constexpr uint32_t kShortExponents = 16;  // of an output
inline constexpr int kShortBaseBit = 23;  // bases are stored in the form that is added to an f32

// `words`: a panel, [k / 32][2 units][16 pairs][16 outputs]. Chooses for each of its 32 outputs the
// base whose window ends at the largest exponent over k.
void ChooseShortBases(const uint32_t* words, int k, uint32_t* bases);

// Writes the group of pairs [4][16], with the bases of its 16 outputs. False when one of its
// numbers does not fit; `group` is then undefined.
bool EncodeShortGroup(const uint32_t* words, const uint32_t* bases, uint32_t* group);

}  // namespace millrace::tensor
