#include "apps/simulate/deployment.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/plan/inputs.h"
#include "base/units.h"
#include "cost/distserve_cost.h"
#include "cost/first_principles_cost.h"
#include "cost/memory_model.h"
#include "cost/profile.h"

namespace millrace::apps {
namespace {

constexpr char kDeploymentGroup[] = "Deployment";
constexpr int kParallelMax = 64, kInstancesMax = 4096, kSimulatedBlocksMax = 1 << 28;
constexpr int kWaitingMax = 1 << 20;
constexpr double kUsableMemory = 0.9;             // of a device; the rest is for the runtime
constexpr double kHopSeconds = 10e-6;             // between two stages, before any bytes
constexpr char kDistServeDevice[] = "a100-80gb";  // source of the published coefficients

// Stage `index` of `stages`, with layers divided as evenly as possible.
LayerRange LayersOf(int index, int stages, int layers) {
  return {layers * index / stages, layers * (index + 1) / stages};
}

Status AddDistServeCosts(const DeploymentFlags& flags, Deployment& out) {
  MR_ASSIGN_OR_RETURN(const auto profile, cost::DistServeProfile::Load(flags.distserve_profile));
  MR_ASSIGN_OR_RETURN(const auto coefficients,
                      profile.Find(flags.engine.model, flags.tensor_parallel));
  for (int i = 0; i < flags.pipeline_parallel; ++i) {
    const cost::DistServeStage stage{.pipeline_parallel = flags.pipeline_parallel, .first = i == 0};
    out.costs.push_back(std::make_unique<cost::DistServeCost>(coefficients, stage));
  }
  out.cost_from = "fitted coefficients of DistServe, " + flags.distserve_profile;
  return OkStatus();
}

Status AddMeasuredCosts(const DeploymentFlags& flags, Deployment& out) {
  MR_ASSIGN_OR_RETURN(const cost::Profile profile, cost::LoadProfile(flags.profile));
  if (flags.tensor_parallel != 1) {
    return InvalidArgument("--profile has the times of one worker; --tp must be 1 with it");
  }
  if (profile.num_layers != out.spec.num_layers) {
    return InvalidArgument(fmt::format("{}: measured {} with {} layers, but {} has {}",
                                       flags.profile, profile.model, profile.num_layers,
                                       flags.engine.model, out.spec.num_layers));
  }
  for (int i = 0; i < flags.pipeline_parallel; ++i) {
    out.costs.push_back(std::make_unique<cost::MeasuredCost>(
        profile, LayersOf(i, flags.pipeline_parallel, profile.num_layers)));
  }
  out.cost_from = fmt::format("measured on {}, {}", profile.device, flags.profile);
  out.kv_transfer.bytes_per_s = profile.hand_over_bytes_per_s.value_or(0);
  if (profile.front_end) {
    out.front_end = Duration::Seconds(profile.front_end->request_s);
    out.instance.scheduler_overhead_s = profile.front_end->step_s;
    out.instance.scheduler_overhead_per_seq_s = profile.front_end->sequence_s;
    out.instance.arrival_s = profile.front_end->arrival_s;
  }
  if (profile.pace && flags.pace) {
    out.pace = std::make_shared<const cost::Pace>(*profile.pace);
    out.instance.pace = out.pace.get();
  }
  return OkStatus();
}

void AddEstimatedCosts(const DeploymentFlags& flags, const cost::DeviceSpec& device,
                       Deployment& out) {
  for (int i = 0; i < flags.pipeline_parallel; ++i) {
    out.costs.push_back(std::make_unique<cost::FirstPrinciplesCost>(
        out.spec, LayersOf(i, flags.pipeline_parallel, out.spec.num_layers), device,
        flags.tensor_parallel));
  }
  out.instance.hop_s = flags.pipeline_parallel > 1 ? kHopSeconds : 0;
  out.instance.hop_s_per_token =
      static_cast<double>(cost::ActivationBytesPerToken(out.spec)) / device.link_bytes_per_s;
  out.cost_from =
      fmt::format("{} for {}, not measured", cost::FirstPrinciplesCost::kLabel, device.name);
}

// The tokens whose KV fits on every stage.
Result<int64_t> KvTokens(const DeploymentFlags& flags, const ModelSpec& spec,
                         const cost::DeviceSpec& device) {
  const int stages = flags.pipeline_parallel;
  const int64_t memory = device.memory_bytes * flags.tensor_parallel;
  int64_t tokens = INT64_MAX, heaviest = 0;
  for (int i = 0; i < stages; ++i) {
    const LayerRange layers = LayersOf(i, stages, spec.num_layers);
    tokens = std::min(
        tokens, cost::KvCapacityTokens(spec, layers, memory, flags.engine.max_num_batched_tokens,
                                       kUsableMemory));
    heaviest = std::max(heaviest, cost::StageWeightBytes(spec, layers));
  }
  if (tokens >= flags.engine.block_size) return tokens;
  const double all = static_cast<double>(spec.weight_bytes);
  const int devices =
      static_cast<int>(all / (static_cast<double>(device.memory_bytes) * kUsableMemory)) + 1;
  return InvalidArgument(fmt::format(
      "{} does not fit: a stage's weights take {}, and {} x {} have {} of which {:.0f} % are used; "
      "raise --tp or --pp to at least {} devices in all, or take another --device",
      flags.engine.model, FormatBytes(heaviest), flags.tensor_parallel, device.name,
      FormatBytes(memory), kUsableMemory * 100,
      std::max(devices, flags.tensor_parallel * stages + 1)));
}

Result<int64_t> BlocksFor(const DeploymentFlags& flags, const ModelSpec& spec,
                          const std::optional<cost::DeviceSpec>& device) {
  const EngineFlags& engine = flags.engine;
  if (engine.num_blocks) return int64_t{*engine.num_blocks};
  if (engine.kv_bytes) return *engine.kv_bytes / (spec.KvBytesPerToken() * engine.block_size);
  if (!device) {
    return InvalidArgument(
        "the size of the KV cache comes from --device, --kv-cache-memory or "
        "--num-gpu-blocks-override; give one of them");
  }
  MR_ASSIGN_OR_RETURN(const int64_t tokens, KvTokens(flags, spec, *device));
  return tokens / engine.block_size;
}

Status SetScheduler(const DeploymentFlags& flags, const std::optional<cost::DeviceSpec>& device,
                    Deployment& out) {
  const EngineFlags& engine = flags.engine;
  MR_ASSIGN_OR_RETURN(const int64_t blocks, BlocksFor(flags, out.spec, device));
  sched::SchedulerOptions& s = out.instance.scheduler;
  s.block_size = engine.block_size;
  s.num_blocks = static_cast<int>(std::min<int64_t>(blocks, kSimulatedBlocksMax));
  const int64_t capacity = int64_t{s.num_blocks} * s.block_size;
  const int wanted = engine.max_model_len.value_or(out.spec.max_position);
  if (s.num_blocks < 1 || (engine.max_model_len && wanted > capacity)) {
    return InvalidArgument(
        fmt::format("the KV cache has room for {} tokens, but a sequence of --max-model-len {} "
                    "needs more; lower it, or give more memory",
                    capacity, wanted));
  }
  s.max_model_len = static_cast<int>(std::min<int64_t>(wanted, capacity));
  s.max_num_seqs = engine.max_num_seqs;
  s.max_num_batched_tokens = engine.max_num_batched_tokens;
  s.max_waiting = kWaitingMax;
  s.policy = engine.policy;
  s.kv_policy = engine.kv_policy;
  s.step_mix = flags.step_mix;
  s.preemption = engine.preemption;
  s.prefix_caching = engine.prefix_caching && flags.shares_prefixes;
  const int64_t block_bytes = out.spec.KvBytesPerToken() * s.block_size;
  s.num_host_blocks = static_cast<int>(std::min(
      engine.swap_gib * 0x1p30 / static_cast<double>(block_bytes), double{kSimulatedBlocksMax}));
  s.costs.kv_bytes_per_block = block_bytes;
  s.costs.swap_bytes_per_s = flags.swap_gb_per_s * 1e9;
  const int64_t n = s.max_num_batched_tokens;
  double step_s = 0;
  for (const auto& cost : out.costs) {
    step_s += cost->Seconds(
        {.prefill_tokens = n, .prefill_tokens_squared = n * n, .prefill_sequences = 1});
  }
  if (step_s > 0) s.costs.prefill_tokens_per_s = static_cast<double>(n) / step_s;
  out.instance.swap_s_per_block = static_cast<double>(block_bytes) / s.costs.swap_bytes_per_s;
  return OkStatus();
}

std::string Describe(const DeploymentFlags& flags, const std::string& device,
                     const sim::InstanceOptions& instance, int instances) {
  std::string text = flags.engine.model + " on ";
  if (flags.prefill_instances > 0) {
    text += fmt::format("{} prefill and {} decode instances", flags.prefill_instances,
                        flags.decode_instances);
    if (!flags.membership.availability.empty()) {
      text += fmt::format(" that come and go ({})", flags.membership.availability);
    }
    text += ", each of ";
  } else if (!flags.membership.availability.empty()) {
    text += fmt::format("at most {} instances that come and go ({}), each of ", instances,
                        flags.membership.availability);
  } else if (instances > 1) {
    text += fmt::format("{} instances of ", instances);
  }
  text += fmt::format("{} x {}", flags.tensor_parallel * flags.pipeline_parallel, device);
  if (flags.tensor_parallel * flags.pipeline_parallel > 1) {
    text += fmt::format(" (TP {}, PP {})", flags.tensor_parallel, flags.pipeline_parallel);
  }
  return text + fmt::format(", {} KV blocks of {} tokens each",
                            FormatCount(instance.scheduler.num_blocks),
                            instance.scheduler.block_size);
}

// Rejects flags that a plan already determines.
Status ValidatePlanFlags(const DeploymentFlags& flags) {
  if (!flags.device.empty() || !flags.profile.empty() || !flags.distserve_profile.empty() ||
      flags.tensor_parallel * flags.pipeline_parallel * flags.instances.value_or(1) > 1 ||
      flags.prefill_instances > 0) {
    return InvalidArgument(
        "--plan sets what runs where; leave out --device, profiles, --tp, --pp and instances");
  }
  if (flags.engine.num_blocks || flags.engine.kv_bytes) {
    return InvalidArgument(
        "with --plan, KV uses the memory that the nodes have besides the weights; leave out "
        "--kv-cache-memory and --num-gpu-blocks-override");
  }
  return ValidateEngineFlags(flags.engine);
}

// A rate that nobody has measured would make the forecast wrong without a word.
Status LacksKvBandwidth(const DeploymentFlags& flags) {
  const char* why = flags.profile.empty()
                        ? "an estimate of the device has no such rate"
                        : "--profile has none: measure it again with this release";
  return InvalidArgument(fmt::format(
      "give --kv-bandwidth GB/S, the rate at which instances pull KV from each other; {}. "
      "A network card of 100 Gbit/s carries at most 12.5",
      why));
}

}  // namespace

void AddDeploymentOptions(Command& command, DeploymentFlags* flags) {
  const auto file = [](Option option) {
    option.kind = ValueKind::kFile;
    return option;
  };
  command.Add(kDeploymentGroup, TextOption("model", "NAME", &flags->engine.model),
              "A known shape such as llama-13b, a config.json or a model folder");
  command.Add(kDeploymentGroup, TextOption("device", "NAME", &flags->device),
              "A device of the catalog, such as a100-80gb: its memory, its price and, without a "
              "profile, an estimate of its step times");
  command.Add(kDeploymentGroup, file(TextOption("profile", "FILE", &flags->profile)),
              "Step times that 'millrace profile' measured");
  command.Add(kDeploymentGroup,
              file(TextOption("distserve-profile", "FILE", &flags->distserve_profile)),
              "Step times from DistServe's fitted coefficients");
  command.Add(kDeploymentGroup, file(TextOption("plan", "FILE", &flags->plan)),
              "A plan of 'millrace plan' with stages of unequal size, instead of --device");
  command.Add(kDeploymentGroup, file(TextOption("cluster", "FILE", &flags->cluster)),
              "The cluster that the plan was made for");
  AddNodeProfileOption(command, kDeploymentGroup, &flags->node_profiles);
  command
      .Add(kDeploymentGroup,
           IntOption("tensor-parallel-size", "N", &flags->tensor_parallel, 1, kParallelMax),
           "Devices that share each layer")
      .aliases = {"--tp"};
  command
      .Add(kDeploymentGroup,
           IntOption("pipeline-parallel-size", "N", &flags->pipeline_parallel, 1, kParallelMax),
           "Stages of consecutive layers")
      .aliases = {"--pp"};
  command.Add(kDeploymentGroup, IntOption("instances", "N", &flags->instances, 1, kInstancesMax),
              "Copies of the model behind the dispatcher [default: 1; with --availability the "
              "largest number of machines]");
  command.Add(kDeploymentGroup,
              IntOption("prefill-instances", "N", &flags->prefill_instances, 0, kInstancesMax),
              "Instances that only compute prompts and hand over the KV; with --decode-instances, "
              "instead of --instances");
  command.Add(kDeploymentGroup,
              IntOption("decode-instances", "N", &flags->decode_instances, 0, kInstancesMax),
              "Instances that only decode");
  command.Add(kDeploymentGroup, RealOption("kv-bandwidth", "GB/S", &flags->kv_gb_per_s, 1e-3, 1e5),
              "Rate at which other instances pull KV from an instance [default: the profile's; "
              "without one that has measured it, it must be given]");
  AddMembershipOptions(command, kDeploymentGroup, &flags->membership);
  command.Add(kDeploymentGroup,
              IntOption("max-model-len", "TOKENS", &flags->engine.max_model_len, 1, 1 << 24),
              "Longest prompt and answer together [default: the model's, or what fits]");
  command.Add(kDeploymentGroup,
              RealOption("scheduler-overhead", "US", &flags->scheduler_overhead_us, 0, 1e6),
              "Microseconds between a step's result and the next step [default: the profile's]");
  command
      .Add(kDeploymentGroup, FlagOption("pace", &flags->pace),
           "Vary the step times as they varied while --profile was measured")
      .negatable = true;
  command.Add(kDeploymentGroup,
              RealOption("swap-bandwidth", "GB/S", &flags->swap_gb_per_s, 1e-3, 1e4),
              "Rate between device and host memory");
}

Status ValidateDeployment(const DeploymentFlags& flags) {
  if (flags.by_node && flags.cluster.empty()) {
    return InvalidArgument("--autopilot needs --cluster, the machines that it plans for");
  }
  if (flags.plan.empty() != flags.cluster.empty() && !flags.by_node) {
    return InvalidArgument("--plan and --cluster go together: a plan was made for a cluster");
  }
  MR_RETURN_IF_ERROR(ValidateMembership(flags.membership, flags.by_node));
  if (!flags.cluster.empty()) return ValidatePlanFlags(flags);
  if (!flags.node_profiles.empty()) {
    return InvalidArgument("--node-profile needs --plan; without a plan, use --profile FILE");
  }
  if (flags.engine.model.empty()) return InvalidArgument("--model is missing, such as llama-13b");
  if (!flags.profile.empty() && !flags.distserve_profile.empty()) {
    return InvalidArgument("--profile and --distserve-profile are mutually exclusive");
  }
  if (flags.device.empty() && flags.profile.empty() && flags.distserve_profile.empty()) {
    return InvalidArgument(
        "step times come from --device NAME, --profile FILE or --distserve-profile FILE; give one");
  }
  if ((flags.prefill_instances > 0) != (flags.decode_instances > 0)) {
    return InvalidArgument("--prefill-instances and --decode-instances go together");
  }
  if (flags.prefill_instances > 0 && flags.instances) {
    return InvalidArgument(
        "give --instances, or --prefill-instances and --decode-instances, not both");
  }
  return ValidateEngineFlags(flags.engine);
}

Result<Deployment> MakeDeployment(const DeploymentFlags& flags) {
  if (!flags.cluster.empty()) return MakePlanDeployment(flags);
  Deployment out;
  MR_ASSIGN_OR_RETURN(const auto footprint, LoadFootprint(flags.engine.model));
  out.spec = footprint.spec;
  if (flags.pipeline_parallel > out.spec.num_layers) {
    return InvalidArgument(fmt::format("--pp {} is more than the model's {} layers; lower it",
                                       flags.pipeline_parallel, out.spec.num_layers));
  }
  std::optional<cost::DeviceSpec> device;
  const std::string device_name = !flags.device.empty()              ? flags.device
                                  : !flags.distserve_profile.empty() ? kDistServeDevice
                                                                     : "";
  if (!device_name.empty()) {
    auto found = cost::FindDevice(device_name);
    if (!found.ok()) return InvalidArgument("--device: " + found.status().message());
    device = *found;
  }
  if (!flags.distserve_profile.empty()) {
    MR_RETURN_IF_ERROR(AddDistServeCosts(flags, out));
  } else if (!flags.profile.empty()) {
    MR_RETURN_IF_ERROR(AddMeasuredCosts(flags, out));
  } else {
    AddEstimatedCosts(flags, *device, out);
  }
  for (const auto& cost : out.costs) out.instance.stages.push_back(cost.get());
  if (flags.scheduler_overhead_us) {
    out.instance.scheduler_overhead_s = *flags.scheduler_overhead_us * 1e-6;
  }
  MR_RETURN_IF_ERROR(SetScheduler(flags, device, out));
  out.prefill_instances = flags.prefill_instances;
  out.instances = flags.instances.value_or(1);
  if (out.prefill_instances > 0) {
    out.instances = flags.prefill_instances + flags.decode_instances;
  }
  if (!flags.membership.availability.empty()) {
    const auto most = out.prefill_instances > 0 ? std::optional(out.instances) : flags.instances;
    MR_ASSIGN_OR_RETURN(out.membership, LoadMembership(flags.membership, most));
    out.instances = out.membership->instances;
  }
  out.kv_transfer.kv_bytes_per_token = static_cast<double>(out.spec.KvBytesPerToken());
  if (flags.kv_gb_per_s) out.kv_transfer.bytes_per_s = *flags.kv_gb_per_s * 1e9;
  const bool transfers = out.prefill_instances > 0 || out.membership;
  if (transfers && out.kv_transfer.bytes_per_s <= 0) return LacksKvBandwidth(flags);
  const std::string shown = device ? std::string(device->name) : "the profiled machine";
  out.text = Describe(flags, shown, out.instance, out.instances);
  if (device && device->price_usd_per_hour > 0) {
    out.usd_per_hour = device->price_usd_per_hour * flags.tensor_parallel *
                       flags.pipeline_parallel * out.instances;
  }
  return out;
}

}  // namespace millrace::apps
