// The arithmetic of docs/decisions/0017-bits-on-every-x86.md and 0038 in scalar C++: what the
// kernels must compute bit by bit on every x86 with fused multiply-add. Slow, for tests. Where the
// other reference versions (*_ref.h) are exact to a tolerance, these are exact to the bit. With
// bf16 weights and caches the bits do not depend on whether denormals are flushed (flush.h).
#pragma once

#include <span>
#include <vector>

#include "tensor/device.h"

namespace millrace::tensor {

// How sums of products are taken: in the order of k, as with f32 and f16; in blocks, as with bf16,
// with activations rounded to it or as two limbs.
enum class SumRule { kInOrder, kBF16, kTwoBF16 };

// Whether a product and a sum are rounded once or twice. Factors in bf16 have exact products, so
// sums in blocks of one limb have the same bits either way.
enum class Multiply { kFused, kApart };

// One output of a product: `chains` sums over k, added pairwise. `w`: the output's weights as f32.
float ProductBits(std::span<const float> x, std::span<const float> w, int chains, SumRule rule,
                  Multiply multiply = Multiply::kFused);

std::vector<float> RmsNormBits(std::span<const float> x, std::span<const float> weight,
                               float epsilon);
std::vector<float> LayerNormBits(std::span<const float> x, std::span<const float> weight,
                                 std::span<const float> bias, float epsilon);

// 2^x for x <= 0; e^x of an activation; 2^(x - 0.5) rounded to bf16, of a softmax.
float PowerOfTwoBits(float x);
float ExpBits(float x);
float RoundedPowerOfTwoBits(float x);

// One head of a row at a position, whose angles these are: [dim / 2].
std::vector<float> RopeBits(std::span<const float> x, std::span<const float> cos,
                            std::span<const float> sin);

// One head of one query at `position`. keys, values: [position + 1][head_dim] as stored in the
// pool. With kTwoBF16, queries and weights are sums of two limbs.
std::vector<float> AttendBits(std::span<const float> q, int position, std::span<const float> keys,
                              std::span<const float> values, const AttentionSpec& spec,
                              SumRule rule);

}  // namespace millrace::tensor
