// DescribeModel: what can be known of a model folder without loading it: its sizes, its defaults,
// and which bytes some layers read.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/worker_messages.h"
#include "model/config.h"
#include "model/weight_plan.h"

namespace millrace::model {

struct ModelDescription {
  ModelSpec spec;
  GenerationConfig generation;
};

// Errors: as Model::Load.
Result<ModelDescription> DescribeModel(const std::string& folder);

// What Model::Load reads of the files for these layers and this rank, in its order; only the
// folder's configuration and the headers of its files need be there.
Result<std::vector<FileRun>> WeightRunsOf(const std::string& folder, LayerRange layers,
                                          TensorRank rank);

}  // namespace millrace::model
