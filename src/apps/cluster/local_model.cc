#include "apps/cluster/local_model.h"

#include <fmt/format.h>

#include <future>
#include <utility>

#include "apps/cluster/controller_admin.h"
#include "apps/cluster/controller_options.h"
#include "apps/cluster/end_tokens.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cluster/runtime/one_worker.h"
#include "cluster/worker/worker_model.h"
#include "model/model.h"
#include "ops/hub/fetch_model.h"
#include "stage/model_stage.h"
#include "tensor/devices/make_device.h"

namespace millrace::apps {
namespace {

Result<std::shared_ptr<const text::ChatTemplate>> LoadTemplate(const LocalModel& model,
                                                               const std::string& given,
                                                               text::ContentFormat format) {
  const auto& special = model.tokenizer->special_tokens();
  Result<std::unique_ptr<const text::ChatTemplate>> loaded = Internal("not loaded");
  if (given.empty()) {
    loaded = text::ChatTemplate::Load(model.path.folder, special, format);
    if (loaded.status().code() == StatusCode::kNotFound) {
      return std::shared_ptr<const text::ChatTemplate>();
    }
  } else {
    MR_ASSIGN_OR_RETURN(text::TokenizerConfig config, text::LoadTokenizerConfig(model.path.folder));
    std::string source = given;
    if (!text::IsTemplateSource(given)) {
      auto file = ReadFile(given, text::kChatTemplateBytesMax);
      if (!file.ok()) return file.status().WithContext("--chat-template");
      source = std::move(*file);
      config.template_files = {{text::kDefaultTemplateName, given}};
    } else {
      config.template_files.clear();
    }
    config.chat_templates = {{text::kDefaultTemplateName, std::move(source)}};
    loaded = text::ChatTemplate::FromConfig(config, special, format);
    if (!loaded.ok()) return loaded.status().WithContext("--chat-template");
  }
  if (!loaded.ok()) return loaded.status();
  return std::shared_ptr<const text::ChatTemplate>(std::move(*loaded));
}

Result<std::unique_ptr<model::Model>> LoadWeights(const EngineFlags& flags,
                                                  const std::string& folder, tensor::Device& device,
                                                  const LocalModelOptions& options) {
  model::LoadOptions load;
  load.max_batched_tokens = flags.max_num_batched_tokens;
  load.max_model_len = flags.max_model_len;
  load.progress = options.progress;
  return model::Model::Load(folder, device, load);
}

Result<std::string> FingerprintOf(const std::string& folder, const model::DigestCache& cache) {
  MR_ASSIGN_OR_RETURN(const auto digests, cache.Of(folder));
  return digests.fingerprint();
}

Status StartController(const EngineFlags& flags, std::unique_ptr<tensor::Device> device,
                       std::unique_ptr<model::Model> weights, bool serves, const Clock& clock,
                       LocalModel& model) {
  MR_ASSIGN_OR_RETURN(cluster::ControllerHostOptions options, ControllerOptionsFor(flags, model));
  options.controller.identity.model_fingerprint = model.weights_fingerprint;
  cluster::OneWorker worker;
  worker.join.identity.numeric_class = device->NumericClass();
  worker.join.identity.kv_layout = cluster::KvLayoutName(model.spec);
  worker.weight_bytes = weights->loaded_bytes();
  worker.kv_bytes_per_token = model.spec.KvBytesPerToken();
  worker.num_blocks = model.kv.num_blocks;
  worker.join.address.data = "inside";  // for the log only; no peer connects
  worker.join.device = model.device_name;
  worker.join.memory_bytes = device->MemoryAvailable().bytes;
  const size_t ahead = serves ? stage::KvAheadBytes(*weights, flags.populate_kv) : 0;
  worker.stage = std::make_shared<stage::ModelStage>(std::move(device), std::move(weights), ahead);
  MR_ASSIGN_OR_RETURN(std::shared_ptr<cluster::LocalCluster> here,
                      cluster::StartOneWorker(std::move(options), std::move(worker), clock));
  model.cluster = std::make_unique<ControllerAdmin>(here->host(), model.path.name, nullptr);
  model.engine = std::shared_ptr<cluster::Generator>(here, &here->host());
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<LocalModel>> LoadModelText(const EngineFlags& flags,
                                                  const std::string& chat_template) {
  auto model = std::make_unique<LocalModel>();
  MR_ASSIGN_OR_RETURN(model->path, ops::FetchModel(flags.model, flags.hub));
  MR_ASSIGN_OR_RETURN(model->tokenizer, text::Tokenizer::Load(model->path.folder));
  MR_ASSIGN_OR_RETURN(model->chat_template,
                      LoadTemplate(*model, chat_template, flags.content_format));
  return model;
}

Result<std::unique_ptr<LocalModel>> LoadLocalModel(const EngineFlags& flags,
                                                   const LocalModelOptions& options,
                                                   const Clock& clock) {
  MR_ASSIGN_OR_RETURN(auto model, LoadModelText(flags, options.chat_template));
  const int threads = flags.threads.value_or(DefaultThreads(options.serves));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<tensor::Device> device,
                      tensor::MakeDevice(tensor::kCpu, {.threads = threads}));
  model->device_name = device->Name();
  if (const std::string advice = NumaAdvice(); !advice.empty()) MR_LOG(warn, "{}", advice);
  std::future<Result<std::string>> fingerprint;
  if (options.serves) {
    fingerprint = std::async(std::launch::async, FingerprintOf, model->path.folder,
                             WeightCacheOf(flags.weight_cache));
  }
  MR_ASSIGN_OR_RETURN(auto weights, LoadWeights(flags, model->path.folder, *device, options));
  if (fingerprint.valid()) {
    MR_ASSIGN_OR_RETURN(model->weights_fingerprint, fingerprint.get());
  }
  model->spec = weights->spec();
  model->generation = weights->generation_config();
  model->notes = weights->notes();
  LogFolderNotes(*model);
  model->block_size = flags.block_size;
  KvDemand demand;
  demand.bytes_per_block = model->spec.KvBytesPerToken() * flags.block_size;
  demand.available_bytes = device->MemoryAvailable().bytes;
  demand.model_max_len = model->spec.max_position;
  MR_ASSIGN_OR_RETURN(model->kv, PlanKv(flags, demand));
  MR_RETURN_IF_ERROR(CheckKvFits(int64_t{model->kv.num_blocks} * demand.bytes_per_block,
                                 model->kv.reason, ReadMemoryAvailable()));
  MR_RETURN_IF_ERROR(CheckKvFits(int64_t{model->kv.num_host_blocks} * demand.bytes_per_block,
                                 "--swap-space", ReadMemoryAvailable()));
  MR_RETURN_IF_ERROR(
      StartController(flags, std::move(device), std::move(weights), options.serves, clock, *model));
  return model;
}

Result<std::unique_ptr<LocalModel>> LoadWithProgress(const EngineFlags& flags,
                                                     LocalModelOptions options,
                                                     const Clock& clock) {
  Progress progress("Loading", ProgressUnit::kBytes, 0, stderr, ProgressStyle::ForStream(stderr),
                    clock);
  options.progress = [&progress](int64_t done, int64_t total) {
    progress.UpdateTotal(done, total);
    if (done == total) progress.Finish();
  };
  return LoadLocalModel(flags, options, clock);
}

std::string Summary(const LocalModel& model) {
  const ModelSpec& spec = model.spec;
  const int64_t kv_tokens = int64_t{model.kv.num_blocks} * model.block_size;
  std::string text =
      fmt::format("Model     {} ({}, {} parameters, {}, {})\n", Printable(model.path.name),
                  Printable(spec.architecture), FormatParameters(spec.num_parameters),
                  DTypeName(spec.dtype), FormatBytes(spec.weight_bytes));
  text += fmt::format("Device    {}\n", model.device_name);
  text += fmt::format("Context   {} tokens", FormatCount(model.kv.max_model_len));
  if (model.kv.lowered) {
    text += fmt::format(
        ", lowered from the model's {} so that the KV cache holds one sequence; raise "
        "--kv-cache-memory for more",
        FormatCount(spec.max_position));
  }
  if (model.kv.num_blocks == 0) {
    text += fmt::format("\nKV cache  blocks of {}, {}\n", model.block_size, model.kv.reason);
  } else {
    text += fmt::format("\nKV cache  {} tokens in {} blocks of {}, {} ({})\n",
                        FormatCount(kv_tokens), FormatCount(model.kv.num_blocks), model.block_size,
                        FormatBytes(kv_tokens * spec.KvBytesPerToken()), model.kv.reason);
  }
  if (spec.generates) text += fmt::format("Ends at   {}\n", EndTokensText(model));
  if (model.kv.num_host_blocks > 0) {
    text += fmt::format("Swap      {} blocks\n", FormatCount(model.kv.num_host_blocks));
  }
  return text;
}

}  // namespace millrace::apps
