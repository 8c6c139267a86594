// The byte sizes of a model's layers and ends, from its configuration alone.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "apps/plan/inputs.h"
#include "base/file.h"
#include "base/log.h"
#include "base/suggest.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/shapes.h"
#include "model/weight_plan.h"

namespace millrace::apps {
namespace {

Result<int64_t> Elements(const Json& config, const std::string& label, LayerRange layers) {
  MR_ASSIGN_OR_RETURN(const auto decoder, model::NewDecoder(config, label));
  model::WeightPlan weights(nullptr);
  decoder->Declare(layers, weights);
  int64_t elements = 0;
  for (const model::WeightNeed& need : weights.Needs()) elements += need.elements();
  return elements;
}

Result<plan::ModelFootprint> FootprintOf(const Json& config, const std::string& label) {
  MR_ASSIGN_OR_RETURN(const auto decoder, model::NewDecoder(config, label));
  plan::ModelFootprint out;
  out.spec = decoder->dims().spec;
  out.spec.dtype = DType::kBF16;
  const int layers = out.spec.num_layers;
  const auto bytes = static_cast<int64_t>(BytesOf(out.spec.dtype));
  MR_ASSIGN_OR_RETURN(const int64_t all, Elements(config, label, {0, layers}));
  out.spec.num_parameters = all;
  out.spec.weight_bytes = all * bytes;
  if (layers < 3) {  // every layer is at an end; assumes equal shares
    out.layer_bytes = all * bytes / layers;
    return out;
  }
  MR_ASSIGN_OR_RETURN(const int64_t middle, Elements(config, label, {1, 2}));
  MR_ASSIGN_OR_RETURN(const int64_t first, Elements(config, label, {0, 1}));
  MR_ASSIGN_OR_RETURN(const int64_t last, Elements(config, label, {layers - 1, layers}));
  out.layer_bytes = middle * bytes;
  out.embedding_bytes = (first - middle) * bytes;
  out.head_bytes = (last - middle) * bytes;
  return out;
}

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

Result<plan::ModelFootprint> LoadFootprint(const std::string& name) {
  auto shape = model::ShapeConfig(name);
  if (shape.ok()) {
    MR_ASSIGN_OR_RETURN(plan::ModelFootprint out, FootprintOf(*shape, name));
    out.name = name;
    return out;
  }
  if (name.find('/') == std::string::npos && !name.ends_with(".json") && !IsFolder(name)) {
    const auto guess = Suggest(name, model::ShapeNames());
    return InvalidArgument(fmt::format("unknown model '{}'{}; give one of {}, or a config.json",
                                       Printable(name, 60),
                                       guess ? fmt::format(", did you mean {}?", *guess) : "",
                                       fmt::join(model::ShapeNames(), ", ")));
  }
  const std::string path = IsFolder(name) ? name + "/config.json" : name;
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, model::kConfigBytesMax));
  auto config = model::ParseConfig(text);
  if (!config.ok()) return config.status().WithContext(Printable(path));
  MR_ASSIGN_OR_RETURN(plan::ModelFootprint out, FootprintOf(*config, path));
  out.name = name;
  return out;
}

}  // namespace millrace::apps
