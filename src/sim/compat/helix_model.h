// HelixModel: what Helix's simulator knows of a model: the measured time of one layer on each kind
// of GPU, what a node may batch with k layers on it, and T(k), the tokens per second it is taken
// to process (Helix, ASPLOS'25, sections 4.1 and 6.1; the released artifact gives the rest). An
// imitation for comparison only. Immutable after loading; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::sim {

// A node that holds k layers.
struct HelixLimits {
  int64_t kv_entries = 0;  // one token on one layer
  int prompt_max_requests = 0;
  int decode_max_tokens = 0;
};

struct HelixGpu {
  // Seconds of one layer, by tokens in the batch, up to the largest batch a node runs.
  std::vector<double> prompt_s, decode_s;
  std::vector<HelixLimits> limits;  // [k - 1]

  int max_layers() const { return static_cast<int>(limits.size()); }
  // Beyond the most layers there are figures for, those of the most hold: Helix's separate
  // pipelines hold more. REQUIRES: layers >= 1.
  const HelixLimits& LimitsOf(int layers) const;
};

struct HelixModel {
  static constexpr int kBlockTokens = 16;
  static constexpr int kPromptTokensMax = 2048;  // of one request
  static constexpr int kContextTokensPerDecode = 1000;
  static constexpr double kMeanOutputTokens = 240;  // what its KV estimate and T(k) take
  static constexpr double kMeanTotalTokens = 990;

  std::string name;
  int num_layers = 0;
  int token_bytes = 2;       // between a node and the coordinator
  int activation_bytes = 0;  // between nodes, per token
  double layer_bytes = 0;    // of weights
  std::map<std::string, HelixGpu> gpus;
};

// "LLaMA-1 30B" and "LLaMA-2 70B" by the names of their profile folders. `helix_data` is the
// folder with profiles/.
Result<HelixModel> LoadHelixModel(const std::string& helix_data, std::string_view name);

using HelixFleet = std::map<std::string, int>;  // how many nodes of each kind

// T(k) of every kind in `fleet`, [k - 1]: it depends on the whole fleet, since the share of the
// work that a node's layers are decides the batch it is taken to run. REQUIRES: every kind is in
// model.gpus.
std::map<std::string, std::vector<double>> HelixThroughput(const HelixModel& model,
                                                           const HelixFleet& fleet);

}  // namespace millrace::sim
