// Reference versions of the small operations for the tests of elementwise.cc: one row or number at
// a time, in double precision.
#pragma once

#include <span>
#include <vector>

#include "tensor/device.h"

namespace millrace::tensor {

std::vector<float> RmsNormRef(std::span<const float> x, std::span<const float> weight,
                              float epsilon);
// An empty `bias` means none.
std::vector<float> LayerNormRef(std::span<const float> x, std::span<const float> weight,
                                std::span<const float> bias, float epsilon);
// One head at one position.
std::vector<float> RopeRef(std::span<const float> head, int position, const RopeAngles& table);
float ActivateRef(Activation f, float x);

}  // namespace millrace::tensor
