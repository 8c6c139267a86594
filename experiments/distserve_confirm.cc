#include "experiments/distserve_confirm.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "sim/cluster/instances.h"
#include "sim/fast/service.h"

namespace millrace::experiments {
namespace {

using sim::InstanceCluster;
using sim::InstanceClusterOptions;
using sim::InstanceOptions;
using sim::LatencyReport;
using sim::Service;
using sim::SimRequest;
using sim::TrialInstance;
using sim::TrialRequest;
using sim::Workload;

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

InstanceOptions OptionsOf(const TrialInstance& kind, int step_tokens, int sequences_max,
                          int longest) {
  InstanceOptions options;
  options.stages = kind.stages;
  options.scheduler.num_blocks = static_cast<int>(kind.kv_tokens / options.scheduler.block_size);
  options.scheduler.max_num_batched_tokens = step_tokens;
  options.scheduler.max_num_seqs = sequences_max;
  options.scheduler.max_model_len = longest;
  options.scheduler.prefix_caching = false;
  return options;
}

// Replicas that do both take the fast path.
Result<LatencyReport> Serve(const InstanceClusterOptions& options, bool apart, Workload& workload) {
  if (apart) {
    MR_ASSIGN_OR_RETURN(const auto cluster, InstanceCluster::Create(options));
    return cluster->Run(workload).latency;
  }
  MR_ASSIGN_OR_RETURN(const auto service, Service::Create(options.service));
  return service->Run(workload).latency;
}

}  // namespace

Result<plan::Attainment> ConfirmPlacement(sim::PlacementEvaluator& evaluator,
                                          const plan::DistServeUnit& unit, int units,
                                          double requests_per_s, uint64_t seed) {
  const sim::PlacementOptions& judged = evaluator.options();
  const sim::TrialDeployment deployment = evaluator.Deploy(unit, units);
  const auto& requests = evaluator.Requests(requests_per_s, seed);
  int longest = 1;
  for (const TrialRequest& r : requests) {
    longest = std::max(longest, r.prompt_tokens + r.output_tokens);
  }
  const bool apart = unit.mode == plan::ServingMode::kDisaggregated;
  const int step_tokens =
      unit.mode == plan::ServingMode::kChunked ? judged.chunk_tokens : judged.batch_tokens;
  InstanceClusterOptions options;
  options.service.dispatch = cluster::DispatchPolicy::kPredictedTime;
  options.service.limits = {.ttft_s = judged.ttft_s, .tpot_s = judged.tpot_s};
  if (deployment.kv_bytes_per_s > 0) {
    options.kv_transfer.kv_bytes_per_token = deployment.kv_bytes_per_token;
    options.kv_transfer.bytes_per_s = deployment.kv_bytes_per_s;
  }
  const auto add = [&](const TrialInstance& kind, StageRole role, int count) {
    const InstanceOptions instance = OptionsOf(kind, step_tokens, judged.sequences_max, longest);
    options.service.instances.insert(options.service.instances.end(), static_cast<size_t>(count),
                                     instance);
    options.roles.insert(options.roles.end(), static_cast<size_t>(count), role);
  };
  add(deployment.prefill, apart ? StageRole::kPrefill : StageRole::kBoth, deployment.prefills);
  if (apart) add(deployment.decode, StageRole::kDecode, deployment.decodes);
  Given workload(requests);
  MR_ASSIGN_OR_RETURN(const LatencyReport report, Serve(options, apart, workload));
  const auto all = static_cast<double>(report.requests + report.refused);
  if (all == 0) return plan::Attainment{};
  return plan::Attainment{report.attainment(), static_cast<double>(report.met_ttft) / all,
                          static_cast<double>(report.met_tpot) / all};
}

}  // namespace millrace::experiments
