// HelixModel: a model in Helix's simulator: the measured time of one layer on each kind of GPU,
// what a node may batch with k layers on it, and T(k), its assumed tokens per second (Helix,
// ASPLOS'25, sections 4.1 and 6.1; the rest comes from the released artifact). An imitation for
// comparison only. Immutable after loading; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::experiments::helix {

// A node that holds k layers.
struct HelixLimits {
  int64_t kv_entries = 0;  // one token on one layer
  int prompt_max_requests = 0;
  int decode_max_tokens = 0;
};

struct HelixGpu {
  // Seconds of one layer by tokens in the batch, up to the largest batch of a node.
  std::vector<double> prompt_s, decode_s;
  std::vector<HelixLimits> limits;  // [k - 1]

  int max_layers() const { return static_cast<int>(limits.size()); }
  // Beyond the largest number of layers with data, uses the limits of that number: Helix's separate
  // pipelines hold more. REQUIRES: layers >= 1.
  const HelixLimits& LimitsOf(int layers) const;
};

struct HelixModel {
  static constexpr int kBlockTokens = 16;
  static constexpr int kPromptTokensMax = 2048;  // of one request
  static constexpr int kContextTokensPerDecode = 1000;
  static constexpr double kMeanOutputTokens = 240;  // used by its KV estimate and T(k)
  static constexpr double kMeanTotalTokens = 990;

  std::string name;
  int num_layers = 0;
  int token_bytes = 2;       // between a node and the coordinator
  int activation_bytes = 0;  // between nodes, per token
  double layer_bytes = 0;    // of weights
  std::map<std::string, HelixGpu> gpus;
};

// "LLaMA-1 30B" and "LLaMA-2 70B" by the names of their profile folders. `helix_data` is the folder
// with profiles/.
Result<HelixModel> LoadHelixModel(const std::string& helix_data, std::string_view name);

using HelixFleet = std::map<std::string, int>;  // number of nodes of each kind

// T(k) of every kind in `fleet`, [k - 1]. It depends on all machines: the share of the work on a
// node's layers determines its assumed batch. REQUIRES: every kind is in model.gpus.
std::map<std::string, std::vector<double>> HelixThroughput(const HelixModel& model,
                                                           const HelixFleet& fleet);

}  // namespace millrace::experiments::helix
