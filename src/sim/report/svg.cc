#include "sim/report/svg.h"

#include <fmt/format.h>

#include <cmath>

namespace millrace::sim {
namespace {

// Rounds to a tenth of a pixel and avoids "-0".
std::string At(double value) {
  const double rounded = std::round(value * 10) / 10;
  return fmt::format("{:g}", rounded == 0 ? 0 : rounded);
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

void Svg::Rect(double x, double y, double width, double height, std::string_view fill,
               double corner) {
  const std::string round = corner > 0 ? fmt::format(" rx=\"{}\"", At(corner)) : "";
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{} fill=\"{}\"/>\n",
                       At(x), At(y), At(width), At(height), round, fill);
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width) {
  body_ += fmt::format(
      "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"{}\"/>\n", At(x1),
      At(y1), At(x2), At(y2), stroke, At(width));
}

void Svg::Polyline(const std::vector<std::pair<double, double>>& points, std::string_view stroke,
                   double width) {
  std::string places;
  for (const auto& [x, y] : points) places += (places.empty() ? "" : " ") + At(x) + "," + At(y);
  body_ +=
      fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
                  places, stroke, At(width));
}

void Svg::Circle(double x, double y, double radius, std::string_view fill) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n", At(x), At(y),
                       At(radius), fill);
}

void Svg::Text(double x, double y, std::string_view text, int size, Anchor anchor, bool turned) {
  const char* name = anchor == Anchor::kStart ? "start" : anchor == Anchor::kEnd ? "end" : "middle";
  const std::string turn =
      turned ? fmt::format(" transform=\"rotate(-90 {} {})\"", At(x), At(y)) : "";
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
                       At(x), At(y), size, name, turn, Escaped(text));
}

std::string Svg::Finish() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n{2}"
      "</svg>\n",
      width_, height_, body_);
}

}  // namespace millrace::sim
