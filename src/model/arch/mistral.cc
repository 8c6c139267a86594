// Mistral (Jiang et al. 2023): Llama's layout; every layer may have a sliding window.
#include "model/arch/gated_decoder.h"

namespace millrace::model {

std::unique_ptr<Decoder> MakeMistral(ConfigReader& config) {
  Dims dims = ReadGatedDims(config);
  GatedShape shape = ReadGatedShape(config, dims);
  if (config.Has("sliding_window")) {
    const int window = config.Int("sliding_window", 1, kPositionsMax);
    dims.spec.sliding_window = window;
    std::fill(shape.windows.begin(), shape.windows.end(), window);
  }
  return NewGatedDecoder(std::move(dims), std::move(shape));
}

}  // namespace millrace::model
