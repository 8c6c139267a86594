#include "experiments/lib/spotserve/migration.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace millrace::experiments::spotserve {
namespace {

bool Covers(const Slice& slice, int layer, const ShardRange& shards) {
  return slice.layers.begin <= layer && layer < slice.layers.end &&
         slice.shards.begin <= shards.begin && shards.end <= slice.shards.end;
}

class Planner {
 public:
  Planner(const MapRequest& request, const Mapping& mapping, const MigrationOptions& options)
      : request_(request), mapping_(mapping), options_(options), bytes_(request.bytes) {
    // Partitions of the old and new configurations fall on multiples of the finer shard, so no
    // piece of this width is split.
    grain_ = kShardUnits / request.config.tensor;
    for (size_t i = 0; i < request.instances.size(); ++i) {
      for (size_t k = 0; k < request.instances[i].devices.size(); ++k) {
        refs_.push_back({static_cast<int>(i), static_cast<int>(k)});
        const auto& held = request.instances[i].devices[k];
        if (held.has_value()) grain_ = std::gcd(grain_, held->slice.shards.size());
      }
    }
    sent_bytes_.resize(refs_.size());
  }

  Migration Run() {
    plan_.kv_lost.resize(request_.config.data);
    plan_.order = OrderLayers(bytes_.layers, Changes(), Bound());
    for (size_t device = 0; device < refs_.size(); ++device) MoveKv(device);
    std::stable_partition(plan_.transfers.begin(), plan_.transfers.end(),
                          [](const Transfer& t) { return t.prior; });
    const size_t weights = plan_.transfers.size();
    MoveWhole(TransferKind::kEmbedding);
    for (const int layer : plan_.order.layers) {
      for (size_t device = 0; device < refs_.size(); ++device) MoveLayer(device, layer);
    }
    MoveWhole(TransferKind::kHead);
    std::stable_partition(plan_.transfers.begin() + weights, plan_.transfers.end(),
                          [](const Transfer& t) { return t.prior; });
    Sum();
    return std::move(plan_);
  }

 private:
  const std::optional<Holding>& Held(size_t device) const {
    return request_.instances[refs_[device].instance].devices[refs_[device].device];
  }
  bool Leaving(size_t device) const { return request_.instances[refs_[device].instance].leaving; }
  const std::optional<Position>& Place(size_t device) const {
    return mapping_.positions[refs_[device].instance][refs_[device].device];
  }

  double Bound() const {
    int most = 0;
    for (size_t d = 0; d < refs_.size(); ++d) {
      if (Held(d).has_value()) {
        most = std::max(most, Held(d)->slice.layers.size() * Held(d)->slice.shards.size());
      }
    }
    return options_.memory_tolerance * most / kShardUnits;
  }

  // Only devices that stay: new ones are empty, and leaving ones receive nothing.
  std::vector<LayerChange> Changes() const {
    std::vector<LayerChange> changes;
    for (size_t d = 0; d < refs_.size(); ++d) {
      if (Leaving(d) || !Held(d).has_value()) continue;
      LayerChange change{.before = Held(d)->slice.layers,
                         .before_share = Held(d)->slice.shards.size() / double{kShardUnits}};
      if (Place(d).has_value()) {
        const Slice after = SliceOf(bytes_.layers, request_.config, *Place(d));
        change.after = after.layers;
        change.after_share = after.shards.size() / double{kShardUnits};
      }
      changes.push_back(change);
    }
    return changes;
  }

  // Chooses the sender: a device of the same machine, then one that stays, then the one that has
  // sent least.
  template <typename Holds>
  std::optional<size_t> Source(size_t to, Holds holds) const {
    std::optional<size_t> best;
    const auto rank = [&](size_t d) {
      return std::tuple(refs_[d].instance != refs_[to].instance, Leaving(d), sent_bytes_[d], d);
    };
    for (size_t d = 0; d < refs_.size(); ++d) {
      if (d == to || !Held(d).has_value() || !holds(*Held(d))) continue;
      if (!best.has_value() || rank(d) < rank(*best)) best = d;
    }
    return best;
  }

  void Add(TransferKind kind, std::optional<size_t> from, size_t to, int layer,
           const ShardRange& shards, int64_t bytes) {
    Transfer t{.kind = kind, .to = refs_[to], .layer = layer, .shards = shards, .bytes = bytes};
    if (from.has_value()) {
      t.from = refs_[*from];
      t.prior = Leaving(*from);
      sent_bytes_[*from] += bytes;
    }
    plan_.transfers.push_back(t);
  }

  void MoveKv(size_t device) {
    if (!Place(device).has_value()) return;
    const int pipeline = Place(device)->data;
    const auto& inherits = request_.inherits;
    if (pipeline >= static_cast<int>(inherits.size()) || !inherits[pipeline].has_value()) return;
    const int old = *inherits[pipeline];
    const int64_t tokens =
        old < static_cast<int>(request_.kv_tokens.size()) ? request_.kv_tokens[old] : 0;
    if (tokens == 0) return;
    const Slice wanted = SliceOf(bytes_.layers, request_.config, *Place(device));
    for (int layer = wanted.layers.begin; layer < wanted.layers.end; ++layer) {
      for (int unit = wanted.shards.begin; unit < wanted.shards.end; unit += grain_) {
        const ShardRange piece{unit, unit + grain_};
        const auto holds = [&](const Holding& h) {
          return h.position.data == old && Covers(h.slice, layer, piece);
        };
        if (Held(device).has_value() && holds(*Held(device))) continue;
        const auto from = Source(device, holds);
        if (from.has_value()) {
          Add(TransferKind::kKv, from, device, layer, piece,
              bytes_.kv_bytes_per_token_layer * tokens * grain_ / kShardUnits);
        } else {
          plan_.kv_lost[pipeline] = true;
        }
      }
    }
  }

  void MoveLayer(size_t device, int layer) {
    if (!Place(device).has_value()) return;
    const Slice wanted = SliceOf(bytes_.layers, request_.config, *Place(device));
    if (layer < wanted.layers.begin || layer >= wanted.layers.end) return;
    const auto& held = Held(device);
    const bool has_whole =
        held.has_value() && held->slice.layers.begin <= layer && layer < held->slice.layers.end;
    int64_t extra = has_whole ? 0 : bytes_.layer_whole_bytes;
    for (int unit = wanted.shards.begin; unit < wanted.shards.end; unit += grain_) {
      const ShardRange piece{unit, unit + grain_};
      const auto holds = [&](const Holding& h) { return Covers(h.slice, layer, piece); };
      if (held.has_value() && holds(*held)) continue;
      Add(TransferKind::kLayer, Source(device, holds), device, layer, piece,
          bytes_.layer_sharded_bytes * grain_ / kShardUnits + extra);
      extra = 0;
    }
  }

  // The embedding, which every device holds, or the head, which the last stage holds.
  void MoveWhole(TransferKind kind) {
    const bool head = kind == TransferKind::kHead;
    for (size_t d = 0; d < refs_.size(); ++d) {
      if (!Place(d).has_value()) continue;
      if (head && Place(d)->stage != request_.config.pipeline - 1) continue;
      const auto holds = [&](const Holding& h) {
        return !head || h.slice.layers.end == bytes_.layers;
      };
      if (Held(d).has_value() && holds(*Held(d))) continue;
      Add(kind, Source(d, holds), d, 0, {}, head ? bytes_.head_bytes : bytes_.embedding_bytes);
    }
  }

  // Estimates like the released code: the traffic across each machine's border, in and out
  // together, then the traffic within each machine; the slowest machine of each kind, one after the
  // other.
  void Sum() {
    std::map<int, int64_t> between, within;
    for (const Transfer& t : plan_.transfers) {
      plan_.bytes += t.bytes;
      if (t.kind == TransferKind::kKv) plan_.kv_bytes += t.bytes;
      if (!t.from.has_value()) {
        plan_.storage_bytes += t.bytes;
      } else if (t.from->instance != t.to.instance) {
        between[t.from->instance] += t.bytes;
        between[t.to.instance] += t.bytes;
      } else {
        within[t.to.instance] += t.bytes;
      }
    }
    const auto most = [](const std::map<int, int64_t>& bytes) {
      int64_t greatest = 0;
      for (const auto& [instance, b] : bytes) greatest = std::max(greatest, b);
      return static_cast<double>(greatest);
    };
    plan_.seconds = most(between) / options_.between_bytes_per_s +
                    most(within) / options_.within_bytes_per_s + options_.fixed_s;
  }

  const MapRequest& request_;
  const Mapping& mapping_;
  const MigrationOptions& options_;
  const ModelBytes& bytes_;
  int grain_ = 0;
  std::vector<DeviceRef> refs_;
  std::vector<int64_t> sent_bytes_;
  Migration plan_;
};

}  // namespace

Migration PlanMigration(const MapRequest& request, const Mapping& mapping,
                        const MigrationOptions& options) {
  return Planner(request, mapping, options).Run();
}

}  // namespace millrace::experiments::spotserve
