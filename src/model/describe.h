// DescribeModel: what can be known of a model folder without loading it: its sizes, its defaults,
// and a fingerprint that tells whether two machines have the same model.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/worker_messages.h"
#include "model/config.h"
#include "model/weight_plan.h"

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

// What Model::Load reads of the files for these layers and this rank, in its order; only the
// folder's configuration and the headers of its files need be there.
Result<std::vector<FileRun>> WeightRunsOf(const std::string& folder, LayerRange layers,
                                          TensorRank rank);

}  // namespace millrace::model
