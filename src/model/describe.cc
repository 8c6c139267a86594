#include "model/describe.h"

#include <fmt/format.h>

#include "model/opened_model.h"
#include "model/sharding.h"
#include "model/weight_plan.h"

namespace millrace::model {

Result<ModelDescription> DescribeModel(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenedModel::Open(folder));
  ModelSpec& spec = opened.decoder->mutable_spec();
  WeightPlan plan(&opened.files);
  opened.decoder->Declare({0, spec.num_layers}, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  for (const WeightNeed& need : plan.Needs()) spec.num_parameters += need.elements();
  spec.weight_bytes = plan.stored_bytes();
  spec.dtype = plan.dtype();
  ModelDescription description;
  description.spec = spec;
  description.notes = plan.notes();
  MR_ASSIGN_OR_RETURN(description.generation,
                      ReadGenerationConfig(folder, opened.config, spec.vocab_size));
  return description;
}

Result<std::vector<FileRun>> WeightRunsOf(const std::string& folder, LayerRange layers,
                                          TensorRank rank, const LoadedWeights& here) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenedModel::Open(folder));
  const ModelSpec& spec = opened.decoder->dims().spec;
  MR_RETURN_IF_ERROR(CheckSharding(spec, rank));
  if (layers.begin < 0 || layers.begin >= layers.end || layers.end > spec.num_layers) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within the model's [0, {})",
                                       layers.begin, layers.end, spec.num_layers));
  }
  WeightPlan plan(&opened.files, rank);
  opened.decoder->Declare(layers, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  plan.Keep(here);
  return plan.Runs();
}

}  // namespace millrace::model
