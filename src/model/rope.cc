#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "core/portable_math.h"

namespace millrace::model {
namespace {

struct NamedType {
  std::string_view name;
  RopeType type;
};
constexpr NamedType kTypes[] = {{"default", RopeType::kDefault},
                                {"linear", RopeType::kLinear},
                                {"dynamic", RopeType::kDynamic},
                                {"llama3", RopeType::kLlama3},
                                {"yarn", RopeType::kYarn}};

RopeType ReadType(ConfigReader& rope) {
  const std::string name = rope.String("rope_type", rope.String("type", "default"));
  for (const NamedType& t : kTypes) {
    if (t.name == name) return t.type;
  }
  rope.Fail(
      fmt::format("rope_type \"{}\" is not supported; supported: default, linear, dynamic, llama3, "
                  "yarn",
                  Printable(name, 60)),
      StatusCode::kUnimplemented);
  return RopeType::kDefault;
}

// Peng et al., "YaRN" (2023), section 3.4: 0.1 ln(s) + 1, the scale of cos and sin.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * PortableLog(factor) + 1.0;
}

void ReadYarn(ConfigReader& rope, RopeConfig& out) {
  out.beta_fast = rope.Number("beta_fast", 1e-3, 1e6, 32.0);
  out.beta_slow = rope.Number("beta_slow", 1e-3, 1e6, 1.0);
  out.truncate = rope.Bool("truncate", true);
  const double mscale = rope.Number("mscale", 0, 1e3, 0.0);
  const double mscale_all = rope.Number("mscale_all_dim", 0, 1e3, 0.0);
  const double by_factor = mscale > 0 && mscale_all > 0
                               ? YarnScale(out.factor, mscale) / YarnScale(out.factor, mscale_all)
                               : YarnScale(out.factor, 1.0);
  out.attention_factor = rope.Number("attention_factor", 1e-3, 1e3, by_factor);
}

std::vector<float> PlainFrequencies(double theta, int rotary_dim) {
  std::vector<float> frequencies(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    frequencies[i] = 1.0f / static_cast<float>(PortablePow(static_cast<float>(theta), exponent));
  }
  return frequencies;
}

// "The Llama 3 Herd of Models" (2024): long waves are stretched, short ones kept, and those in
// between are blended.
void ScaleLlama3(const RopeConfig& c, std::vector<float>& frequencies) {
  const double length = c.original_positions;
  for (float& f : frequencies) {
    const double wave = 2 * M_PI / f;
    if (wave > length / c.low_freq_factor) {
      f = static_cast<float>(f / c.factor);
    } else if (wave >= length / c.high_freq_factor) {
      const double smooth =
          (length / wave - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      f = static_cast<float>((1 - smooth) * f / c.factor + smooth * f);
    }
  }
}

// YaRN section 3.2: dimensions that rotate often over the original length are kept (extrapolated),
// those that rotate less than once are stretched (interpolated), with a ramp between.
void ScaleYarn(const RopeConfig& c, std::vector<float>& frequencies) {
  const auto dimension_of = [&](double rotations) {
    return c.rotary_dim * PortableLog(c.original_positions / (rotations * 2 * M_PI)) /
           (2 * PortableLog(c.theta));
  };
  double low = dimension_of(c.beta_fast), high = dimension_of(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, c.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double f = frequencies[i];
    frequencies[i] = static_cast<float>(f / c.factor * ramp + f * (1 - ramp));
  }
}

}  // namespace

RopeConfig ReadRope(ConfigReader& config, int head_dim, int& max_position, const RopeNames& names) {
  RopeConfig out;
  const double theta = config.Number(names.theta, 1.001, 1e12, 10000.0);
  const double partial = config.Number(names.partial, 1e-3, 1.0, names.default_partial);
  static const Json kNone = Json::object();
  const char* field = config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  ConfigReader rope = config.Object(field).value_or(ConfigReader(kNone, config.label()));
  out.type = ReadType(rope);
  out.theta = rope.Number("rope_theta", 1.001, 1e12, theta);
  out.rotary_dim =
      static_cast<int>(head_dim * rope.Number("partial_rotary_factor", 1e-3, 1.0, partial));
  if (out.rotary_dim < 2 || out.rotary_dim % 2 != 0) {
    rope.Fail(fmt::format("a rotary part of {} of {} dimensions is not a positive even number",
                          out.rotary_dim, head_dim));
  }
  out.original_positions = max_position;
  if (out.type == RopeType::kLlama3 || out.type == RopeType::kYarn) {
    out.original_positions =
        rope.Int("original_max_position_embeddings", 1, kPositionsMax,
                 config.Int("original_max_position_embeddings", 1, kPositionsMax, max_position));
  }
  if (out.type != RopeType::kDefault) {
    const bool by_lengths = out.type == RopeType::kYarn && out.original_positions <= max_position;
    const std::optional<double> absent =
        by_lengths ? std::optional(static_cast<double>(max_position) / out.original_positions)
                   : std::nullopt;
    out.factor = rope.Number("factor", 1.0, 1e4, absent);
  }
  if (out.type == RopeType::kLlama3) {
    out.low_freq_factor = rope.Number("low_freq_factor", 1e-3, 1e4);
    out.high_freq_factor = rope.Number("high_freq_factor", 1e-3, 1e4);
    if (!(out.high_freq_factor > out.low_freq_factor)) {
      rope.Fail("high_freq_factor must be greater than low_freq_factor");
    }
  } else if (out.type != RopeType::kDefault) {
    if (out.type == RopeType::kYarn) ReadYarn(rope, out);
    if (out.type == RopeType::kDynamic && out.rotary_dim < 4) {
      rope.Fail("dynamic scaling needs a rotary part of at least 4 dimensions");
    }
    max_position =
        static_cast<int>(std::min<double>(out.original_positions * out.factor, kPositionsMax));
  }
  config.Merge(rope.status());
  return out;
}

std::vector<float> InverseFrequencies(const RopeConfig& c, int position) {
  double theta = c.theta;
  if (c.type == RopeType::kDynamic) {
    // NTK-aware: the base grows with the length of the text up to and including this position.
    const double length = std::max(position + 1, c.original_positions);
    const double d = c.rotary_dim;
    theta *= PortablePow(c.factor * length / c.original_positions - (c.factor - 1), d / (d - 2));
  }
  std::vector<float> frequencies = PlainFrequencies(theta, c.rotary_dim);
  if (c.type == RopeType::kLinear) {
    for (float& f : frequencies) f /= static_cast<float>(c.factor);
  }
  if (c.type == RopeType::kLlama3) ScaleLlama3(c, frequencies);
  if (c.type == RopeType::kYarn) ScaleYarn(c, frequencies);
  return frequencies;
}

size_t RopeTables::BytesFor(const RopeConfig& config, int positions) {
  return static_cast<size_t>(positions) * static_cast<size_t>(config.rotary_dim) * sizeof(float);
}

RopeTables::RopeTables(const RopeConfig& config, int positions) {
  const size_t half = static_cast<size_t>(config.rotary_dim / 2);
  cos_.resize(static_cast<size_t>(positions) * half);
  sin_.resize(cos_.size());
  const float scale = static_cast<float>(config.attention_factor);
  std::vector<float> frequencies = InverseFrequencies(config, 0), angles(half);
  for (int p = 0; p < positions; ++p) {
    if (config.type == RopeType::kDynamic && p >= config.original_positions) {
      frequencies = InverseFrequencies(config, p);
    }
    for (size_t i = 0; i < half; ++i) angles[i] = static_cast<float>(p) * frequencies[i];
    const size_t at = static_cast<size_t>(p) * half;
    PortableTurns(angles, std::span(cos_).subspan(at, half), std::span(sin_).subspan(at, half));
  }
  if (scale != 1) {
    for (float& x : cos_) x *= scale;
    for (float& x : sin_) x *= scale;
  }
  view_ = {cos_.data(), sin_.data(), positions, config.rotary_dim};
}

}  // namespace millrace::model
