// The memory-bounded order of layers (SpotServe, Algorithm 2).
#include <algorithm>
#include <limits>

#include "experiments/lib/spotserve/migration.h"

namespace millrace::experiments::spotserve {
namespace {

constexpr double kSlack = 1e-9;  // shares are sums of powers of two; this absorbs rounding

bool Has(const LayerRange& range, int layer) { return range.begin <= layer && layer < range.end; }

class Sorter {
 public:
  Sorter(int layers, const std::vector<LayerChange>& devices, double bound)
      : devices_(devices), bound_(bound), placed_(layers), held_(devices.size()) {}

  LayerOrder Run() {
    while (order_.layers.size() < placed_.size()) {
      if (const auto layer = FirstWithinBound(); layer.has_value()) {
        Place(*layer);
      } else {
        order_.within_bound = false;
        Place(LeastHarm());
      }
    }
    return std::move(order_);
  }

 private:
  double Change(int layer, const LayerChange& d) const {
    return (Has(d.after, layer) ? d.after_share : 0) - (Has(d.before, layer) ? d.before_share : 0);
  }

  std::optional<int> FirstWithinBound() {
    for (size_t layer = 0; layer < placed_.size(); ++layer) {
      if (placed_[layer]) continue;
      if (PeakWith(static_cast<int>(layer)) <= bound_ + kSlack) return static_cast<int>(layer);
      order_.front_to_back = false;
    }
    return std::nullopt;
  }

  // The largest holding of any device that takes the layer. Other devices' current holdings do not
  // count against it.
  double PeakWith(int layer) const {
    double peak = -std::numeric_limits<double>::infinity();
    for (size_t d = 0; d < devices_.size(); ++d) {
      peak = std::max(peak, held_[d] + Change(layer, devices_[d]));
    }
    return peak;
  }

  // The bound cannot hold. Picks the layer with the lowest peak, preferring one that frees memory
  // on a fullest device.
  int LeastHarm() const {
    const double fullest = *std::max_element(held_.begin(), held_.end());
    const auto frees = [&](int layer) {
      for (size_t d = 0; d < devices_.size(); ++d) {
        if (held_[d] >= fullest - kSlack && Change(layer, devices_[d]) < 0) return true;
      }
      return false;
    };
    std::optional<int> best;
    double best_peak = 0;
    bool best_frees = false;
    for (size_t i = 0; i < placed_.size(); ++i) {
      if (placed_[i]) continue;
      const int layer = static_cast<int>(i);
      const double peak = std::max(0.0, PeakWith(layer));
      const bool f = frees(layer);
      if (!best.has_value() || peak < best_peak - kSlack ||
          (peak < best_peak + kSlack && f && !best_frees)) {
        best = layer;
        best_peak = peak;
        best_frees = f;
      }
    }
    return *best;
  }

  void Place(int layer) {
    placed_[layer] = true;
    order_.layers.push_back(layer);
    for (size_t d = 0; d < devices_.size(); ++d) {
      held_[d] += Change(layer, devices_[d]);
      order_.peak_layers = std::max(order_.peak_layers, held_[d]);
    }
  }

  const std::vector<LayerChange>& devices_;
  double bound_;
  std::vector<bool> placed_;
  std::vector<double> held_;  // beyond the old share, in layers
  LayerOrder order_;
};

}  // namespace

LayerOrder OrderLayers(int layers, const std::vector<LayerChange>& devices, double bound_layers) {
  return Sorter(layers, devices, bound_layers).Run();
}

}  // namespace millrace::experiments::spotserve
