// LayerRange: consecutive layers of a model. A value.
#pragma once

#include <algorithm>
#include <compare>

namespace millrace {

// Layers [begin, end).
struct LayerRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  bool Contains(int layer) const { return layer >= begin && layer < end; }
  bool Contains(const LayerRange& other) const { return other.begin >= begin && other.end <= end; }
  // The layers in both; [0, 0) if there are none.
  LayerRange Overlap(const LayerRange& other) const {
    const LayerRange both{std::max(begin, other.begin), std::min(end, other.end)};
    return both.size() > 0 ? both : LayerRange{};
  }
  friend auto operator<=>(const LayerRange&, const LayerRange&) = default;
};

}  // namespace millrace
