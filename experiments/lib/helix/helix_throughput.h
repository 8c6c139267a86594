// Helix's "typical throughput": the tokens per second T(k) of a node that holds k layers, from the
// profiles of one layer (the released planner's recursion behind ASPLOS'25, section 4.1). T(k)
// depends on all machines: a node waits while the others work on its requests, so its batch is what
// fits in its KV memory times its share of a request's round trip. It excludes network time. Pure;
// any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cost/layer_table_cost.h"

namespace millrace::experiments::helix {

struct HelixDevice {
  std::string name;  // "A100"
  cost::LayerTable layer;
  std::vector<int64_t> kv_blocks;  // [k - 1]: blocks of 16 tokens beside k layers
  double typical_layers = 0;       // layers held in a typical placement
  double layers_per_s = 0;         // first guess; only the ratio between devices matters
  int count = 0;                   // number of such devices

  int max_layers() const { return static_cast<int>(kv_blocks.size()); }
};

// The first guesses that Helix ships, by model ("llama2_70b", "llama1_30b") and device.
struct HelixGuess {
  double typical_layers = 0, layers_per_s = 0;
};
Result<HelixGuess> HelixFirstGuess(std::string_view model, std::string_view device);

// [device][k - 1]: T(k) in tokens per second. REQUIRES: at least one device; counts and guesses
// above zero; kv_blocks of each not empty and above zero.
std::vector<std::vector<double>> HelixThroughput(const std::vector<HelixDevice>& fleet,
                                                 int num_layers);

}  // namespace millrace::experiments::helix
