// Random weights as a function of (seed, tensor name, index): the same in any order, on any number
// of threads, and up to rounding in any dtype. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/model_spec.h"
#include "model/weight_plan.h"

namespace millrace::model {

// For matrices, tables and biases: small enough that every shape's activations stay finite.
inline constexpr double kRandomWeightStd = 0.02;

uint64_t TensorKey(uint64_t seed, std::string_view tensor);

// Writes elements [first, first + out.size() / BytesOf(dtype)) of the tensor with that key, in file
// format. Norm weights are one, everything else is uniform around zero. REQUIRES: first % 4 == 0.
void FillWeights(uint64_t key, WeightKind kind, DType dtype, int64_t first, std::span<uint8_t> out);

}  // namespace millrace::model
