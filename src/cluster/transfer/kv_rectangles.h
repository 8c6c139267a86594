// CoverKv and SplitKv: decide which part of a request's KV a worker pulls from which source. The
// need is a box (the worker's layers and heads, some tokens), and so is what each source holds. The
// need is cut into boxes, each within one source, that cover it exactly once. Pure functions; any
// thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/layer_range.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

// The limit of one chunk of a pull. Small enough that a damaged or late chunk is cheap to fetch
// again, large enough that the overhead per chunk is negligible.
inline constexpr size_t kPullChunkBytes = 1 << 20;
inline constexpr size_t kKvSourcesMax = 256;

struct HeadRange {
  int first = 0, end = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

// The KV heads that a tensor-parallel rank holds: equal parts in the order of ranks. If there are
// fewer heads than ranks, neighbouring ranks hold the same head.
HeadRange KvHeadsOf(TensorRank rank, int kv_heads);

struct KvHolder {
  LayerRange layers;
  TensorRank rank;
  bool same_host = false;  // on the reader's host, so cheaper to read
};

struct KvPiece {
  size_t source = 0;  // index into the holders
  stage::KvBox box;
  friend bool operator==(const KvPiece&, const KvPiece&) = default;
};
struct ActivationPiece {
  size_t source = 0;
  stage::ActivationRange range;
  friend bool operator==(const ActivationPiece&, const ActivationPiece&) = default;
};

// Covers `need` with as much as possible from the same host, and then with as few pieces as
// possible (if the holders' layers are equal or disjoint, as in a pipeline). kInvalidArgument: no
// holder has some layer and head, which the message names, or the need or a holder is invalid.
Result<std::vector<KvPiece>> CoverKv(const stage::KvBox& need, std::span<const KvHolder> holders,
                                     int kv_heads);

// The activations that left `layers` (stage/activation_caching_stage.h), to be pulled beside the
// KV of these layers if `pull` asks for them. The source with the last of the layers may have
// cached them.
std::optional<ActivationPiece> ActivationsToPull(LayerRange layers, const PullKv& pull,
                                                 Incarnation reader);

// Splits a box into boxes of at most `bytes_max`, in the order of their canonical bytes
// (stage/stage.h): as many whole layers as fit, else heads of one layer, else tokens of one head.
// `head_token_bytes`: K and V of one token of one head in one layer. REQUIRES: that many bytes fit.
std::vector<stage::KvBox> SplitKv(const stage::KvBox& box, size_t head_token_bytes,
                                  size_t bytes_max = kPullChunkBytes);

}  // namespace millrace::cluster
