// Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's layout with biases on q, k and v.
#include "model/arch/gated_decoder.h"

namespace millrace::model {

std::unique_ptr<Decoder> MakeQwen2(ConfigReader& config) {
  Dims dims = ReadGatedDims(config);
  GatedShape shape = ReadGatedShape(config, dims);
  shape.qkv_bias = true;
  shape.windows = ReadQwenWindows(config, dims.spec);
  return NewGatedDecoder(std::move(dims), std::move(shape));
}

}  // namespace millrace::model
