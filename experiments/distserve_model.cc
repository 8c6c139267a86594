#include "experiments/distserve_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/rng.h"

namespace millrace::experiments {
namespace {

// ShareGPT as DistServe prepared it: means as stated in the paper, spread as in the 100 measured
// requests (data/sharegpt_opt13b_vllm_tp1.csv). OPT holds 2048 tokens.
constexpr double kShareGptPrompt = 755.5, kShareGptPromptSd = 523;
constexpr double kShareGptOutput = 200.3, kShareGptOutputSd = 193;
constexpr int kOptContext = 2048;
constexpr size_t kSyntheticPairs = 4000;
constexpr size_t kAzureRequests = 4000;
constexpr size_t kMeasuredColumns = 5;

std::vector<sim::Lengths> LognormalPairs() {
  const sim::LengthSpec prompt{.kind = sim::LengthSpec::Kind::kLognormal,
                               .a = kShareGptPrompt,
                               .b = kShareGptPromptSd,
                               .limit = kOptContext};
  const sim::LengthSpec output{.kind = sim::LengthSpec::Kind::kLognormal,
                               .a = kShareGptOutput,
                               .b = kShareGptOutputSd,
                               .limit = kOptContext};
  Rng rng(755);
  std::vector<sim::Lengths> pairs;
  while (pairs.size() < kSyntheticPairs) {
    const int in = std::max(sim::DrawLength(prompt, rng), 1);
    const int out = std::max(sim::DrawLength(output, rng), 2);
    if (in + out < kOptContext) pairs.push_back({in, out});
  }
  return pairs;
}

}  // namespace

DistserveModel Opt13b() { return {"opt-13b", 40, 2.0 * 40 * 5120 * 2, 0.25, 0.1}; }
DistserveModel Opt66b() { return {"opt-66b", 64, 2.0 * 64 * 9216 * 2, 2.5, 0.15}; }

Result<DistserveEngine> DistserveEngine::Load(const std::string& data, const std::string& engine,
                                              const DistserveModel& model) {
  DistserveEngine loaded;
  MR_ASSIGN_OR_RETURN(const auto profile,
                      cost::DistServeProfile::Load(fmt::format(
                          "{}/profiles/distserve/profiler-a100-80g.{}.json", data, engine)));
  for (const auto& [name, tensor] : profile.Keys()) {
    if (!name.ends_with(model.name)) continue;
    MR_ASSIGN_OR_RETURN(loaded.coefficients_[tensor], profile.Find(name, tensor));
  }
  if (loaded.coefficients_.empty()) return NotFound("no coefficients of " + model.name);
  MR_ASSIGN_OR_RETURN(loaded.kv_tokens_, MaxTokens(data, model.name));
  return loaded;
}

std::vector<plan::Parallel> DistserveEngine::Parallels(int nodes, int devices_per_node) const {
  std::vector<plan::Parallel> parallels;
  for (const auto& [key, tokens] : kv_tokens_) {
    const plan::Parallel parallel{key.first, key.second};
    const int stages = devices_per_node / parallel.tensor * nodes;
    if (coefficients_.contains(parallel.tensor) && parallel.pipeline <= stages) {
      parallels.push_back(parallel);
    }
  }
  return parallels;
}

sim::PlacementKind DistserveEngine::KindOf(const plan::Parallel& parallel) const {
  sim::PlacementKind kind;
  const auto found = kv_tokens_.find({parallel.tensor, parallel.pipeline});
  if (found == kv_tokens_.end() || !coefficients_.contains(parallel.tensor)) return kind;
  kind.kv_tokens = found->second;
  for (int i = 0; i < parallel.pipeline; ++i) {
    kind.stages.push_back(std::make_shared<cost::DistServeCost>(
        coefficients_.at(parallel.tensor),
        cost::DistServeStage::Released(parallel.pipeline, i == 0)));
  }
  return kind;
}

const char* LengthSampleName(LengthSample sample) {
  switch (sample) {
    case LengthSample::kAzure: return "Azure conversation lengths";
    case LengthSample::kShareGptMeans: return "lognormal, ShareGPT's means";
    case LengthSample::kShareGptMeasured: return "100 ShareGPT requests";
  }
  return "?";
}

Result<std::vector<sim::Lengths>> SampleLengths(const Context& context, LengthSample sample) {
  std::vector<sim::Lengths> pairs;
  switch (sample) {
    case LengthSample::kShareGptMeans: return LognormalPairs();
    case LengthSample::kAzure: {
      MR_ASSIGN_OR_RETURN(const auto azure, AzureLengthsWithin2048(context.data, kAzureRequests));
      for (const Lengths& l : azure) pairs.push_back({l.input, l.output});
      return pairs;
    }
    case LengthSample::kShareGptMeasured: {
      MR_ASSIGN_OR_RETURN(const auto measured, MeasuredShareGpt());
      for (const auto& m : measured) pairs.push_back({m.lengths.input, m.lengths.output});
      return pairs;
    }
  }
  return pairs;
}

Result<std::vector<MeasuredRequest>> MeasuredShareGpt() {
  const std::string path = MILLRACE_EXPERIMENTS_DIR "/data/sharegpt_opt13b_vllm_tp1.csv";
  MR_ASSIGN_OR_RETURN(const auto rows, ReadCsv(path, kMeasuredColumns));
  std::vector<MeasuredRequest> requests;
  for (const auto& row : rows) {
    double values[kMeasuredColumns] = {};
    for (size_t i = 0; i < kMeasuredColumns; ++i) {
      const char* end = row[i].data() + row[i].size();
      if (const auto read = std::from_chars(row[i].data(), end, values[i]);
          read.ec != std::errc() || read.ptr != end) {
        return InvalidArgument(fmt::format("{}: \"{}\" is not a number", path, row[i]));
      }
    }
    requests.push_back({{static_cast<int>(values[0]), static_cast<int>(values[1])},
                        values[2],
                        values[3],
                        values[4]});
  }
  return requests;
}

sim::PlacementOptions TestbedOptions(const DistserveModel& model,
                                     std::vector<sim::Lengths> lengths) {
  return {.lengths = std::move(lengths),
          .ttft_s = model.ttft_s,
          .tpot_s = model.tpot_s,
          .kv_bytes_per_token = model.kv_bytes_per_token,
          .kv_bytes_per_s_inside = kNvlinkBytesPerS,
          .nic_bytes_per_s = kTestbedNicBytesPerS,
          .devices_per_node = kTestbedDevices};
}

plan::DistServeProblem TestbedProblem(const DistserveModel& model, const DistserveEngine& engine,
                                      const std::vector<sim::Lengths>& lengths) {
  double prompt = 0;
  for (const auto& l : lengths) prompt += l.prompt_tokens / static_cast<double>(lengths.size());
  return {.nodes = kTestbedNodes,
          .devices_per_node = kTestbedDevices,
          .parallels = engine.Parallels(kTestbedNodes, kTestbedDevices),
          .kv = {.bytes_per_request = prompt * model.kv_bytes_per_token,
                 .nic_bytes_per_s = kTestbedNicBytesPerS},
          .ttft_s = model.ttft_s,
          .tpot_s = model.tpot_s};
}

}  // namespace millrace::experiments
