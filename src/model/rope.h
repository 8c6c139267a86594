// Rotary position embedding: turns the configuration's scaling rule into a table of cos and sin per
// position. Every angle depends on the position alone (docs/decisions/0004-dynamic-rope.md), so
// batching, chunking and cache hits cannot change an answer. Values; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "tensor/device.h"

namespace millrace::model {

inline constexpr size_t kRopeTableBytesMax = size_t{1} << 30;

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  int rotary_dim = 0;          // leading part of each head that is rotated; even
  double theta = 10000.0;      // the base
  double factor = 1.0;         // by how much the context is stretched
  int original_positions = 0;  // context length of the pre-training
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 1.0;                         // yarn: scales cos and sin
  bool truncate = true;  // yarn: correction range in whole dimensions
};

// Names of the base and the rotary part in an architecture's config.json, and their defaults.
struct RopeNames {
  const char* theta = "rope_theta";
  const char* partial = "partial_rotary_factor";
  double default_partial = 1.0;
};

// Reads `rope_parameters` (new), or `rope_scaling` with the names above (old). `max_position` is
// max_position_embeddings on entry and the scaled length on return.
RopeConfig ReadRope(ConfigReader& config, int head_dim, int& max_position,
                    const RopeNames& names = {});

// 1 / wavelength of each pair, at position `position` (only `dynamic` depends on it).
std::vector<float> InverseFrequencies(const RopeConfig& config, int position);

// The table for positions [0, positions). Owns its memory.
class RopeTables {
 public:
  RopeTables() = default;
  RopeTables(const RopeConfig& config, int positions);
  const tensor::RopeAngles& view() const { return view_; }
  static size_t BytesFor(const RopeConfig& config, int positions);

 private:
  std::vector<float> cos_, sin_;
  tensor::RopeAngles view_;
};

}  // namespace millrace::model
