// An imitation of simdistserve, the simulator released with DistServe (OSDI'24, section 4; artifact
// commit 82831f16), including its defects, so that its published numbers can be reproduced: no KV
// transfer, no KV limit except a decode cap, prefill takes all waiting requests, TPOT over all
// output tokens. Millrace does not plan with it (see ../README.md), and it shares no code with the
// serving scheduler.
//
// A worker is one pipeline stage. The stages of an instance form a ring. Prefill runs through the
// ring and leaves its last stage for the decode instance; decode goes round once per token. With
// `colocated` one ring does both, prefill first (the artifact's "vllm" backend).
//
// Pure function of its arguments; any thread.
#pragma once

#include <vector>

#include "base/status.h"
#include "cost/distserve_cost.h"

namespace millrace::experiments::distserve {

struct SimDistServeRequest {
  double arrival_ms = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;
};

struct SimDistServeOptions {
  // The artifact uses a fixed number instead of the KV capacity of a decode batch.
  static constexpr int kDecodeTokensMax = 50000;

  bool colocated = false;               // decode_* are then unused
  cost::DistServeCoefficients prefill;  // of the whole model at the prefill's TP
  cost::DistServeCoefficients decode;   // at the decode's TP
  int prefill_stages = 1;               // PP
  int decode_stages = 1;
  int prefill_tokens_max = 10'000'000;  // prompt tokens in one prefill batch
  int decode_tokens_max = kDecodeTokensMax;
};

struct SimDistServeTimes {
  double ttft_ms = 0;  // arrival to the end of prefill
  double tpot_ms = 0;  // (exit - end of prefill) / output_tokens, as the artifact defines it
  double e2e_ms = 0;
};

struct SimDistServeResult {
  std::vector<SimDistServeTimes> times;  // as the requests
  double makespan_ms = 0;                // the last event
};

// REQUIRES: requests ordered by arrival. kInvalidArgument, with the numbers, if a request could
// never be scheduled.
Result<SimDistServeResult> SimulateSimDistServe(const SimDistServeOptions& options,
                                                const std::vector<SimDistServeRequest>& requests);

}  // namespace millrace::experiments::distserve
