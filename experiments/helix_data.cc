#include "experiments/helix_data.h"

#include <algorithm>
#include <cctype>

#include "base/file.h"
#include "cost/csv.h"
#include "plan/io/helix_files.h"

namespace millrace::experiments {
namespace {

constexpr int64_t kBlocksMax = int64_t{1} << 32;

Result<std::vector<int64_t>> KvBlocks(const cost::CsvTable& limits, const std::string& model,
                                      const std::string& gpu) {
  MR_ASSIGN_OR_RETURN(const size_t model_column, limits.Column("model"));
  MR_ASSIGN_OR_RETURN(const size_t gpu_column, limits.Column("gpu"));
  MR_ASSIGN_OR_RETURN(const size_t blocks_column, limits.Column("vllm_blocks"));
  std::vector<int64_t> blocks;
  for (size_t row = 0; row < limits.rows(); ++row) {
    if (limits.Cell(row, model_column) != model || limits.Cell(row, gpu_column) != gpu) continue;
    MR_ASSIGN_OR_RETURN(const int64_t value, limits.Integer(row, blocks_column, 1, kBlocksMax));
    blocks.push_back(value);
  }
  if (blocks.empty()) return NotFound("no limits for " + model + " on " + gpu);
  return blocks;
}

}  // namespace

Result<plan::HelixCapacity> LoadHelixCapacity(const std::string& data, const std::string& cluster) {
  const std::string path = data + "/helix/capacity/" + cluster + ".txt";
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kHelixFileBytesMax));
  return plan::ParseHelixCapacity(text, path);
}

Result<plan::Placement> LoadHelixPlacement(const std::string& data, const std::string& path) {
  const std::string full = data + "/helix/placements/" + path;
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(full, kHelixFileBytesMax));
  return plan::ParseHelixPlacement(text, full);
}

Result<std::vector<helix::HelixDevice>> LoadHelixFleet(const std::string& data,
                                                       const std::string& model,
                                                       const std::map<std::string, int>& counts) {
  const std::string profiles = data + "/helix/profiles/";
  MR_ASSIGN_OR_RETURN(
      const cost::CsvTable limits,
      cost::CsvTable::Load(profiles + "node_limits.csv", cost::CsvHeader::kFirstLine));
  std::vector<helix::HelixDevice> fleet;
  for (const auto& [gpu, count] : counts) {
    std::string folder = gpu;
    std::transform(folder.begin(), folder.end(), folder.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    MR_ASSIGN_OR_RETURN(cost::LayerTable layer,
                        cost::LayerTable::Load(profiles + model + "/" + folder));
    MR_ASSIGN_OR_RETURN(std::vector<int64_t> blocks, KvBlocks(limits, model, gpu));
    MR_ASSIGN_OR_RETURN(const helix::HelixGuess guess, helix::HelixFirstGuess(model, gpu));
    fleet.push_back({.name = gpu,
                     .layer = std::move(layer),
                     .kv_blocks = std::move(blocks),
                     .typical_layers = guess.typical_layers,
                     .layers_per_s = guess.layers_per_s,
                     .count = count});
  }
  return fleet;
}

}  // namespace millrace::experiments
