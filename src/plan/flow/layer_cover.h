// LayerCover: the summed rate of the nodes that hold each layer, and its shortfall to a target. If
// links do not bind, the partial-inference flow of a placement is the least of these sums: a
// backward move inside a node's range is free, so every finite cut is a prefix of the layers.
// Otherwise it is an upper bound. Owned by one search; one thread.
#pragma once

#include <algorithm>
#include <vector>

#include "core/plan.h"

namespace millrace::plan {

class LayerCover {
 public:
  explicit LayerCover(int num_layers) : rate_(num_layers, 0) {}

  void SetTarget(double target) {
    target_ = target;
    Recount();
  }
  double target() const { return target_; }
  void Clear() {
    std::fill(rate_.begin(), rate_.end(), 0.0);
    Recount();
  }
  // Adds `rate` to every layer of `range`; a negative rate subtracts.
  void Add(const LayerRange& range, double rate) {
    double change = 0;
    for (int l = range.begin; l < range.end; ++l) {
      const double before = std::max(0.0, target_ - rate_[l]);
      rate_[l] += rate;
      change += std::max(0.0, target_ - rate_[l]) - before;
    }
    shortfall_ += change;
  }
  double Least() const { return *std::min_element(rate_.begin(), rate_.end()); }
  // The sum over layers of what is missing to the target.
  double shortfall() const { return shortfall_; }
  double rate(int layer) const { return rate_[layer]; }
  int num_layers() const { return static_cast<int>(rate_.size()); }

  // Recomputes the sums: they drift by rounding after millions of changes.
  void Recount() {
    shortfall_ = 0;
    for (double r : rate_) shortfall_ += std::max(0.0, target_ - r);
  }

 private:
  std::vector<double> rate_;
  double target_ = 0;
  double shortfall_ = 0;
};

}  // namespace millrace::plan
