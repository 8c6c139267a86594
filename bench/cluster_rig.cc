#include "bench/cluster_rig.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "base/rng.h"
#include "bench/machine.h"
#include "model/describe.h"
#include "model/make_model.h"
#include "model/model.h"
#include "stage/model_stage.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::bench {
namespace {

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";  // loopback only
constexpr int kPromptTokensPerStep = 512;
constexpr std::chrono::minutes kTokenLimit{10};

Status Load(const RigModel& model, int64_t kv_bytes, int max_model_len, const LoadShard& load,
            cluster::LoadedShard& loaded) {
  MR_ASSIGN_OR_RETURN(auto device, tensor::NewCpuDevice({.threads = 1}));
  model::LoadOptions how;
  how.layers = load.layers;
  how.max_batched_tokens = load.max_batched_tokens;
  how.max_model_len = max_model_len;
  MR_ASSIGN_OR_RETURN(auto weights, model::Model::Load(model.folder, *device, how));
  loaded.facts.weight_bytes = weights->loaded_bytes();
  loaded.facts.kv_bytes_per_token_layer = model.spec.KvBytesPerToken(1);
  loaded.facts.kv_bytes = kv_bytes;
  loaded.stage = std::make_shared<stage::ModelStage>(std::move(device), std::move(weights));
  return OkStatus();
}

}  // namespace

RigModel MakeRigModel(const std::string& models, const model::ShapeNumbers& numbers) {
  const Json config = Must(model::ShapeConfig("llama-160m", numbers));
  RigModel rig;
  rig.folder = fmt::format(
      "{}/rig-{}x{}-{}x{}-{}", models, config["num_hidden_layers"].get<int>(),
      config["hidden_size"].get<int>(), config["num_attention_heads"].get<int>(),
      config["num_key_value_heads"].get<int>(), config["max_position_embeddings"].get<int>());
  if (!std::filesystem::exists(rig.folder)) {
    std::filesystem::create_directories(models);
    fmt::print(stderr, "making {} (once)...\n", rig.folder);
    const Status made = model::MakeModel(config, rig.folder, {});
    MR_CHECK(made.ok()) << made.ToString();
  }
  rig.spec = Must(model::DescribeModel(rig.folder)).spec;
  return rig;
}

cluster::ControllerHostOptions ControllerOptionsFor(const RigModel& model, Plan plan,
                                                    int max_num_seqs, int max_model_len) {
  cluster::ControllerHostOptions options;
  cluster::ControllerOptions& c = options.controller;
  c.term = Term(1);
  c.model = "rig";
  c.num_layers = model.spec.num_layers;
  c.plan = std::move(plan);
  c.scheduler.max_num_seqs = max_num_seqs;
  c.scheduler.max_num_batched_tokens = kPromptTokensPerStep;
  c.scheduler.max_model_len = max_model_len;
  c.scheduler.prefix_caching = false;
  c.silent_limit = c.stuck_limit = Duration::Seconds(60);
  c.hold_limit = Duration::Seconds(120);
  return options;
}

cluster::ControlServerOptions ServerOptionsForRig() {
  cluster::ControlServerOptions options;
  options.security.token = kToken;
  return options;
}

cluster::WorkerProcessOptions WorkerOptionsFor(const RigModel& model, const std::string& name,
                                               int controller_port, int64_t kv_bytes,
                                               int max_model_len) {
  cluster::WorkerProcessOptions options;
  options.controllers = {fmt::format("127.0.0.1:{}", controller_port)};
  options.security.token = kToken;
  options.join.name = name;
  options.loader = [model, kv_bytes, max_model_len](const LoadShard& load, const auto&,
                                                    const cluster::ShardProgressFn&) {
    cluster::LoadedShard loaded;
    loaded.facts.status = Load(model, kv_bytes, max_model_len, load, loaded);
    return loaded;
  };
  return options;
}

struct Stream::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<double> times;  // guarded by mutex, as is the rest
  Status error;
  bool over = false;
};

Stream::Stream(cluster::ControllerHost& host, const RigModel& model, int prompt_tokens,
               int max_tokens, uint64_t seed)
    : host_(host), state_(std::make_shared<State>()) {
  cluster::GenerationRequest request;
  Rng rng(seed);
  for (int i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<TokenId>(rng.Between(0, model.spec.vocab_size - 1)));
  }
  request.params.max_tokens = max_tokens;
  request.params.temperature = 0;
  request.params.ignore_eos = true;
  id_ = Must(host.Submit(std::move(request), [state = state_](RequestOutput&& output) {
    const double now = Now(Clock::kWall);
    std::lock_guard lock(state->mutex);
    for (size_t i = 0; i < output.tokens.size(); ++i) state->times.push_back(now);
    if (!output.error.ok()) state->error = output.error;
    state->over = state->over || output.times.has_value();
    state->changed.notify_all();
  }));
}

Stream::~Stream() {
  host_.Abort(id_);
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->over; });
}

size_t Stream::tokens() const {
  std::lock_guard lock(state_->mutex);
  return state_->times.size();
}

void Stream::WaitFor(size_t tokens) const {
  std::unique_lock lock(state_->mutex);
  const bool came = state_->changed.wait_for(
      lock, kTokenLimit, [&] { return state_->over || state_->times.size() >= tokens; });
  MR_CHECK(came && state_->times.size() >= tokens)
      << "a stream ended or stopped after " << state_->times.size() << " tokens of " << tokens
      << " that were waited for: " << state_->error.ToString();
}

std::vector<double> Stream::times() const {
  std::lock_guard lock(state_->mutex);
  return state_->times;
}

std::vector<double> Gaps(const std::vector<double>& times, size_t first, size_t last) {
  std::vector<double> gaps;
  for (size_t i = first; i < last; ++i) gaps.push_back(times[i + 1] - times[i]);
  return gaps;
}

}  // namespace millrace::bench
