// The options of every command that runs a model, and the sizes that follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/cli/command.h"
#include "apps/common/compute_flags.h"
#include "apps/common/hub_flags.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/latency_limits.h"
#include "model/digest_cache.h"
#include "sched/scheduler.h"
#include "text/content_format.h"

namespace millrace::apps {

// --populate-kv: KV memory that is kept ready for requests to come. Unset: stage::KvAheadBytes of
// the model; 0: none.
using PopulateKv = std::optional<int64_t>;

struct EngineFlags {
  std::string model;
  ops::HubFlags hub;
  std::optional<int> max_model_len;
  int block_size = 16;
  std::optional<int> num_blocks;    // --num-gpu-blocks-override
  std::optional<int64_t> kv_bytes;  // --kv-cache-memory
  PopulateKv populate_kv;
  bool weight_cache = true;
  int max_num_seqs = 128;
  int max_num_batched_tokens = 2048;  // AddEngineOptions sets what this machine's servers have
  int max_waiting = 4096;             // --max-waiting of servers
  bool prefix_caching = true;
  std::string prefix_eviction{kv::kLru};
  sched::PreemptionMode preemption = sched::PreemptionMode::kAuto;
  double swap_gib = 0;
  sched::SchedulingPolicy policy = sched::SchedulingPolicy::kFcfs;
  sched::KvPolicy kv_policy = sched::KvPolicy::kPaged;
  std::optional<int> threads;
  ComputeFlags compute;
  std::optional<uint64_t> seed;
  std::string step_log;  // empty: none
  text::ContentFormat content_format = text::ContentFormat::kAuto;
  LatencyLimits slo;  // --slo of servers
  ServerSizes given;  // those sizes above that were set and do not have their default
};

// MODEL and the groups "Model" and "Memory and scheduling". `flags` must outlive the command.
void AddEngineOptions(Command& command, EngineFlags* flags);
// Single options of these groups, for commands that simulate or plan what a server does.
// The group of the options for memory and scheduling.
inline constexpr char kMemoryGroup[] = "Memory and scheduling";
// For servers.
void AddMaxWaitingOption(Command& command, EngineFlags* flags);
// For servers and workers.
void AddPopulateKvOption(Command& command, const char* group, PopulateKv* populate);
void AddWeightCacheOption(Command& command, const char* group, bool* weight_cache);
model::DigestCache WeightCacheOf(bool weight_cache);
// As --populate-kv takes it.
std::string PopulateKvText(const PopulateKv& populate);
void AddBlockSizeOption(Command& command, const char* group, EngineFlags* flags);
// --max-num-seqs and --max-num-batched-tokens.
void AddStepOptions(Command& command, const char* group, EngineFlags* flags);
Option& AddPrefixCachingOption(Command& command, const char* group, EngineFlags* flags);
// The subset for a command that simulates the scheduler: the group "Memory and scheduling" without
// prefix caching.
void AddSchedulingOptions(Command& command, EngineFlags* flags);
// --chat-template-content-format, for commands that take messages.
void AddContentFormatOption(Command& command, const char* group, EngineFlags* flags);
// --seed with the meaning it has in vLLM's server: the seed of requests that do not set one.
void AddEngineSeedOption(Command& command, EngineFlags* flags);
Status ValidateEngineFlags(const EngineFlags& flags);
// `flags` with the sizes of a cluster's server where no option gives another one.
EngineFlags WithServerSizes(EngineFlags flags, const ServerSizes& server);

// What decides the number of KV blocks.
struct KvDemand {
  int64_t bytes_per_block = 0;
  int64_t available_bytes = 0;  // memory that is free after the weights are loaded
  int model_max_len = 0;        // the model's own maximum
};
struct KvPlan {
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_model_len = 0;
  std::string reason;    // where num_blocks comes from
  bool lowered = false;  // max_model_len is less than the model's because memory is short
};
// kInvalidArgument, with the numbers, when not even one sequence of the requested length fits.
// kResourceExhausted: `bytes` of KV, for which `option` asks, are more than what is free. Loading
// would not end, or the system would end the process later.
Status CheckKvFits(int64_t bytes, std::string_view option, const MemoryAvailable& free);
Result<KvPlan> PlanKv(const EngineFlags& flags, const KvDemand& demand);
// The same when workers hold the KV. The number of blocks follows from their memory, so
// `num_blocks` is only the maximum that --num-gpu-blocks-override sets; 0: as many as fit.
Result<KvPlan> LimitWorkersKv(const EngineFlags& flags, const KvDemand& demand);

}  // namespace millrace::apps
