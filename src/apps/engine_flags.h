// The options of every command that runs a model in its own process, and how they become sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "base/status.h"
#include "sched/scheduler.h"

namespace millrace::apps {

struct EngineFlags {
  std::string model;
  std::optional<int> max_model_len;
  int block_size = 16;
  std::optional<int> num_blocks;    // --num-gpu-blocks-override
  std::optional<int64_t> kv_bytes;  // --kv-cache-memory
  int max_num_seqs = 128;
  int max_num_batched_tokens = 2048;
  bool prefix_caching = true;
  sched::PreemptionMode preemption = sched::PreemptionMode::kAuto;
  double swap_gib = 0;
  sched::SchedulingPolicy policy = sched::SchedulingPolicy::kFcfs;
  sched::KvPolicy kv_policy = sched::KvPolicy::kPaged;
  std::optional<int> threads;
  std::optional<uint64_t> seed;
  std::string step_log;  // empty: none
};

// MODEL and the groups "Model" and "Memory and scheduling". `flags` outlives the command.
void AddEngineOptions(Command& command, EngineFlags* flags);
// Of these, the sizes and policies of the scheduler, for a command that simulates it: the group
// "Memory and scheduling" without prefix caching.
void AddSchedulingOptions(Command& command, EngineFlags* flags);
// --seed as vLLM's server has it: for requests that bring none.
void AddEngineSeedOption(Command& command, EngineFlags* flags);
Status ValidateEngineFlags(const EngineFlags& flags);

// What decides the number of KV blocks.
struct KvDemand {
  int64_t bytes_per_block = 0;
  int64_t available_bytes = 0;  // memory free once the weights are in
  int model_max_len = 0;        // what the model was made for
};
struct KvPlan {
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_model_len = 0;
  std::string reason;    // where num_blocks comes from
  bool lowered = false;  // max_model_len is less than the model's because memory is short
};
// kInvalidArgument when not even one sequence of the asked length fits, with the numbers.
Result<KvPlan> PlanKv(const EngineFlags& flags, const KvDemand& demand);
// The same where workers hold the KV: how many blocks there are follows from their memory, so
// `num_blocks` is only the most that --num-gpu-blocks-override allows; 0: as many as fit.
Result<KvPlan> LimitWorkersKv(const EngineFlags& flags, const KvDemand& demand);

// CPUs this process may use.
int DefaultThreads();

}  // namespace millrace::apps
