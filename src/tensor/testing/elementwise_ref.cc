#include "tensor/testing/elementwise_ref.h"

#include <cmath>

namespace millrace::tensor {

std::vector<float> RmsNormRef(std::span<const float> x, std::span<const float> weight,
                              float epsilon) {
  double squares = 0;
  for (float v : x) squares += double{v} * v;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(static_cast<float>(x[i] * scale * weight[i]));
  return y;
}

std::vector<float> LayerNormRef(std::span<const float> x, std::span<const float> weight,
                                std::span<const float> bias, float epsilon) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  for (float v : x) mean += v / n;
  for (float v : x) squares += (v - mean) * (v - mean);
  const double scale = 1.0 / std::sqrt(squares / n + epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(
        static_cast<float>((x[i] - mean) * scale * weight[i] + (bias.empty() ? 0 : bias[i])));
  }
  return y;
}

std::vector<float> RopeRef(std::span<const float> head, int position, const RopeAngles& table) {
  const int half = table.rotary_dim / 2;
  std::vector<float> y(head.begin(), head.end());
  for (int i = 0; i < half; ++i) {
    const double cos = table.cos[position * half + i], sin = table.sin[position * half + i];
    y[i] = static_cast<float>(head[i] * cos - head[i + half] * sin);
    y[i + half] = static_cast<float>(head[i] * sin + head[i + half] * cos);
  }
  return y;
}

float ActivateRef(Activation f, float x_float) {
  const double x = x_float;
  switch (f) {
    case Activation::kRelu: return static_cast<float>(x > 0 ? x : 0);
    case Activation::kGelu: return static_cast<float>(0.5 * x * std::erfc(-x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return static_cast<float>(0.5 * x *
                                (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
    case Activation::kSilu: return static_cast<float>(x / (1 + std::exp(-x)));
  }
  return 0;
}

}  // namespace millrace::tensor
