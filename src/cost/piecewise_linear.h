// PiecewiseLinear: a measured curve, straight between its points. Immutable; any thread.
#pragma once

#include <vector>

#include "base/status.h"

namespace millrace::cost {

class PiecewiseLinear {
 public:
  struct Point {
    double x = 0, y = 0;
  };

  // REQUIRES: points are not empty, x strictly increasing, all finite.
  explicit PiecewiseLinear(std::vector<Point> points);

  // Outside the points, extends the line through the two nearest points (a curve of one point is
  // constant).
  double At(double x) const;
  // Inside the points like At. Above the last point, continues with the mean slope of the upper
  // half of the points, never falling, because neighbouring points of a measured curve differ by
  // noise. Below the first point, returns its value.
  double AtSmoothed(double x) const;

  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
  double tail_slope_ = 0;
};

}  // namespace millrace::cost
