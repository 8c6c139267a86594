#include "cluster/worker/worker_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "model/model.h"
#include "model/model_path.h"
#include "model/rope.h"
#include "model/weight_digests.h"
#include "net/collective/same_host_collective.h"
#include "stage/model_stage.h"
#include "stage/wrapped_stage.h"
#include "tensor/cpu/cpu_features.h"
#include "tensor/devices/make_device.h"

namespace millrace::cluster {
namespace {

constexpr std::chrono::seconds kNoSourcePause{2};
constexpr std::chrono::milliseconds kWantedPoll{50};

Result<std::shared_ptr<net::Collective>> JoinGroup(const LoadShard& load,
                                                   const ShardProgressFn& progress) {
  if (load.rank.size == 1) return std::shared_ptr<net::Collective>();
  for (const WorkerAddress& rank : load.ranks) {
    if (rank.host_id == load.ranks.front().host_id) continue;
    return Unimplemented(
        "the ranks of a tensor-parallel stage must be on one host; plan it as a pipeline instead");
  }
  net::SameHostOptions options;
  options.rank = load.rank.rank;
  options.size = load.rank.size;
  options.meeting = fmt::format("millrace-{:016x}", load.group);
  options.incarnation = load.group;
  options.wanted = [&progress] { return progress(0, 0); };
  MR_ASSIGN_OR_RETURN(auto group, net::JoinSameHost(options));
  return std::shared_ptr<net::Collective>(std::move(group));
}

// A model as one rank of a group. When a rank or the controller is lost, the same model continues
// in another group. While both groups exist, each stage runs the model with its own collective.
class RankStage : public stage::WrappedStage {
 public:
  RankStage(std::shared_ptr<stage::ModelStage> model, std::shared_ptr<net::Collective> group)
      : WrappedStage(model), model_(std::move(model)), group_(std::move(group)) {}

  Status Run(std::span<stage::StagePart> parts) override {
    model_->UseCollective(*group_);
    return model_->Run(parts);
  }

 private:
  const std::shared_ptr<stage::ModelStage> model_;
  const std::shared_ptr<net::Collective> group_;
};

// What was loaded and still exists.
struct Known {
  std::weak_ptr<stage::Stage> stage;
  std::weak_ptr<stage::ModelStage> model;  // the one in `stage`
  ShardLoaded facts;
};

// Loads what a worker is given, and remembers it while it exists. Used by the loading thread only.
class Loader {
 public:
  explicit Loader(WorkerModelOptions options) : options_(std::move(options)) {}

  LoadedShard Load(const LoadShard& load, const std::shared_ptr<stage::Stage>& same,
                   const ShardProgressFn& progress);

 private:
  using ModelPtr = std::shared_ptr<stage::ModelStage>;
  struct Here {
    model::LoadedWeights weights;
    int64_t bytes = 0;                // of the weights
    int64_t extra_bytes = 0;          // of those that no shard that serves has
    std::optional<int64_t> kv_bytes;  // that was promised; none: no shard serves
  };
  Status MakeStage(const LoadShard& load, const Known* known, const ShardProgressFn& progress,
                   LoadedShard& loaded, ModelPtr& model);
  Result<ModelPtr> LoadModel(const LoadShard& load, net::Collective* group,
                             const ShardProgressFn& progress, ShardLoaded& facts);
  Result<std::string> FolderFor(const LoadShard& load, const model::LoadedWeights& here,
                                const ShardProgressFn& progress) const;
  Here WhatIsHere() const;
  std::optional<MemoryAvailable> MemoryBeside(const Here& here, const tensor::Device& device);

  const WorkerModelOptions options_;
  std::vector<Known> known_;
  int64_t memory_bytes_ = 0;  // for weights and KV: the most that was there at a load
};

// Returns a folder with what this load reads.
Result<std::string> Loader::FolderFor(const LoadShard& load, const model::LoadedWeights& here,
                                      const ShardProgressFn& progress) const {
  if (!options_.weights) return options_.folder;
  if (options_.on_disk && !here.empty()) {
    MR_ASSIGN_OR_RETURN(const auto runs,
                        model::WeightRunsOf(options_.folder, load.layers, load.rank, here));
    if (runs.empty()) return options_.folder;
  }
  auto fetched = options_.weights->Fetch(load, progress, here);
  if (fetched.ok() || fetched.status().code() == StatusCode::kCancelled) return fetched;
  if (options_.on_disk) {
    MR_LOG(warn, "{}; reading {}", fetched.status().message(), options_.folder);
    return options_.folder;
  }
  // The next session asks again at once. The pause keeps failed loads from following each other
  // without a break.
  const auto until = std::chrono::steady_clock::now() + kNoSourcePause;
  while (std::chrono::steady_clock::now() < until && progress(0, 0)) {
    std::this_thread::sleep_for(kWantedPoll);
  }
  return Status(fetched.status().code(),
                fmt::format("{}, and {} has none; start a worker that has the model's files, or "
                            "copy them there",
                            fetched.status().message(), options_.folder));
}

int64_t StoredBytes(const model::LoadedWeights& weights) {
  int64_t bytes = 0;
  for (const auto& [key, weight] : weights) bytes += weight->bytes;
  return bytes;
}

// The weights of the shards that exist. They stay until the load has ended.
Loader::Here Loader::WhatIsHere() const {
  Here here;
  model::LoadedWeights serving;
  for (const Known& one : known_) {
    const ModelPtr model = one.model.lock();
    if (!model) continue;
    const model::LoadedWeights& weights = model->model().weights();
    here.weights.insert(weights.begin(), weights.end());
    if (!model->has_pipelines()) continue;
    serving.insert(weights.begin(), weights.end());
    here.kv_bytes = std::max(here.kv_bytes.value_or(0), one.facts.kv_bytes);
  }
  here.bytes = StoredBytes(here.weights);
  here.extra_bytes = here.bytes - StoredBytes(serving);
  return here;
}

// What a load may take while other shards serve. Their KV may grow to what was promised.
std::optional<MemoryAvailable> Loader::MemoryBeside(const Here& here,
                                                    const tensor::Device& device) {
  memory_bytes_ = std::max(memory_bytes_, here.bytes + device.MemoryAvailable().bytes);
  if (!here.kv_bytes) return std::nullopt;
  const auto left = [](int64_t bytes) { return std::max<int64_t>(0, bytes); };
  if (options_.extra_bytes) {
    return MemoryAvailable{left(*options_.extra_bytes - here.extra_bytes), "--weights-extra"};
  }
  return MemoryAvailable{
      left(memory_bytes_ - here.bytes - *here.kv_bytes),
      fmt::format("{}, less {} of weights that are loaded and {} for KV, as of --kv-cache-memory; "
                  "--weights-extra sets another bound",
                  BytesText(memory_bytes_), BytesText(here.bytes), BytesText(*here.kv_bytes))};
}

Result<Loader::ModelPtr> Loader::LoadModel(const LoadShard& load, net::Collective* group,
                                           const ShardProgressFn& progress, ShardLoaded& facts) {
  MR_ASSIGN_OR_RETURN(auto device, tensor::MakeDevice(tensor::kCpu, {.threads = options_.threads}));
  model::LoadOptions how;
  how.layers = load.layers;
  how.tensor_rank = load.rank;
  how.collective = group;
  how.max_batched_tokens = load.max_batched_tokens;
  how.max_model_len = options_.max_model_len;
  how.progress = progress;
  Here here = WhatIsHere();
  how.memory = MemoryBeside(here, *device);
  how.here = std::move(here.weights);
  const auto pulled = [&] {
    return options_.weights ? static_cast<int64_t>(options_.weights->counters().pulled_bytes) : 0;
  };
  const int64_t before = pulled();
  MR_ASSIGN_OR_RETURN(const std::string folder, FolderFor(load, how.here, progress));
  MR_ASSIGN_OR_RETURN(auto weights, model::Model::Load(folder, *device, how));
  facts.weight_bytes = weights->loaded_bytes();
  facts.kept_bytes = facts.weight_bytes - weights->read_bytes();
  if (folder != options_.folder) {
    facts.peer_bytes = std::min(pulled() - before, weights->read_bytes());
  }
  const auto heads = weights->kv_heads();
  const ModelSpec& spec = weights->spec();
  facts.kv_bytes_per_token_layer = int64_t{2} * (heads.second - heads.first) * spec.head_dim *
                                   static_cast<int64_t>(BytesOf(spec.dtype));
  facts.kv_bytes = options_.kv_bytes.value_or(
      static_cast<int64_t>(kKvMemoryShare * static_cast<double>(device->MemoryAvailable().bytes)));
  const size_t ahead = stage::KvAheadBytes(*weights, options_.populate_kv_bytes);
  return std::make_shared<stage::ModelStage>(std::move(device), std::move(weights), ahead);
}

// Makes a stage of `known`'s weights if `known` is given, else of weights that it loads. Sets
// `model` to the stage without its group.
Status Loader::MakeStage(const LoadShard& load, const Known* known, const ShardProgressFn& progress,
                         LoadedShard& loaded, ModelPtr& model) {
  if (options_.max_model_len && *options_.max_model_len < load.max_model_len) {
    return InvalidArgument(fmt::format(
        "this worker is prepared for {} tokens, but the controller serves sequences of {}: "
        "raise --max-model-len at the worker or lower it at the controller",
        *options_.max_model_len, load.max_model_len));
  }
  MR_ASSIGN_OR_RETURN(auto group, JoinGroup(load, progress));
  if (known != nullptr) {
    model = known->model.lock();
    loaded.facts = known->facts;
    loaded.facts.kept_bytes = loaded.facts.weight_bytes;
    loaded.facts.peer_bytes = 0;
  } else {
    MR_ASSIGN_OR_RETURN(model, LoadModel(load, group.get(), progress, loaded.facts));
  }
  loaded.stage = model;
  if (!group) return OkStatus();
  loaded.abort = [group](std::string_view why) { group->Abort(why); };
  loaded.waits = [group] { return group->Waits(); };
  loaded.stage = std::make_shared<RankStage>(model, std::move(group));
  return OkStatus();
}

LoadedShard Loader::Load(const LoadShard& load, const std::shared_ptr<stage::Stage>& same,
                         const ShardProgressFn& progress) {
  LoadedShard loaded;
  std::erase_if(known_, [](const Known& one) { return one.stage.expired(); });
  const auto found = std::ranges::find_if(
      known_, [&](const Known& one) { return same && one.stage.lock() == same; });
  const Known* const known = found == known_.end() ? nullptr : &*found;
  ModelPtr model;
  const ShardLoaded& facts = loaded.facts;
  loaded.facts.status = MakeStage(load, known, progress, loaded, model);
  if (options_.weights && !options_.on_disk && !options_.weights->fetched_fingerprint().empty()) {
    loaded.identity = WorkerIdentity{.model_fingerprint = options_.weights->fetched_fingerprint(),
                                     .numeric_class = tensor::CpuNumericClass()};
  }
  if (facts.status.ok()) {
    MR_LOG(info, "layers {}-{} are {} ({}: {} kept, {} from other workers, {} from disk)",
           load.layers.begin, load.layers.end - 1, known != nullptr ? "here already" : "loaded",
           FormatBytes(facts.weight_bytes), FormatBytes(facts.kept_bytes),
           FormatBytes(facts.peer_bytes),
           FormatBytes(facts.weight_bytes - facts.kept_bytes - facts.peer_bytes));
    known_.push_back({loaded.stage, model, facts});
  } else if (facts.status.code() != StatusCode::kCancelled) {
    MR_LOG(error, "layers {}-{}: {}", load.layers.begin, load.layers.end - 1,
           facts.status.message());
  }
  return loaded;
}

// The digests of the folder's weights; kNotFound if it lacks weights or does not exist.
Result<std::shared_ptr<const model::WeightDigests>> OpenOnDisk(const std::string& name,
                                                               const model::DigestCache& cache,
                                                               WorkerModel& model) {
  MR_ASSIGN_OR_RETURN(const model::ModelPath path, model::FindModel(name));
  model.folder = path.folder;
  MR_LOG(info, "reading {}", path.folder);
  MR_ASSIGN_OR_RETURN(const model::ModelDescription description, model::DescribeModel(path.folder));
  MR_ASSIGN_OR_RETURN(auto digests, cache.Of(path.folder));
  model.identity.model_fingerprint = digests.fingerprint();
  model.identity.kv_layout = KvLayoutName(description.spec);
  model.on_disk = true;
  return std::make_shared<const model::WeightDigests>(std::move(digests));
}

}  // namespace

std::string KvLayoutName(const ModelSpec& spec) {
  return fmt::format("dense-1 {} {}x{}", DTypeName(spec.dtype), spec.num_kv_heads, spec.head_dim);
}

Result<WorkerModel> OpenWorkerModel(const std::string& name, WeightsFrom from,
                                    const model::DigestCache& cache, const Clock& clock) {
  WorkerModel model;
  model.folder = name;
  // A worker says its class before it has a device.
  model.identity.numeric_class = tensor::CpuNumericClass();
  const auto digests = OpenOnDisk(name, cache, model);
  if (const Status& found = digests.status(); !found.ok()) {
    std::error_code error;
    const bool may_fetch =
        from == WeightsFrom::kPeer ||
        (from == WeightsFrom::kAuto && std::filesystem::is_directory(model.folder, error));
    if (found.code() != StatusCode::kNotFound || !may_fetch) return found;
    MR_LOG(info, "{}; its weights will come from other workers", Printable(found.message(), 1024));
  }
  model.from_peers = from == WeightsFrom::kPeer || !model.on_disk;
  model.weights = std::make_shared<WeightExchange>(model.folder + "/.fetched", clock);
  if (model.on_disk) {
    MR_ASSIGN_OR_RETURN(auto store, model::WeightStore::OfFolder(model.folder));
    MR_RETURN_IF_ERROR(model.weights->Offer(std::move(store), *digests));
  }
  return model;
}

ShardLoader MakeShardLoader(WorkerModelOptions options) {
  return [loader = std::make_shared<Loader>(std::move(options))](
             const LoadShard& load, const std::shared_ptr<stage::Stage>& same,
             const ShardProgressFn& progress) { return loader->Load(load, same, progress); };
}

}  // namespace millrace::cluster
