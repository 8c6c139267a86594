// Which bytes of a request's KV a worker pulls from whom. What it needs is a box (its layers, its
// heads, some tokens); what each source holds is another. The need is cut into boxes, each within
// one source, that cover it exactly once. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/layer_range.h"
#include "core/worker_messages.h"
#include "engine/stage.h"

namespace millrace::cluster {

// As large as a chunk of a pull gets: small enough that one that is damaged or late is cheap to
// fetch again, large enough that what travels with it does not count.
inline constexpr size_t kPullChunkBytes = 1 << 20;
inline constexpr size_t kKvSourcesMax = 256;

struct HeadRange {
  int first = 0, end = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

// The KV heads that a tensor-parallel rank holds: equal parts in the order of ranks, and with fewer
// heads than ranks the same one on neighbouring ranks.
HeadRange KvHeadsOf(TensorRank rank, int kv_heads);

struct KvHolder {
  LayerRange layers;
  TensorRank rank;
  bool same_host = false;  // as the reader: cheaper to read from
};

struct KvPiece {
  size_t source = 0;  // index into the holders
  engine::KvBox box;
  friend bool operator==(const KvPiece& a, const KvPiece& b) {
    return a.source == b.source && a.box.layers == b.box.layers &&
           a.box.first_head == b.box.first_head && a.box.end_head == b.box.end_head &&
           a.box.first_token == b.box.first_token && a.box.end_token == b.box.end_token;
  }
};

// As much as possible from the same host, and then in as few pieces as possible (of holders whose
// layers are equal or disjoint, as those of a pipeline are). kInvalidArgument names layers and
// heads that no holder has, or a need or holder that makes no sense.
Result<std::vector<KvPiece>> CoverKv(const engine::KvBox& need, std::span<const KvHolder> holders,
                                     int kv_heads);

// Beside the KV of a pull into `layers`: the activations that left them
// (engine/activation_caching_stage.h), as far as the pull asks for them. Whoever has the last of
// these layers may have kept them.
std::optional<KvPiece> ActivationsToPull(LayerRange layers, const PullKv& pull, Incarnation reader);

// A box in boxes of at most `bytes_max`, in the order of their canonical bytes (engine/stage.h):
// whole layers together as far as they fit, else heads of one layer, else tokens of one head.
// `head_token_bytes`: K and V of one token of one head in one layer. REQUIRES: one of those fits.
std::vector<engine::KvBox> SplitKv(const engine::KvBox& box, size_t head_token_bytes,
                                   size_t bytes_max = kPullChunkBytes);

}  // namespace millrace::cluster
