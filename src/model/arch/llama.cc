// Llama 1, 2, 3 (Touvron et al. 2023; Grattafiori et al. 2024) and models that share their layout.
#include "model/arch/gated_decoder.h"

namespace millrace::model {

std::unique_ptr<Decoder> MakeLlama(ConfigReader& config) {
  Dims dims = ReadGatedDims(config);
  GatedShape shape = ReadGatedShape(config, dims);
  shape.qkv_bias = shape.out_bias = config.Bool("attention_bias", false);
  shape.mlp_bias = config.Bool("mlp_bias", false);
  return NewGatedDecoder(std::move(dims), std::move(shape));
}

}  // namespace millrace::model
