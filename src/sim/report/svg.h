// Svg: a drawing as text. Coordinates are pixels from the top left corner, rounded to a tenth, so
// that the text is short and equal on every machine. A value; one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::sim {

class Svg {
 public:
  enum class Anchor { kStart, kMiddle, kEnd };

  Svg(int width, int height) : width_(width), height_(height) {}

  void Rect(double x, double y, double width, double height, std::string_view fill,
            double corner = 0);
  void Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width = 1);
  void Polyline(const std::vector<std::pair<double, double>>& points, std::string_view stroke,
                double width = 2);
  void Circle(double x, double y, double radius, std::string_view fill);
  // `text` is escaped. `turned`: reads upwards.
  void Text(double x, double y, std::string_view text, int size = 12,
            Anchor anchor = Anchor::kStart, bool turned = false);

  void Add(std::string_view element) { body_ += element; }  // as it is

  size_t bytes() const { return body_.size(); }
  std::string Finish() const;

 private:
  int width_, height_;
  std::string body_;
};

}  // namespace millrace::sim
