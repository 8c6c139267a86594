#include "model/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/check.h"
#include "model/architecture.h"
#include "model/sha256.h"
#include "model/sharding.h"
#include "model/weight_files.h"
#include "model/weight_plan.h"

namespace millrace::model {
namespace {

// Of a tensor in a model too large to be read whole: so many bytes at each of so many places.
constexpr size_t kSampleBytes = 4096;
constexpr size_t kSamples = 64;

struct Opened {
  Json config;
  std::unique_ptr<Decoder> decoder;
  WeightFiles files;
};

Result<Opened> Open(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(Json config, ReadConfig(folder));
  const std::string label = (std::filesystem::path(folder) / "config.json").string();
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, NewDecoder(config, label));
  ConfigReader names(config, label);
  const std::vector<std::string> architectures = names.Strings("architectures");
  decoder->mutable_spec().architecture =
      architectures.empty() ? names.String("model_type", "") : architectures[0];
  MR_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(folder));
  return Opened{std::move(config), std::move(decoder), std::move(files)};
}

void AddBytes(const StoredTensor& tensor, bool whole, Sha256& digest) {
  if (whole || tensor.bytes() <= kSamples * kSampleBytes) {
    return digest.Add(tensor.data(), tensor.bytes());
  }
  const size_t stride = (tensor.bytes() - kSampleBytes) / (kSamples - 1);
  for (size_t i = 0; i < kSamples; ++i) digest.Add(tensor.data() + i * stride, kSampleBytes);
}

}  // namespace

Result<ModelDescription> DescribeModel(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(Opened opened, Open(folder));
  ModelSpec& spec = opened.decoder->mutable_spec();
  WeightPlan plan(&opened.files);
  opened.decoder->Declare({0, spec.num_layers}, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  for (const WeightNeed& need : plan.Needs()) spec.num_parameters += need.elements();
  spec.weight_bytes = plan.stored_bytes();
  spec.dtype = plan.dtype();
  ModelDescription description;
  description.spec = spec;
  MR_ASSIGN_OR_RETURN(description.generation,
                      ReadGenerationConfig(folder, opened.config, spec.vocab_size));
  return description;
}

Result<std::string> ModelFingerprint(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(Opened opened, Open(folder));
  WeightPlan plan(&opened.files);
  opened.decoder->Declare({0, opened.decoder->dims().spec.num_layers}, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  Sha256 digest;
  digest.Add(opened.config.dump());
  const bool whole = plan.stored_bytes() <= kFingerprintWholeBytes;
  for (const WeightNeed& need : plan.Needs()) {
    const std::optional<StoredTensor> tensor = opened.files.Find(need.name);
    MR_CHECK(tensor.has_value()) << need.name << " was resolved a moment ago";
    digest.Add(need.name);
    for (int64_t extent : need.shape) digest.Add(&extent, sizeof extent);
    const uint64_t size = tensor->bytes();
    digest.Add(&size, sizeof size);
    AddBytes(*tensor, whole, digest);
  }
  return digest.Hex();
}

Result<std::vector<FileRun>> WeightRunsOf(const std::string& folder, LayerRange layers,
                                          TensorRank rank) {
  MR_ASSIGN_OR_RETURN(Opened opened, Open(folder));
  const ModelSpec& spec = opened.decoder->dims().spec;
  MR_RETURN_IF_ERROR(CheckSharding(spec, rank));
  if (layers.begin < 0 || layers.begin >= layers.end || layers.end > spec.num_layers) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within the model's [0, {})",
                                       layers.begin, layers.end, spec.num_layers));
  }
  WeightPlan plan(&opened.files, rank);
  opened.decoder->Declare(layers, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  return plan.Runs();
}

}  // namespace millrace::model
