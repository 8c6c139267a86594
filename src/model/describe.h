// DescribeModel: what a model folder says without loading it: its sizes, its defaults, and which
// bytes some layers read. Pure functions; any thread.
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
  std::vector<std::string> notes;  // as of WeightPlan
};

// Errors: as Model::Load.
Result<ModelDescription> DescribeModel(const std::string& folder);

// The file ranges that Model::Load reads for these layers and this rank beside the weights that are
// `here`, in its order. Needs only the folder's configuration and the headers of its files.
Result<std::vector<FileRun>> WeightRunsOf(const std::string& folder, LayerRange layers,
                                          TensorRank rank, const LoadedWeights& here = {});

}  // namespace millrace::model
