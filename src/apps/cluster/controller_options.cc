#include "apps/cluster/controller_options.h"

#include <random>

#include "apps/cluster/end_tokens.h"
#include "apps/common/step_log_file.h"
#include "text/token_table.h"

namespace millrace::apps {

uint64_t Random64() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

Result<TokenTable> TokenTableOf(const LocalModel& model) {
  if (!model.tokenizer) return FailedPrecondition("output cannot be constrained: no tokenizer");
  return text::TokenTableOf(*model.tokenizer, EndTokens(model));
}

Result<cluster::ControllerHostOptions> ControllerOptionsFor(const EngineFlags& flags,
                                                            const LocalModel& model) {
  cluster::ControllerHostOptions options;
  cluster::ControllerOptions& c = options.controller;
  c.model = model.path.name;
  c.num_layers = model.spec.num_layers;
  sched::SchedulerOptions& s = c.scheduler;
  s.block_size = flags.block_size;
  s.num_blocks = model.kv.num_blocks;
  s.num_host_blocks = model.kv.num_host_blocks;
  s.max_num_seqs = flags.max_num_seqs;
  s.max_num_batched_tokens = flags.max_num_batched_tokens;
  s.max_waiting = c.waiting_max = flags.max_waiting;
  s.max_model_len = model.kv.max_model_len;
  s.policy = flags.policy;
  s.kv_policy = flags.kv_policy;
  s.preemption = flags.preemption;
  s.costs.kv_bytes_per_block = model.spec.KvBytesPerToken() * flags.block_size;
  s.prefix_caching = flags.prefix_caching;
  s.prefix_eviction = flags.prefix_eviction;
  s.eos_token_ids = EndTokens(model);
  if (auto table = TokenTableOf(model); table.ok()) c.token_table = std::move(*table);
  if (flags.slo.tpot_s) c.tpot_limit = Duration::Seconds(*flags.slo.tpot_s);
  options.seed = flags.seed.has_value() ? *flags.seed : Random64();
  if (!flags.step_log.empty()) {
    MR_ASSIGN_OR_RETURN(c.step_log, OpenStepLog(flags.step_log));
  }
  return options;
}

}  // namespace millrace::apps
