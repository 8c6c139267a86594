// Small test requests for tests: a small pool, prompts of consecutive tokens, a length.
#pragma once

#include <numeric>
#include <vector>

#include "sched/scheduler.h"

namespace millrace::sched {

inline SchedulerOptions Small() {
  SchedulerOptions o;
  o.block_size = 4;
  o.num_blocks = 16;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.watermark = 0;
  o.preemption = PreemptionMode::kRecompute;
  o.prefix_caching = false;
  return o;
}

inline std::vector<TokenId> Prompt(int length, TokenId first = 10) {
  std::vector<TokenId> prompt(length);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

inline SamplingParams MaxTokens(int max_tokens, int n = 1) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  params.n = n;
  return params;
}

}  // namespace millrace::sched
