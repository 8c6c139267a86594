// ChooseSpec: how a token is chosen from a row of logits (Device::Choose). A value.
#pragma once

#include <cstdint>

namespace millrace::tensor {

// In this order: temperature, top-k, top-p of what it leaves, min-p, draw.
struct ChooseSpec {
  double temperature = 0;  // 0: the likeliest token
  int top_k = 0;           // 0: all
  double top_p = 1, min_p = 0;
  uint64_t seed = 0;
  int position = 0;  // the number of tokens before the chosen one
};

}  // namespace millrace::tensor
