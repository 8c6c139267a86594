// The shape of a model that is measured within a test. Pure; any thread.
#pragma once

#include "base/json.h"
#include "model/shapes.h"

namespace millrace::ops {

inline Json TinyConfig(int layers) {
  const model::ShapeNumbers numbers = {.layers = layers,
                                       .hidden = 64,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 16,
                                       .intermediate = 128,
                                       .vocab = 512,
                                       .positions = 256};
  return model::ShapeConfig("llama-160m", numbers).value();
}

}  // namespace millrace::ops
