// The decoder of the Llama family: RMS norms before attention and before a gated feed-forward part,
// rotary positions, grouped queries. Members of the family differ in the fields of GatedShape.
// Owned by Model; one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace millrace::model {

struct GatedShape {
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool head_norms = false;  // RMS norm of each head of q and k
  bool tied = false;        // the vocabulary projection is the embedding
  double epsilon = 1e-5;
  tensor::Activation activation = tensor::Activation::kSilu;
  std::vector<int> windows;  // per layer: keys a query sees, 0: all
};

// Reads all fields that the family has in common into `dims` (spec, rope).
Dims ReadGatedDims(ConfigReader& config);
GatedShape ReadGatedShape(ConfigReader& config, const Dims& dims);

// Reads Qwen's sliding windows: use_sliding_window, sliding_window, max_window_layers or
// layer_types.
std::vector<int> ReadQwenWindows(ConfigReader& config, ModelSpec& spec);

std::unique_ptr<Decoder> NewGatedDecoder(Dims dims, GatedShape shape);

}  // namespace millrace::model
