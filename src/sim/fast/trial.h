// Trial: a fast approximate run of one deployment under one workload, for searches that need
// thousands of runs. It is NOT the simulator that predicts the server. That one drives the
// production scheduler token by token (sim/fast/instance.h); a trial keeps per batch only the
// number of sequences and the sum of their contexts, so the cost of an iteration does not depend on
// the batch. Searches rank with trials; confirm their result with the real simulator. Tests compare
// trials with it, within 5 % of its mean latencies, and with the imitation of DistServe's simulator
// in experiments/lib, which they equal where the models coincide.
//
// Modelled: iteration-level batches, pipelines with one batch in flight per stage, prefill batches
// up to a token limit (L_m), chunked prefill, KV capacity, pull of the KV over the sender's link,
// dispatch by predicted time. Not modelled: paging (a request reserves its whole length, so
// available memory is never overstated), preemption, prefix caching.
//
// Pure function of its arguments; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cost/step_cost.h"

namespace millrace::sim {

struct TrialRequest {
  double arrival_s = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;  // the first of them ends the prefill
};

struct TrialInstance {
  std::vector<const cost::StepCost*> stages;  // one per pipeline stage; not owned
  int64_t kv_tokens = 0;                      // that fit beside the weights
};

enum class TrialMode {
  kDisaggregated,  // prefill and decode on different instances
  kColocated,      // both on one, prefill first (vLLM of 2023)
  kChunked,        // both on one, every step decodes and adds part of a prompt
};

enum class TrialDispatch { kPredictedTime, kFewestRequests };

struct TrialDeployment {
  TrialMode mode = TrialMode::kDisaggregated;
  TrialInstance prefill, decode;  // prefill only, unless disaggregated
  int prefills = 1, decodes = 1;  // decodes may be 0: prefill is judged alone
  // KV moves only inside a group. The instances are divided evenly, in order. Divides both counts.
  int groups = 1;
  int prefill_batch_tokens = 2048;  // L_m; a longer prompt runs alone. Of a chunked step: its size
  int sequences_max = 256;          // of a batch
  double kv_bytes_per_token = 0;
  double kv_bytes_per_s = 0;  // out of one prefill instance; 0: the transfer is free
  double kv_latency_s = 0;
  TrialDispatch dispatch = TrialDispatch::kPredictedTime;
};

struct TrialLimits {
  double ttft_s = 0, tpot_s = 0;
  // Stops once at most this share can meet both limits; the report is then a bound.
  double give_up_below = 0;
};

struct TrialTimes {
  double ttft_s = 0;
  double tpot_s = 0;  // mean gap after the first token; 0 for one token
};

struct TrialReport {
  int requests = 0;
  int met_ttft = 0, met_tpot = 0, met_both = 0;
  bool gave_up = false;
  double end_s = 0;
  std::vector<TrialTimes> times;  // per request, if requested
};

// REQUIRES: requests ordered by arrival. kInvalidArgument, with the numbers, if a request can never
// fit.
Result<TrialReport> RunTrial(const TrialDeployment& deployment,
                             const std::vector<TrialRequest>& requests, const TrialLimits& limits,
                             bool keep_times = false);

}  // namespace millrace::sim
