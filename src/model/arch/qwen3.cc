// Qwen3 (2025): Llama's layout with RMS norms on the heads of q and k.
#include "model/arch/gated_decoder.h"

namespace millrace::model {

std::unique_ptr<Decoder> MakeQwen3(ConfigReader& config) {
  Dims dims = ReadGatedDims(config);
  GatedShape shape = ReadGatedShape(config, dims);
  shape.qkv_bias = shape.out_bias = config.Bool("attention_bias", false);
  shape.head_norms = true;
  shape.windows = ReadQwenWindows(config, dims.spec);
  return NewGatedDecoder(std::move(dims), std::move(shape));
}

}  // namespace millrace::model
