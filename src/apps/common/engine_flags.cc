#include "apps/common/engine_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "cluster/worker/worker_model.h"
#include "ops/profile/profile_cache.h"

namespace millrace::apps {
namespace {

constexpr char kModelGroup[] = "Model";
constexpr int kBlocksMax = 1 << 28;
constexpr int kWaitingMax = 1 << 20;
// Of a server on processors: docs/decisions/0022-step-limits.md.
constexpr int kStepTokens = 512;
constexpr double kMemoryShareMost = 0.9;  // for KV that is asked for; computing needs the rest

Status SetBlockSize(const std::string& text, int* target) {
  const auto value = ParseInt(text);
  constexpr int kStep = ServerSizes::kBlockSizeStep, kMax = ServerSizes::kBlockSizeMax;
  if (!value.ok() || *value < kStep || *value > kMax || *value % kStep != 0) {
    return InvalidArgument(
        fmt::format("must be a multiple of {} in [{}, {}], got '{}'", kStep, kStep, kMax, text));
  }
  *target = static_cast<int>(*value);
  return OkStatus();
}

void AddModelOptions(Command& command, EngineFlags* flags) {
  Option model = TextOption("model", "MODEL", &flags->model);
  model.positional = model.required = true;
  model.aliases = {"-m", "--model"};
  model.kind = ValueKind::kFolder;
  command.Add(kModelGroup, std::move(model), kModelHelp);
  AddHubOptions(command, kModelGroup, &flags->hub);
  command
      .Add(
          kModelGroup,
          IntOption("max-model-len", "TOKENS", &flags->max_model_len, 1, ServerSizes::kModelLenMax),
          "Maximum length of prompt and answer together [default: the model's, or what fits]")
      .aliases = {"-c", "--ctx-size"};
  command
      .Add(kModelGroup, IntOption("threads", "N", &flags->threads, 1, kComputeThreadsMax),
           "Compute threads [default: one per CPU that this process may use]")
      .aliases = {"-t"};
  AddComputeOptions(command, kModelGroup, &flags->compute);
}

// `option`, which sets `value`, sets `given` as well.
template <typename T>
Option Noted(Option option, const T* value, std::optional<T>* given) {
  option.set = [set = std::move(option.set), value, given](const std::vector<std::string>& values) {
    MR_RETURN_IF_ERROR(set(values));
    *given = *value;
    return OkStatus();
  };
  return option;
}

void AddMemoryOptions(Command& command, EngineFlags* flags) {
  command.Add(kMemoryGroup, BytesOption("kv-cache-memory", &flags->kv_bytes),
              "Memory for the KV cache, such as 2GiB [default: what --max-num-seqs sequences need, "
              "at most 40 % of the free memory]");
  command.Add(kMemoryGroup,
              IntOption("num-gpu-blocks-override", "N", &flags->num_blocks, 1, kBlocksMax),
              "Number of KV blocks, regardless of the memory (the name is vLLM's; the blocks are "
              "those of the device in use)");
  AddBlockSizeOption(command, kMemoryGroup, flags);
  AddStepOptions(command, kMemoryGroup, flags);
}

void AddPolicyOptions(Command& command, EngineFlags* flags) {
  using sched::KvPolicy;
  using sched::PreemptionMode;
  using sched::SchedulingPolicy;
  command.Add(kMemoryGroup,
              ChoiceOption<KvPolicy>("kv-policy", &flags->kv_policy,
                                     {{"paged", KvPolicy::kPaged},
                                      {"orca", KvPolicy::kOrca},
                                      {"orca-max", KvPolicy::kOrcaMax},
                                      {"orca-pow2", KvPolicy::kOrcaPow2},
                                      {"orca-oracle", KvPolicy::kOrcaOracle}}),
              "How KV memory is allocated: on demand, or for a whole request as in Orca");
  command.Add(kMemoryGroup,
              ChoiceOption<PreemptionMode>("preemption-mode", &flags->preemption,
                                           {{"recompute", PreemptionMode::kRecompute},
                                            {"swap", PreemptionMode::kSwap},
                                            {"auto", PreemptionMode::kAuto}}),
              "What happens to the KV of a sequence that is preempted");
  command.Add(
      kMemoryGroup, RealOption("swap-space", "GIB", &flags->swap_gib, 0, 65536),
      "Memory for swapped-out KV, in GiB, of all workers of a pipeline together; 0: no swapping");
  command.Add(kMemoryGroup,
              ChoiceOption<SchedulingPolicy>("scheduling-policy", &flags->policy,
                                             {{"fcfs", SchedulingPolicy::kFcfs},
                                              {"priority", SchedulingPolicy::kPriority},
                                              {"fair", SchedulingPolicy::kFair}}),
              "Order of requests: fcfs: by arrival; priority: the smallest priority number first");
}

void AddRefusedOptions(Command& command) {
  const auto refuse = [&command](const char* name, const char* reason) {
    const auto same = [&](const Option& option) { return option.name == name; };
    if (std::ranges::any_of(command.options, same)) return;  // this command has the option
    command.Add(kModelGroup, RefusedOption(name, reason), "");
  };
  refuse("trust-remote-code", "Millrace executes nothing from a model folder");
  refuse("gpu-memory-utilization", "the device is the CPU; give --kv-cache-memory instead");
  refuse("enable-chunked-prefill", "prompts are always computed in chunks; leave it out");
  refuse("tensor-parallel-size", "one process computes the whole model; leave it out");
  refuse("pipeline-parallel-size", "one process computes the whole model; leave it out");
  refuse("quantization", "weights are f32, f16 or bf16");
  refuse("dtype", "the weights are used in the type they have");
  refuse("download-dir",
         "models are kept in the Hugging Face cache; set HF_HUB_CACHE to its folder");
}

int Blocks(int64_t tokens, int block_size) {
  return static_cast<int>((tokens + block_size - 1) / block_size);
}

Status DoesNotFit(const EngineFlags& flags, const KvDemand& demand, int wanted_len, int blocks) {
  const int needed = Blocks(wanted_len, flags.block_size);
  return InvalidArgument(fmt::format(
      "--max-model-len {} needs {} KV blocks ({}), and {} fit ({}); lower --max-model-len to {} or "
      "raise --kv-cache-memory",
      wanted_len, needed, FormatBytes(needed * demand.bytes_per_block), blocks,
      FormatBytes(blocks * demand.bytes_per_block), int64_t{blocks} * flags.block_size));
}

// The number of blocks that --swap-space holds.
int HostBlocks(const EngineFlags& flags, int64_t bytes_per_block) {
  const double swap_bytes = flags.swap_gib * static_cast<double>(int64_t{1} << 30);
  return static_cast<int>(
      std::min(swap_bytes / static_cast<double>(bytes_per_block), double{kBlocksMax}));
}

}  // namespace

void AddBlockSizeOption(Command& command, const char* group, EngineFlags* flags) {
  Option size = CustomOption(
      "block-size", "TOKENS", std::to_string(flags->block_size),
      [flags](const std::string& text) { return SetBlockSize(text, &flags->block_size); });
  command.Add(group, Noted(std::move(size), &flags->block_size, &flags->given.block_size),
              "Tokens in a KV block");
}

void AddContentFormatOption(Command& command, const char* group, EngineFlags* flags) {
  using text::ContentFormat;
  command.Add(group,
              ChoiceOption<ContentFormat>("chat-template-content-format", &flags->content_format,
                                          {{"auto", ContentFormat::kAuto},
                                           {"string", ContentFormat::kString},
                                           {"openai", ContentFormat::kParts}}),
              "What the chat template gets as the content of a message: a string; openai: a list "
              "of parts; auto: what it shows that it wants");
}

void AddStepOptions(Command& command, const char* group, EngineFlags* flags) {
  Option sequences =
      Noted(IntOption("max-num-seqs", "N", &flags->max_num_seqs, 1, ServerSizes::kNumSeqsMax),
            &flags->max_num_seqs, &flags->given.max_num_seqs);
  // A step has room for a token of each sequence, unless somebody asks for less.
  sequences.set = [set = std::move(sequences.set), flags](const std::vector<std::string>& values) {
    MR_RETURN_IF_ERROR(set(values));
    if (!flags->given.max_num_batched_tokens) {
      flags->max_num_batched_tokens = std::max(flags->max_num_batched_tokens, flags->max_num_seqs);
    }
    return OkStatus();
  };
  command.Add(group, std::move(sequences), "Maximum number of sequences in one step");
  command.Add(group,
              Noted(IntOption("max-num-batched-tokens", "N", &flags->max_num_batched_tokens, 1,
                              ServerSizes::kNumBatchedTokensMax),
                    &flags->max_num_batched_tokens, &flags->given.max_num_batched_tokens),
              "Maximum number of tokens in one step; longer prompts are computed in chunks. With "
              "fewer, several clients get their first tokens earlier, and the others later");
}

void AddMaxWaitingOption(Command& command, EngineFlags* flags) {
  command.Add(kMemoryGroup, IntOption("max-waiting", "N", &flags->max_waiting, 1, kWaitingMax),
              "Requests that may wait for room in a pipeline, and as many again for a pipeline; "
              "more are refused with status 429 and a time to try again");
}

void AddPopulateKvOption(Command& command, const char* group, PopulateKv* populate) {
  const auto parse = [populate](const std::string& text) -> Status {
    if (text == "auto") {
      populate->reset();
      return OkStatus();
    }
    if (text == "off") {
      *populate = 0;
      return OkStatus();
    }
    const auto bytes = ParseBytes(text);
    if (!bytes.ok()) {
      return InvalidArgument(
          fmt::format("must be auto, off or a number of bytes such as 512MiB, got '{}'", text));
    }
    *populate = *bytes;
    return OkStatus();
  };
  command.Add(group, CustomOption("populate-kv", "auto|off|BYTES", "auto", parse),
              "KV memory that is kept ready beyond what is in use, while nothing is computed: a "
              "prompt need not wait for the system to clear it. auto: that of eight of the longest "
              "sequences, at most 1GiB. A tenth of the free memory is left in any case");
}

std::string PopulateKvText(const PopulateKv& populate) {
  if (!populate) return "auto";
  return *populate == 0 ? "off" : std::to_string(*populate);
}

void AddWeightCacheOption(Command& command, const char* group, bool* weight_cache) {
  command
      .Add(group, FlagOption("weight-cache", weight_cache),
           "Keep digests of the weights in $XDG_CACHE_HOME/millrace, or ~/.cache/millrace, so that "
           "the next start need not read files again that have not changed")
      .negatable = true;
}

model::DigestCache WeightCacheOf(bool weight_cache) {
  const std::string folder = weight_cache ? ops::DefaultCacheFolder() : "";
  return model::DigestCache(folder.empty() ? "" : folder + "/weights");
}

Option& AddPrefixCachingOption(Command& command, const char* group, EngineFlags* flags) {
  Option& option = command.Add(
      group,
      Noted(FlagOption("enable-prefix-caching", &flags->prefix_caching), &flags->prefix_caching,
            &flags->given.enable_prefix_caching),
      "Keep the KV of prompts and reuse it for prompts with the same prefix, if the workload "
      "says which prompts share one");
  option.negatable = true;
  return option;
}

void AddSchedulingOptions(Command& command, EngineFlags* flags) {
  AddMemoryOptions(command, flags);
  AddPolicyOptions(command, flags);
}

void AddEngineOptions(Command& command, EngineFlags* flags) {
  flags->max_num_batched_tokens = kStepTokens;
  AddModelOptions(command, flags);
  AddMemoryOptions(command, flags);
  AddPrefixCachingOption(command, kMemoryGroup, flags).help =
      "Keep the KV of prompts and reuse it for prompts with the same beginning";
  std::vector<std::pair<std::string, std::string>> orders;
  for (const std::string& name : kv::EvictionOrderNames()) orders.emplace_back(name, name);
  command.Add(
      kMemoryGroup, ChoiceOption<std::string>("prefix-eviction", &flags->prefix_eviction, orders),
      "Which KV that was kept is given up first: lru: the least recently used; slru: before "
      "that, what was not reused so far");
  AddPolicyOptions(command, flags);
  AddRefusedOptions(command);
}

void AddEngineSeedOption(Command& command, EngineFlags* flags) {
  command.Add(kModelGroup, SeedOption("seed", &flags->seed),
              "Seed of requests that do not set one [default: drawn at start]");
}

Status ValidateEngineFlags(const EngineFlags& flags) {
  if (flags.num_blocks && flags.kv_bytes) {
    return InvalidArgument("give --num-gpu-blocks-override or --kv-cache-memory, not both");
  }
  if (flags.prefix_eviction != kv::kLru && !flags.prefix_caching) {
    return InvalidArgument(
        "--prefix-eviction is for the prefix cache: add --enable-prefix-caching");
  }
  if (flags.preemption == sched::PreemptionMode::kSwap && flags.swap_gib <= 0) {
    return InvalidArgument("--preemption-mode swap needs memory: give --swap-space, in GiB");
  }
  if (flags.preemption == sched::PreemptionMode::kRecompute && flags.swap_gib > 0) {
    return InvalidArgument(
        "--preemption-mode recompute swaps nothing; leave out --swap-space, or choose swap or "
        "auto");
  }
  if (flags.max_num_batched_tokens < flags.max_num_seqs) {
    return InvalidArgument(fmt::format(
        "--max-num-batched-tokens ({}) must be at least --max-num-seqs ({}): each running sequence "
        "computes a token per step",
        flags.max_num_batched_tokens, flags.max_num_seqs));
  }
  return OkStatus();
}

EngineFlags WithServerSizes(EngineFlags flags, const ServerSizes& server) {
  const auto take = [](const auto& given, const auto& of_server, auto& value) {
    if (!given && of_server) value = *of_server;
  };
  take(flags.given.block_size, server.block_size, flags.block_size);
  take(flags.given.max_num_seqs, server.max_num_seqs, flags.max_num_seqs);
  take(flags.given.max_num_batched_tokens, server.max_num_batched_tokens,
       flags.max_num_batched_tokens);
  take(flags.given.enable_prefix_caching, server.enable_prefix_caching, flags.prefix_caching);
  if (!flags.max_model_len) flags.max_model_len = server.max_model_len;
  return flags;
}

Status CheckKvFits(int64_t bytes, std::string_view option, const MemoryAvailable& free) {
  if (bytes <= free.bytes) return OkStatus();
  return ResourceExhausted(fmt::format(
      "{} asks for {} of memory, and {} are free ({}); give at most {}", option, FormatBytes(bytes),
      FormatBytes(free.bytes), free.source,
      FormatBytes(static_cast<int64_t>(kMemoryShareMost * static_cast<double>(free.bytes)))));
}

Result<KvPlan> PlanKv(const EngineFlags& flags, const KvDemand& demand) {
  KvPlan plan;
  const int wanted_len = flags.max_model_len.value_or(demand.model_max_len);
  if (flags.num_blocks) {
    plan.num_blocks = *flags.num_blocks;
    plan.reason = "--num-gpu-blocks-override";
  } else if (flags.kv_bytes) {
    plan.num_blocks =
        static_cast<int>(std::min<int64_t>(*flags.kv_bytes / demand.bytes_per_block, kBlocksMax));
    plan.reason = "--kv-cache-memory";
  } else {
    const auto share =
        static_cast<int64_t>(cluster::kKvMemoryShare *
                             static_cast<double>(std::max<int64_t>(demand.available_bytes, 0)));
    const int64_t fit = share / demand.bytes_per_block;
    const int64_t useful = int64_t{flags.max_num_seqs} * Blocks(wanted_len, flags.block_size);
    plan.num_blocks = static_cast<int>(std::min({fit, useful, int64_t{kBlocksMax}}));
    plan.reason = fit < useful ? fmt::format("40 % of {} free", FormatBytes(demand.available_bytes))
                               : fmt::format("enough for {} sequences", flags.max_num_seqs);
  }
  plan.max_model_len = wanted_len;
  if (Blocks(wanted_len, flags.block_size) > plan.num_blocks) {
    if (flags.max_model_len || plan.num_blocks < 1) {
      return DoesNotFit(flags, demand, wanted_len, plan.num_blocks);
    }
    plan.max_model_len = plan.num_blocks * flags.block_size;
    plan.lowered = true;
  }
  plan.num_host_blocks = HostBlocks(flags, demand.bytes_per_block);
  return plan;
}

Result<KvPlan> LimitWorkersKv(const EngineFlags& flags, const KvDemand& demand) {
  if (flags.max_model_len.value_or(0) > demand.model_max_len) {
    return InvalidArgument(
        fmt::format("--max-model-len {} is more than the model's maximum; lower it to {}",
                    *flags.max_model_len, demand.model_max_len));
  }
  KvPlan plan;
  if (flags.num_blocks) {
    MR_ASSIGN_OR_RETURN(plan, PlanKv(flags, demand));
    plan.reason += ", if the workers' memory holds them";
    return plan;
  }
  plan.reason = "as many as the workers' memory holds";
  plan.max_model_len = flags.max_model_len.value_or(demand.model_max_len);
  plan.num_host_blocks = HostBlocks(flags, demand.bytes_per_block);
  return plan;
}

}  // namespace millrace::apps
