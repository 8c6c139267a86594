// OPT models on A100-80G with the artifact's data, for the placement experiments. Immutable; any
// thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cost/distserve_cost.h"
#include "experiments/distserve_data.h"
#include "experiments/experiment.h"
#include "plan/distserve/distserve.h"
#include "sim/placement_evaluator.h"

namespace millrace::experiments {

struct DistserveModel {
  std::string name;  // "opt-13b"
  int layers = 0;
  double kv_bytes_per_token = 0;  // fp16
  double ttft_s = 0, tpot_s = 0;  // chatbot limits of the OSDI version
};
DistserveModel Opt13b();
DistserveModel Opt66b();

// The testbed: 4 nodes of 8 A100-80G SXM, 25 Gbit/s between nodes.
inline constexpr int kTestbedNodes = 4, kTestbedDevices = 8;
inline constexpr double kTestbedNicBytesPerS = 25e9 / 8;
inline constexpr double kNvlinkBytesPerS = 300e9;  // A100 SXM, one direction, of one device

// Coefficients and KV capacities of one engine ("distserve" or "vllm") on A100-80G.
class DistserveEngine {
 public:
  static Result<DistserveEngine> Load(const std::string& data, const std::string& engine,
                                      const DistserveModel& model);
  // Parallelisms with coefficients, a known KV capacity and room in `nodes` nodes.
  std::vector<plan::Parallel> Parallels(int nodes, int devices_per_node) const;
  sim::PlacementKind KindOf(const plan::Parallel& parallel) const;
  const cost::DistServeCoefficients& At(int tensor) const { return coefficients_.at(tensor); }

 private:
  std::map<int, cost::DistServeCoefficients> coefficients_;  // by TP
  std::map<std::pair<int, int>, int> kv_tokens_;             // by (TP, PP)
};

// The names of the three length samples in verdicts.
enum class LengthSample { kAzure, kShareGptMeans, kShareGptMeasured };
const char* LengthSampleName(LengthSample sample);
// The length pairs of a sample. kShareGptMeans: lognormal with the published means, deterministic.
Result<std::vector<sim::Lengths>> SampleLengths(const Context& context, LengthSample sample);

// 100 ShareGPT requests as measured by the artifact on vLLM: OPT-13B, one A100-80G, 1 request/s.
struct MeasuredRequest {
  Lengths lengths;
  double arrival_s = 0, ttft_ms = 0, tpot_ms = 0;
};
Result<std::vector<MeasuredRequest>> MeasuredShareGpt();

sim::PlacementOptions TestbedOptions(const DistserveModel& model,
                                     std::vector<sim::Lengths> lengths);
plan::DistServeProblem TestbedProblem(const DistserveModel& model, const DistserveEngine& engine,
                                      const std::vector<sim::Lengths>& lengths);

}  // namespace millrace::experiments
