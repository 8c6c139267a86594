// Trial: a fast approximate run of one deployment under one workload, for searches that need
// thousands of them. It is NOT the simulator that speaks for the server: where that one drives the
// production scheduler token by token (sim/instance.h), a trial keeps per batch only the number of
// sequences and the sum of their contexts, so that an iteration costs the same whatever the batch.
// Searches rank with trials; what they recommend deserves a run in the real simulator. The tests
// hold a trial against both: equal to sim/compat where their models meet, within 5 % of the
// production scheduler's mean latencies.
//
// Modelled: iteration-level batches, pipelines with one batch in flight per stage, prefill batches
// up to a token limit (L_m), chunked prefill, KV capacity, pull of the KV over the sender's link,
// dispatch by predicted time. Not modelled: paging (a request reserves its whole length, so memory
// is never overstated), preemption, prefix caching.
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
  kChunked,        // both on one, every step decodes and fills up with a part of a prompt
};

enum class TrialDispatch { kPredictedTime, kFewestRequests };

struct TrialDeployment {
  TrialMode mode = TrialMode::kDisaggregated;
  TrialInstance prefill, decode;  // the first alone unless disaggregated
  int prefills = 1, decodes = 1;  // instances; decodes may be 0: prefill alone is judged
  // KV moves only inside a group: the instances are split evenly, in order. Divides both counts.
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
  // Stop as soon as no more than this share can meet both; what is reported then is a bound.
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
  std::vector<TrialTimes> times;  // per request, when asked for
};

// REQUIRES: requests by arrival. kInvalidArgument: a request can never fit, with the numbers.
Result<TrialReport> RunTrial(const TrialDeployment& deployment,
                             const std::vector<TrialRequest>& requests, const TrialLimits& limits,
                             bool keep_times = false);

}  // namespace millrace::sim
