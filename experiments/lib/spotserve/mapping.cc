#include "experiments/lib/spotserve/mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "plan/spot/assignment.h"

namespace millrace::experiments::spotserve {
namespace {

// Bytes count first: the sum of all tie-breakers stays below one byte.
constexpr int64_t kTie = int64_t{1} << 11;
static_assert(kTie > kMapDevicesMax);

int Overlap(int a_begin, int a_end, int b_begin, int b_end) {
  return std::max(0, std::min(a_end, b_end) - std::max(a_begin, b_begin));
}

// `group` devices of one instance that take shards of one stage together.
struct Block {
  int instance = 0, first = 0;
};

class Mapper {
 public:
  explicit Mapper(const MapRequest& request) : request_(request), config_(request.config) {}

  Result<Mapping> Run() {
    MR_RETURN_IF_ERROR(Measure());
    ListGroups();
    AssignBlocks();
    return Place();
  }

 private:
  Status Measure() {
    size_t per_instance = 0, devices = 0;
    for (const Instance& instance : request_.instances) {
      per_instance = std::max(per_instance, instance.devices.size());
      devices += instance.devices.size();
    }
    for (const Instance& instance : request_.instances) {
      if (instance.devices.size() != per_instance) {
        return InvalidArgument(
            fmt::format("instances must have the same number of devices, got {} and {}",
                        instance.devices.size(), per_instance));
      }
    }
    if (devices > kMapDevicesMax) {
      return InvalidArgument(
          fmt::format("{} devices to map, at most {}", devices, int{kMapDevicesMax}));
    }
    group_ = std::min<int>(config_.tensor, static_cast<int>(per_instance));
    if (group_ == 0 || config_.tensor % group_ != 0 || per_instance % group_ != 0) {
      return InvalidArgument(fmt::format("tensor degree {} does not fit instances of {} devices",
                                         config_.tensor, per_instance));
    }
    for (size_t i = 0; i < request_.instances.size(); ++i) {
      if (request_.instances[i].leaving) continue;
      for (size_t first = 0; first < per_instance; first += group_) {
        blocks_.push_back({static_cast<int>(i), static_cast<int>(first)});
      }
    }
    MR_RETURN_IF_ERROR(CheckSize());
    const int needed = config_.devices() / group_;
    if (static_cast<int>(blocks_.size()) < needed) {
      return FailedPrecondition(fmt::format("{} needs {} devices, {} stay", ToString(config_),
                                            config_.devices(), blocks_.size() * group_));
    }
    return OkStatus();
  }

  // The weights of the matching are bytes with room for tie-breakers below; they must not overflow.
  Status CheckSize() const {
    int64_t tokens = 0;
    for (const int64_t t : request_.kv_tokens) tokens = std::max(tokens, t);
    const ModelBytes& b = request_.bytes;
    const Slice widest{{0, (b.layers + config_.pipeline - 1) / config_.pipeline},
                       {0, kShardUnits / config_.tensor}};
    const double bytes = static_cast<double>(b.WeightBytes(widest)) + b.head_bytes +
                         static_cast<double>(b.kv_bytes_per_token_layer) * tokens *
                             widest.layers.size() / config_.tensor;
    if (bytes * group_ * kTie < static_cast<double>(plan::spot::kAssignmentWeightMax))
      return OkStatus();
    return InvalidArgument(fmt::format("a machine would hold {:.0f} GB", bytes * group_ / 1e9));
  }

  void ListGroups() {
    for (int d = 0; d < config_.data; ++d) {
      for (int p = 0; p < config_.pipeline; ++p) {
        for (int m = 0; m < config_.tensor; m += group_) groups_.push_back({d, p, m});
      }
    }
  }

  // Bytes first; then staying in place: the same stage and shard, the same pipeline number.
  int64_t Weight(const std::optional<Holding>& held, const Position& wanted) const {
    if (!held.has_value()) return 0;
    const int64_t bytes = ReusableBytes(request_, *held, wanted);
    return bytes * kTie + (held->position == wanted ? 1 : 0);
  }

  // The best positions of the block's devices inside the group: the shard index by device.
  std::vector<int> Inner(const Block& block, const Position& group, int64_t* value) const {
    std::vector<int64_t> weights;
    const auto& devices = request_.instances[block.instance].devices;
    for (int i = 0; i < group_; ++i) {
      for (int k = 0; k < group_; ++k) {
        weights.push_back(
            Weight(devices[block.first + i], {group.data, group.stage, group.shard + k}));
      }
    }
    std::vector<int> shard;
    *value = 0;
    const auto columns = plan::spot::AssignMaxWeight(group_, group_, weights);
    for (int i = 0; i < group_; ++i) {
      shard.push_back(*columns[i]);
      *value += weights[i * group_ + *columns[i]];
    }
    return shard;
  }

  void AssignBlocks() {
    const size_t n = blocks_.size(), m = groups_.size();
    std::vector<int64_t> weights(n * m);
    std::vector<bool> empty(n, true);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m; ++j) {
        Inner(blocks_[i], groups_[j], &weights[i * m + j]);
        if (weights[i * m + j] > 0) empty[i] = false;
      }
    }
    group_of_ = plan::spot::AssignMaxWeight(static_cast<int>(n), static_cast<int>(m), weights);
    // Empty machines are equal in the matching. They get the remaining positions in order, so that
    // the result does not depend on the search order.
    std::set<int> left;
    for (size_t j = 0; j < m; ++j) left.insert(static_cast<int>(j));
    for (size_t i = 0; i < n; ++i) {
      if (empty[i]) group_of_[i].reset();
      if (group_of_[i].has_value()) left.erase(*group_of_[i]);
    }
    for (size_t i = 0; i < n && !left.empty(); ++i) {
      if (!empty[i]) continue;
      group_of_[i] = *left.begin();
      left.erase(left.begin());
    }
  }

  Mapping Place() const {
    Mapping mapping;
    for (const Instance& instance : request_.instances) {
      mapping.positions.emplace_back(instance.devices.size());
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!group_of_[i].has_value()) continue;
      const Block& block = blocks_[i];
      const Position& group = groups_[*group_of_[i]];
      int64_t value = 0;
      const std::vector<int> shards = Inner(block, group, &value);
      mapping.reused_bytes += value / kTie;
      for (int k = 0; k < group_; ++k) {
        mapping.positions[block.instance][block.first + k] =
            Position{group.data, group.stage, group.shard + shards[k]};
      }
    }
    return mapping;
  }

  const MapRequest& request_;
  const ParallelConfig& config_;
  int group_ = 0;  // devices of an instance that share a stage
  std::vector<Block> blocks_;
  std::vector<Position> groups_;  // the first shard of each
  std::vector<std::optional<int>> group_of_;
};

}  // namespace

Slice SliceOf(int layers, const ParallelConfig& c, const Position& at) {
  MR_CHECK(at.stage >= 0 && at.stage < c.pipeline && at.shard >= 0 && at.shard < c.tensor &&
           kShardUnits % c.tensor == 0)
      << ToString(c);
  const int width = kShardUnits / c.tensor;
  return {{at.stage * layers / c.pipeline, (at.stage + 1) * layers / c.pipeline},
          {at.shard * width, (at.shard + 1) * width}};
}

ModelBytes ModelBytes::Transformer(int layers, int hidden, int vocabulary, int positions,
                                   int bytes_per_value) {
  const int64_t row = int64_t{hidden} * bytes_per_value;
  return {.layers = layers,
          .layer_sharded_bytes = (12 * int64_t{hidden} + 7) * row,
          .layer_whole_bytes = 6 * row,
          .embedding_bytes = (int64_t{vocabulary} + positions) * row,
          .head_bytes = (int64_t{vocabulary} + 2) * row,
          .kv_bytes_per_token_layer = 2 * row};
}

int64_t ModelBytes::WeightBytes(const Slice& slice) const {
  return slice.layers.size() *
             (layer_whole_bytes + layer_sharded_bytes * slice.shards.size() / kShardUnits) +
         (slice.layers.end == layers ? head_bytes : 0) + embedding_bytes;
}

int64_t ReusableBytes(const MapRequest& request, const Holding& held, const Position& wanted) {
  const ModelBytes& bytes = request.bytes;
  const Slice slice = SliceOf(bytes.layers, request.config, wanted);
  const int64_t layers =
      Overlap(held.slice.layers.begin, held.slice.layers.end, slice.layers.begin, slice.layers.end);
  const int64_t units =
      Overlap(held.slice.shards.begin, held.slice.shards.end, slice.shards.begin, slice.shards.end);
  const int old = held.position.data;
  int64_t per_layer = bytes.layer_sharded_bytes;
  if (wanted.data < static_cast<int>(request.inherits.size()) &&
      request.inherits[wanted.data] == old && old < static_cast<int>(request.kv_tokens.size())) {
    per_layer += bytes.kv_bytes_per_token_layer * request.kv_tokens[old];
  }
  const bool both_last = held.slice.layers.end == bytes.layers && slice.layers.end == bytes.layers;
  return layers * (bytes.layer_whole_bytes + per_layer * units / kShardUnits) +
         (both_last ? bytes.head_bytes : 0) + bytes.embedding_bytes;
}

Inheritance InheritBatches(std::vector<RunningBatch> batches, int pipelines) {
  std::stable_sort(batches.begin(), batches.end(),
                   [](const RunningBatch& a, const RunningBatch& b) { return a.steps > b.steps; });
  if (static_cast<int>(batches.size()) > pipelines) batches.resize(pipelines);
  Inheritance inherits(pipelines);
  std::vector<int> moved;
  for (const RunningBatch& batch : batches) {
    if (batch.pipeline < pipelines && !inherits[batch.pipeline].has_value()) {
      inherits[batch.pipeline] = batch.pipeline;
    } else {
      moved.push_back(batch.pipeline);
    }
  }
  for (const int pipeline : moved) {
    *std::find(inherits.begin(), inherits.end(), std::nullopt) = pipeline;
  }
  return inherits;
}

Result<Mapping> MapDevices(const MapRequest& request) { return Mapper(request).Run(); }

}  // namespace millrace::experiments::spotserve
