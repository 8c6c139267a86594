#include "cost/piecewise_linear.h"

#include <algorithm>
#include <utility>

namespace millrace::cost {

PiecewiseLinear::PiecewiseLinear(std::vector<Point> points) : points_(std::move(points)) {
  MR_CHECK(!points_.empty()) << "a curve needs a point";
  for (size_t i = 1; i < points_.size(); ++i) {
    MR_CHECK(points_[i - 1].x < points_[i].x) << points_[i - 1].x << " before " << points_[i].x;
  }
  if (points_.size() >= 2) {
    const Point& middle = points_[(points_.size() - 1) / 2];
    const Point& last = points_.back();
    tail_slope_ = std::max(0.0, (last.y - middle.y) / (last.x - middle.x));
  }
}

double PiecewiseLinear::At(double x) const {
  if (points_.size() == 1) return points_.front().y;
  const auto above = std::upper_bound(points_.begin() + 1, points_.end() - 1, x,
                                      [](double v, const Point& p) { return v < p.x; });
  const Point& b = *above;
  const Point& a = *(above - 1);
  return a.y + (b.y - a.y) * ((x - a.x) / (b.x - a.x));
}

double PiecewiseLinear::AtSmoothed(double x) const {
  if (x <= points_.front().x) return points_.front().y;
  const Point& last = points_.back();
  return x <= last.x ? At(x) : last.y + tail_slope_ * (x - last.x);
}

}  // namespace millrace::cost
