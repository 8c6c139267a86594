// The steps of each instance over time, as a picture and as a trace for Chrome's and Perfetto's
// viewers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"
#include "sim/report/plots.h"
#include "sim/report/svg.h"

namespace millrace::sim {
namespace {

constexpr double kRowHeight = 26, kRowGap = 6, kNames = 150, kDrawn = 1000, kHead = 64;
constexpr double kLabelMin = 22;  // pixels needed for a number
constexpr int kBoxesMax = 20'000;

// From blue (decode only) to orange (prompts only).
std::string ColourOf(const cost::BatchShape& batch) {
  const int64_t tokens = batch.tokens();
  const double prompt =
      tokens == 0 ? 0 : static_cast<double>(batch.prefill_tokens) / static_cast<double>(tokens);
  const auto mix = [prompt](int decode, int prefill) {
    return static_cast<int>(std::lround(decode + (prefill - decode) * prompt));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0x6f, 0xe8), mix(0xa8, 0x95), mix(0xdc, 0x3c));
}

double Seconds(Time time) { return static_cast<double>(time.ns) * 1e-9; }

// The rows of the picture: (instance, stage), in order.
std::map<std::pair<int, int>, int> RowsOf(const Timeline& timeline) {
  std::map<std::pair<int, int>, int> rows;
  for (const TimelineStep& step : timeline.steps()) {
    for (int stage = 0; stage < static_cast<int>(step.record.begin.size()); ++stage) {
      rows.emplace(std::pair(step.instance, stage), 0);
    }
  }
  int next = 0;
  for (auto& [key, row] : rows) row = next++;
  return rows;
}

void DrawKey(Svg& svg) {
  svg.Rect(kNames, 10, 14, 14, ColourOf({.decode_sequences = 1}));
  svg.Text(kNames + 20, 22, "decode");
  svg.Rect(kNames + 90, 10, 14, 14, ColourOf({.prefill_tokens = 1, .decode_sequences = 1}));
  svg.Text(kNames + 110, 22, "half and half");
  svg.Rect(kNames + 220, 10, 14, 14, ColourOf({.prefill_tokens = 1}));
  svg.Text(kNames + 240, 22, "prompts");
  svg.Text(kNames + 330, 22, "number: tokens of the step; white: idle");
}

}  // namespace

std::string Timeline::NameOf(int instance) const {
  const auto index = static_cast<size_t>(instance);
  return index < names_.size() ? names_[index] : fmt::format("instance {}", instance);
}

std::string TimelineSvg(const Timeline& timeline, double from_s, double seconds) {
  const auto rows = RowsOf(timeline);
  const double height = kHead + static_cast<double>(rows.size()) * (kRowHeight + kRowGap) + 20;
  Svg svg(static_cast<int>(kNames + kDrawn + 40), static_cast<int>(height));
  DrawKey(svg);
  svg.Text(8, kHead - 14, fmt::format("from {:.3f} s", from_s), 11);
  for (int i = 0; i <= 10; ++i) {
    const double x = kNames + kDrawn * i / 10;
    svg.Line(x, kHead - 8, x, height - 14, "#dddddd");
    svg.Text(x, kHead - 14, fmt::format("+{:.4g} ms", seconds * i / 10 * 1e3), 10,
             Svg::Anchor::kMiddle);
  }
  const auto top = [](int row) { return kHead + row * (kRowHeight + kRowGap); };
  for (const auto& [key, row] : rows) {
    const std::string name = timeline.NameOf(key.first);
    const bool alone = !rows.contains({key.first, 1});
    svg.Text(8, top(row) + 17, alone ? name : fmt::format("{}, stage {}", name, key.second));
  }
  int boxes = 0;
  for (const TimelineStep& step : timeline.steps()) {
    for (size_t stage = 0; stage < step.record.begin.size() && boxes < kBoxesMax; ++stage) {
      const double begin = std::max(Seconds(step.record.begin[stage]) - from_s, 0.0);
      const double end = std::min(Seconds(step.record.end[stage]) - from_s, seconds);
      if (end <= begin) continue;
      ++boxes;
      const double x = kNames + begin / seconds * kDrawn;
      const double width = (end - begin) / seconds * kDrawn;
      const double y = top(rows.at({step.instance, static_cast<int>(stage)}));
      svg.Rect(x, y, std::max(width - 1, 0.3), kRowHeight, ColourOf(step.record.batch));
      if (width >= kLabelMin) {
        svg.Text(x + width / 2, y + 17, fmt::format("{}", step.record.batch.tokens()), 10,
                 Svg::Anchor::kMiddle);
      }
    }
  }
  return svg.Finish();
}

std::string ChromeTrace(const Timeline& timeline) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const auto& [key, row] : RowsOf(timeline)) {
    if (key.second == 0) {
      text += fmt::format(
          "{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}},\n",
          key.first, DumpJson(Json(timeline.NameOf(key.first))));
    }
    text += fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{"
        "\"name\":\"stage {}\"}}}},\n",
        key.first, key.second, key.second);
  }
  const char* separator = "";
  for (const TimelineStep& step : timeline.steps()) {
    const cost::BatchShape& b = step.record.batch;
    for (size_t stage = 0; stage < step.record.begin.size(); ++stage) {
      const Time begin = step.record.begin[stage], end = step.record.end[stage];
      text += fmt::format(
          "{}{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"step {}\",\"ts\":{:.3f},\"dur\":{:.3f}"
          ",\"args\":{{\"prompt_tokens\":{},\"prompts\":{},\"decodes\":{},\"decode_context\":{}}}}"
          "}",
          separator, step.instance, stage, step.record.id.value(),
          static_cast<double>(begin.ns) * 1e-3, (end - begin).millis() * 1e3, b.prefill_tokens,
          b.prefill_sequences, b.decode_sequences, b.decode_context);
      separator = ",\n";
    }
  }
  return text + "\n]}\n";
}

}  // namespace millrace::sim
