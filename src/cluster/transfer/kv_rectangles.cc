#include "cluster/transfer/kv_rectangles.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <limits>
#include <optional>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// The cost of covering heads of one band of layers: remote heads count first, then pieces.
struct Cost {
  int remote = 0, pieces = 0;
  friend auto operator<=>(const Cost&, const Cost&) = default;
};

struct HeadPiece {
  size_t source = 0;
  HeadRange heads;
  friend bool operator==(const HeadPiece&, const HeadPiece&) = default;
};

Status CheckInputs(const stage::KvBox& need, std::span<const KvHolder> holders, int kv_heads) {
  if (need.layers.begin < 0 || need.layers.size() <= 0 || need.first_head < 0 ||
      need.first_head >= need.end_head || need.end_head > kv_heads || need.first_token < 0 ||
      need.first_token >= need.end_token) {
    return InvalidArgument(
        fmt::format("cannot pull layers [{}, {}), heads [{}, {}) of {}, tokens [{}, {})",
                    need.layers.begin, need.layers.end, need.first_head, need.end_head, kv_heads,
                    need.first_token, need.end_token));
  }
  if (holders.size() > kKvSourcesMax) {
    return InvalidArgument(
        fmt::format("{} sources, at most {} are allowed", holders.size(), kKvSourcesMax));
  }
  for (const KvHolder& h : holders) {
    if (h.layers.begin >= 0 && h.layers.size() > 0 && h.rank.rank >= 0 && h.rank.size >= 1 &&
        h.rank.rank < h.rank.size) {
      continue;
    }
    return InvalidArgument(fmt::format("invalid source: layers [{}, {}), rank {} of {}",
                                       h.layers.begin, h.layers.end, h.rank.rank, h.rank.size));
  }
  return OkStatus();
}

// The layers at which a source begins or ends within the need, sorted, with both ends of the need.
std::vector<int> LayerCuts(LayerRange need, std::span<const KvHolder> holders) {
  std::vector<int> cuts = {need.begin, need.end};
  for (const KvHolder& h : holders) {
    for (const int cut : {h.layers.begin, h.layers.end}) {
      if (cut > need.begin && cut < need.end) cuts.push_back(cut);
    }
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The cheapest cover of `heads` by sources that have the layers. Works from the left: best[h] is
// the cost of covering the heads up to h, and from[h] is the last piece of that cover. On a tie the
// earlier source wins.
Result<std::vector<HeadPiece>> CoverHeads(HeadRange heads, LayerRange layers,
                                          std::span<const KvHolder> holders, int kv_heads) {
  const int count = heads.end - heads.first;
  std::vector<std::optional<Cost>> best(static_cast<size_t>(count) + 1);
  std::vector<HeadPiece> from(best.size());
  best[0] = Cost{};
  for (int h = 0; h < count; ++h) {
    if (!best[static_cast<size_t>(h)]) continue;
    const Cost before = *best[static_cast<size_t>(h)];
    for (size_t s = 0; s < holders.size(); ++s) {
      const HeadRange has = KvHeadsOf(holders[s].rank, kv_heads);
      const int first = heads.first + h;
      if (!holders[s].layers.Contains(layers) || first < has.first || first >= has.end) continue;
      for (int end = first + 1; end <= std::min(has.end, heads.end); ++end) {
        const Cost cost{before.remote + (holders[s].same_host ? 0 : end - first),
                        before.pieces + 1};
        const auto to = static_cast<size_t>(end - heads.first);
        if (best[to] && *best[to] <= cost) continue;
        best[to] = cost;
        from[to] = {s, {first, end}};
      }
    }
  }
  if (!best.back()) {
    int lacking = count;
    while (!best[static_cast<size_t>(lacking)]) --lacking;
    return InvalidArgument(fmt::format("no source has head {} of layers [{}, {})",
                                       heads.first + lacking, layers.begin, layers.end));
  }
  std::vector<HeadPiece> pieces;
  for (int h = count; h > 0; h = pieces.back().heads.first - heads.first) {
    pieces.push_back(from[static_cast<size_t>(h)]);
  }
  std::ranges::reverse(pieces);
  return pieces;
}

}  // namespace

HeadRange KvHeadsOf(TensorRank rank, int kv_heads) {
  const auto at = [&](int r) { return static_cast<int64_t>(kv_heads) * r; };
  return {static_cast<int>(at(rank.rank) / rank.size),
          static_cast<int>((at(rank.rank + 1) + rank.size - 1) / rank.size)};
}

Result<std::vector<KvPiece>> CoverKv(const stage::KvBox& need, std::span<const KvHolder> holders,
                                     int kv_heads) {
  MR_RETURN_IF_ERROR(CheckInputs(need, holders, kv_heads));
  std::vector<KvPiece> pieces;
  std::vector<HeadPiece> last;  // of the previous band: the last ones in `pieces`
  const std::vector<int> cuts = LayerCuts(need.layers, holders);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const LayerRange band{cuts[i], cuts[i + 1]};
    MR_ASSIGN_OR_RETURN(auto heads,
                        CoverHeads({need.first_head, need.end_head}, band, holders, kv_heads));
    if (heads == last) {  // the same sources as in the previous band
      for (size_t k = pieces.size() - last.size(); k < pieces.size(); ++k) {
        pieces[k].box.layers.end = band.end;
      }
      continue;
    }
    for (const HeadPiece& piece : heads) {
      pieces.push_back({piece.source,
                        {.layers = band,
                         .first_head = piece.heads.first,
                         .end_head = piece.heads.end,
                         .first_token = need.first_token,
                         .end_token = need.end_token}});
    }
    last = std::move(heads);
  }
  return pieces;
}

std::optional<ActivationPiece> ActivationsToPull(LayerRange layers, const PullKv& pull,
                                                 Incarnation reader) {
  std::optional<ActivationPiece> activations;
  if (pull.activations == PulledActivations::kNone) return activations;
  for (size_t i = 0; i < pull.sources.size(); ++i) {
    const KvSource& source = pull.sources[i];
    const bool here = source.from.incarnation == reader;
    if (source.rank.rank != 0 || !source.layers.Contains(layers.end - 1) ||
        pull.first_token == pull.end_token ||
        (!here && (pull.activations != PulledActivations::kAny || activations))) {
      continue;
    }
    activations = ActivationPiece{i, {layers.end, pull.first_token, pull.end_token}};
    if (here) break;
  }
  return activations;
}

std::vector<stage::KvBox> SplitKv(const stage::KvBox& box, size_t head_token_bytes,
                                  size_t bytes_max) {
  MR_CHECK(head_token_bytes > 0 && head_token_bytes <= bytes_max)
      << head_token_bytes << " bytes do not fit into a chunk of " << bytes_max;
  // In units of one token of one head of one layer.
  const size_t units = bytes_max / head_token_bytes;
  const auto tokens = static_cast<size_t>(box.end_token - box.first_token);
  const auto heads = static_cast<size_t>(box.end_head - box.first_head);
  const auto step = [](size_t fits) {
    return static_cast<int>(std::clamp<size_t>(fits, 1, std::numeric_limits<int>::max() / 2));
  };
  const int token_step = step(units);
  const int head_step = step(units / tokens);
  const int layer_step = step(units / (tokens * heads));
  std::vector<stage::KvBox> chunks;
  for (int l = box.layers.begin; l < box.layers.end; l += layer_step) {
    for (int h = box.first_head; h < box.end_head; h += head_step) {
      for (int t = box.first_token; t < box.end_token; t += token_step) {
        chunks.push_back({.layers = {l, std::min(l + layer_step, box.layers.end)},
                          .first_head = h,
                          .end_head = std::min(h + head_step, box.end_head),
                          .first_token = t,
                          .end_token = std::min(t + token_step, box.end_token)});
      }
    }
  }
  return chunks;
}

}  // namespace millrace::cluster
