// The arithmetic of docs/decisions/0017-bits-on-every-x86.md in scalar C++: what the kernels must
// compute bit by bit on every x86 with fused multiply-add. Slow, for tests. Where the other
// reference versions (*_ref.h) are exact to a tolerance, these are exact to the bit.
#pragma once

#include <span>
#include <vector>

#include "tensor/device.h"

namespace millrace::tensor {

// How sums of products are taken: in the order of k, as with f32 and f16; in blocks, as with bf16,
// with activations rounded to it or as two limbs. REQUIRES for blocks: denormals are flushed
// (flush.h).
enum class SumRule { kInOrder, kBF16, kTwoBF16 };

// One output of a product: `chains` sums over k, added pairwise. `w`: the output's weights as f32.
float ProductBits(std::span<const float> x, std::span<const float> w, int chains, SumRule rule);

std::vector<float> RmsNormBits(std::span<const float> x, std::span<const float> weight,
                               float epsilon);
std::vector<float> LayerNormBits(std::span<const float> x, std::span<const float> weight,
                                 std::span<const float> bias, float epsilon);

// e^x for x <= 0, and for any x.
float ExpOfNegativeBits(float x);
float ExpBits(float x);

// One head of one query at `position`. keys, values: [position + 1][head_dim] as stored in the
// pool. With kTwoBF16, queries and weights are not rounded.
std::vector<float> AttendBits(std::span<const float> q, int position, std::span<const float> keys,
                              std::span<const float> values, const AttentionSpec& spec,
                              SumRule rule);

}  // namespace millrace::tensor
