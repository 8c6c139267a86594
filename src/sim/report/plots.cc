#include "sim/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "sim/report/svg.h"

namespace millrace::sim {
namespace {

constexpr int kWidth = 720, kHeight = 440;
constexpr double kLeft = 76, kRight = 24, kTop = 44, kBottom = 56;
constexpr int kTicksWanted = 6;
constexpr int kCdfPoints = 400;
constexpr std::array<const char*, 6> kColours = {"#1f6f8b", "#d1495b", "#3a7d44",
                                                 "#8e5ea2", "#e08e19", "#555555"};
constexpr const char* kGrid = "#dddddd";
constexpr const char* kAxis = "#444444";
constexpr const char* kMark = "#b04a3f";

// 1, 2 or 5 times a power of ten, for about kTicksWanted ticks in `span`.
double TickStep(double span) {
  const double raw = span / kTicksWanted;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (raw <= nice * power) return nice * power;
  }
  return 10 * power;
}

// Maps values to pixels along one axis.
class Scale {
 public:
  Scale(double low, double high, double from, double to, bool log)
      : log_(log), low_(Of(low)), high_(Of(high)), from_(from), to_(to) {
    if (high_ <= low_) high_ = low_ + 1;
  }
  double At(double value) const {
    return from_ + (Of(value) - low_) / (high_ - low_) * (to_ - from_);
  }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log_) {
      for (double p = std::pow(10, std::floor(low_)); p <= std::pow(10, high_) * 1.0001; p *= 10) {
        for (const double m : {1.0, 2.0, 5.0}) {
          if (Of(p * m) >= low_ - 1e-9 && Of(p * m) <= high_ + 1e-9) ticks.push_back(p * m);
        }
      }
      return ticks;
    }
    const double step = TickStep(high_ - low_);
    for (double t = std::ceil(low_ / step) * step; t <= high_ + step * 1e-9; t += step) {
      ticks.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
    }
    return ticks;
  }

 private:
  double Of(double value) const { return log_ ? std::log10(value) : value; }
  bool log_;
  double low_, high_, from_, to_;
};

struct Bounds {
  double x_min = 0, x_max = 1, y_max = 1;
};

Bounds BoundsOf(const ChartOptions& options, const std::vector<Series>& series) {
  Bounds b;
  bool first = true;
  for (const Series& s : series) {
    for (const auto& [x, y] : s.points) {
      b.x_min = first ? x : std::min(b.x_min, x);
      b.x_max = first ? x : std::max(b.x_max, x);
      b.y_max = first ? y : std::max(b.y_max, y);
      first = false;
    }
  }
  if (options.log_x && first) b.x_min = 0.1;
  if (!options.log_x) b.x_min = std::min(b.x_min, 0.0);
  for (const auto& [name, y] : options.horizontal) b.y_max = std::max(b.y_max, y);
  b.y_max = options.y_max.value_or(b.y_max * 1.05);
  if (b.y_max <= 0) b.y_max = 1;
  return b;
}

void DrawAxes(Svg& svg, const ChartOptions& options, const Scale& x, const Scale& y) {
  for (const double tick : y.Ticks()) {
    svg.Line(kLeft, y.At(tick), kWidth - kRight, y.At(tick), kGrid);
    svg.Text(kLeft - 8, y.At(tick) + 4, fmt::format("{:g}", tick), 12, Svg::Anchor::kEnd);
  }
  for (const double tick : x.Ticks()) {
    svg.Line(x.At(tick), kTop, x.At(tick), kHeight - kBottom, kGrid);
    svg.Text(x.At(tick), kHeight - kBottom + 18, fmt::format("{:g}", tick), 12,
             Svg::Anchor::kMiddle);
  }
  svg.Line(kLeft, kTop, kLeft, kHeight - kBottom, kAxis);
  svg.Line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, kAxis);
  svg.Text(kLeft, 24, options.title, 15);
  svg.Text((kLeft + kWidth - kRight) / 2, kHeight - 14, options.x_label, 13, Svg::Anchor::kMiddle);
  svg.Text(20, (kTop + kHeight - kBottom) / 2, options.y_label, 13, Svg::Anchor::kMiddle, true);
}

void DrawMarks(Svg& svg, const ChartOptions& options, const Scale& x, const Scale& y) {
  for (const auto& [name, at] : options.vertical) {
    const double px = x.At(at);
    if (px < kLeft || px > kWidth - kRight) continue;
    svg.Line(px, kTop, px, kHeight - kBottom, kMark);
    svg.Text(px - 4, kTop + 12, name, 11, Svg::Anchor::kEnd);
  }
  for (const auto& [name, at] : options.horizontal) {
    svg.Line(kLeft, y.At(at), kWidth - kRight, y.At(at), kMark);
    svg.Text(kLeft + 6, y.At(at) - 4, name, 11);
  }
}

}  // namespace

std::string LineChart(const ChartOptions& options, const std::vector<Series>& series) {
  const Bounds b = BoundsOf(options, series);
  const Scale x(b.x_min, b.x_max, kLeft, kWidth - kRight, options.log_x);
  const Scale y(0, b.y_max, kHeight - kBottom, kTop, false);
  Svg svg(kWidth, kHeight);
  DrawAxes(svg, options, x, y);
  DrawMarks(svg, options, x, y);
  for (size_t i = 0; i < series.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::vector<std::pair<double, double>> pixels;
    for (const auto& [px, py] : series[i].points) {
      pixels.emplace_back(x.At(px), y.At(std::min(py, b.y_max)));
    }
    svg.Polyline(pixels, colour);
    if (options.dots) {
      for (const auto& [px, py] : pixels) svg.Circle(px, py, 3, colour);
    }
    const double row = kTop + 16 + 18 * static_cast<double>(i);
    svg.Rect(kWidth - kRight - 132, row - 9, 10, 10, colour);
    svg.Text(kWidth - kRight - 116, row, series[i].name);
  }
  return svg.Finish();
}

Series CdfOf(std::string name, const Quantiles& seconds) {
  Series series{.name = std::move(name)};
  if (seconds.count() == 0) return series;
  for (int i = 0; i <= kCdfPoints; ++i) {
    const double q = static_cast<double>(i) / kCdfPoints;
    series.points.emplace_back(std::max(seconds.At(q) * 1e3, 1e-3), q);
  }
  return series;
}

}  // namespace millrace::sim
