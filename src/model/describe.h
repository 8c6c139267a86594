// DescribeModel: what can be known of a model folder without loading it: its sizes, its defaults,
// and a fingerprint that tells whether two machines have the same model.
#pragma once

#include <string>

#include "base/status.h"
#include "core/model_spec.h"
#include "model/config.h"

namespace millrace::model {

// Weights up to so many bytes are in the fingerprint whole; of more, samples of every tensor.
inline constexpr int64_t kFingerprintWholeBytes = int64_t{8} << 30;

struct ModelDescription {
  ModelSpec spec;
  GenerationConfig generation;
};

// Errors: as Model::Load.
Result<ModelDescription> DescribeModel(const std::string& folder);

// Of the configuration and every tensor's name, type, shape and bytes, as 64 hexadecimal digits;
// how the tensors are spread over files does not count. Reads the weights: seconds per gigabyte or
// less.
Result<std::string> ModelFingerprint(const std::string& folder);

}  // namespace millrace::model
