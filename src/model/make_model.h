// The library part of `millrace make-model`: writes a valid model folder of any shape with random
// weights, for benchmarks and tests. It uses threads of its own, joined before it returns.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "core/model_spec.h"

namespace millrace::model {

struct MakeModelOptions {
  uint64_t seed = 0;
  DType dtype = DType::kBF16;
  uint64_t shard_bytes_max = 4'000'000'000;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; from one thread at a time
  std::function<Status()> go_on;  // like `progress`; may wait; an error ends the work
};

// Writes config.json, model.safetensors or shards with their index, tokenizer.json,
// tokenizer_config.json and generation_config.json. `config` comes from ShapeConfig (shapes.h) or
// is any config.json of a known architecture. The folder appears complete or not at all: it is
// written as FOLDER.partial, then renamed, and removed on an error. kFailedPrecondition when the
// folder exists and is not empty, or the disk is too small.
Status MakeModel(const Json& config, const std::string& folder,
                 const MakeModelOptions& options = {});

}  // namespace millrace::model
