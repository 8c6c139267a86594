// Confirms a candidate of the search in the simulator that drives the production scheduler.
#include <algorithm>

#include "sim/placement_evaluator.h"
#include "sim/service.h"

namespace millrace::sim {
namespace {

class Given : public Workload {
 public:
  explicit Given(const std::vector<TrialRequest>& requests) : requests_(requests) {}
  std::optional<SimRequest> Next() override {
    if (next_ == requests_.size()) return std::nullopt;
    const TrialRequest& r = requests_[next_++];
    return SimRequest{Time{} + Duration::Seconds(r.arrival_s), r.prompt_tokens, r.output_tokens};
  }

 private:
  const std::vector<TrialRequest>& requests_;
  size_t next_ = 0;
};

InstanceOptions OptionsOf(const TrialInstance& kind, StageRole role, int step_tokens,
                          int sequences_max, int longest) {
  InstanceOptions options;
  options.role = role;
  options.stages = kind.stages;
  options.scheduler.num_blocks = static_cast<int>(kind.kv_tokens / options.scheduler.block_size);
  options.scheduler.max_num_batched_tokens = step_tokens;
  options.scheduler.max_num_seqs = sequences_max;
  options.scheduler.max_model_len = longest;
  options.scheduler.prefix_caching = false;
  return options;
}

}  // namespace

Result<plan::Attainment> PlacementEvaluator::Confirm(const plan::DistServeUnit& unit, int units,
                                                     double requests_per_s, uint64_t seed) {
  const TrialDeployment deployment = Deploy(unit, units);
  const auto& requests = Requests(requests_per_s, seed);
  int longest = 1;
  for (const TrialRequest& r : requests) {
    longest = std::max(longest, r.prompt_tokens + r.output_tokens);
  }
  const bool apart = unit.mode == plan::ServingMode::kDisaggregated;
  const int step_tokens =
      unit.mode == plan::ServingMode::kChunked ? options_.chunk_tokens : options_.batch_tokens;
  ServiceOptions options;
  options.dispatch = cluster::DispatchPolicy::kPredictedTime;
  options.slo = {.ttft_s = options_.ttft_s, .tpot_s = options_.tpot_s};
  if (deployment.kv_bytes_per_s > 0) {
    options.kv_transfer.kv_bytes_per_token = deployment.kv_bytes_per_token;
    options.kv_transfer.bytes_per_s = deployment.kv_bytes_per_s;
  }
  for (int i = 0; i < deployment.prefills; ++i) {
    options.instances.push_back(OptionsOf(deployment.prefill,
                                          apart ? StageRole::kPrefill : StageRole::kBoth,
                                          step_tokens, options_.sequences_max, longest));
  }
  for (int i = 0; apart && i < deployment.decodes; ++i) {
    options.instances.push_back(OptionsOf(deployment.decode, StageRole::kDecode, step_tokens,
                                          options_.sequences_max, longest));
  }
  MR_ASSIGN_OR_RETURN(const auto service, Service::Create(options));
  Given workload(requests);
  const LatencyReport report = service->Run(workload).latency;
  const auto all = static_cast<double>(report.requests + report.refused);
  if (all == 0) return plan::Attainment{};
  return plan::Attainment{report.attainment(), static_cast<double>(report.met_ttft) / all,
                          static_cast<double>(report.met_tpot) / all};
}

}  // namespace millrace::sim
