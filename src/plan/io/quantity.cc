#include "plan/io/quantity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "base/log.h"
#include "base/suggest.h"
#include "plan/io/text_fields.h"

namespace millrace::plan {
namespace {

struct Unit {
  std::string_view name;
  double size;
  bool printed = false;  // FormatQuantity uses it
};

// Units from small to large, and the bounds of a sensible value in the base unit.
struct Kind {
  std::span<const Unit> units;
  double min, max;
  std::string_view range, example;
};

constexpr Unit kMemoryUnits[] = {
    {"B", 1, true},  {"kB", 1e3},        {"MB", 1e6, true},     {"GB", 1e9, true}, {"TB", 1e12},
    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 0x1p40},
};
constexpr Unit kBandwidthUnits[] = {
    {"bit/s", 1.0 / 8, true},
    {"kbit/s", 1e3 / 8, true},
    {"Mbit/s", 1e6 / 8, true},
    {"Gbit/s", 1e9 / 8, true},
    {"Tbit/s", 1e12 / 8},
    {"bps", 1.0 / 8},
    {"kbps", 1e3 / 8},
    {"Mbps", 1e6 / 8},
    {"Gbps", 1e9 / 8},
    {"Tbps", 1e12 / 8},
    {"B/s", 1},
    {"kB/s", 1e3},
    {"MB/s", 1e6},
    {"GB/s", 1e9},
    {"TB/s", 1e12},
    {"KiB/s", 1024.0},
    {"MiB/s", 1048576.0},
    {"GiB/s", 1073741824.0},
};
constexpr Unit kLatencyUnits[] = {
    {"ns", 1e-9, true}, {"us", 1e-6, true}, {"ms", 1e-3, true}, {"s", 1, true}};
constexpr Unit kPriceUnits[] = {{"USD/h", 1, true}};
constexpr Unit kFlowUnits[] = {{"tokens/s", 1, true}};
constexpr Unit kDurationUnits[] = {
    {"us", 1e-6}, {"ms", 1e-3, true}, {"s", 1, true}, {"min", 60}, {"h", 3600}};
constexpr Unit kRateUnits[] = {{"req/s", 1, true}, {"req/min", 1.0 / 60}, {"req/h", 1.0 / 3600}};
constexpr Unit kTokenUnits[] = {{"tokens", 1, true}, {"token", 1}};
constexpr Unit kShareUnits[] = {{"%", 0.01, true}};

const Kind& KindOf(Quantity kind) {
  static constexpr Kind kKinds[] = {
      {kMemoryUnits, 1e6, 16e12, "[1 MB, 16 TB]", "40 GB"},
      {kBandwidthUnits, 125, 12.5e12, "[1 kbit/s, 100 Tbit/s]", "10 Gbit/s"},
      {kLatencyUnits, 0, 10, "[0 ms, 10 s]", "0.3 ms"},
      {kPriceUnits, 0, 1e4, "[0 USD/h, 10000 USD/h]", "3.9 USD/h"},
      {kFlowUnits, 0, 1e15, "[0 tokens/s, 1e15 tokens/s]", "120.5 tokens/s"},
      {kDurationUnits, 1e-6, 1e8, "[1 us, 1e8 s]", "250 ms"},
      {kRateUnits, 1e-6, 1e6, "[1e-6 req/s, 1e6 req/s]", "5 req/s"},
      {kTokenUnits, 0, 4194304, "[0 tokens, 4194304 tokens]", "512 tokens"},
      {kShareUnits, 0, 1, "[0 %, 100 %]", "90 %"},
  };
  return kKinds[static_cast<size_t>(kind)];
}

Status UnknownUnit(const Kind& kind, std::string_view unit, std::string_view text) {
  std::vector<std::string> names;
  for (const Unit& known : kind.units) names.emplace_back(known.name);
  if (unit.empty()) {
    return InvalidArgument(fmt::format("must have a unit ({}), such as {}, got '{}'",
                                       fmt::join(names, ", "), kind.example, Printable(text, 60)));
  }
  const auto guess = Suggest(unit, names);
  return InvalidArgument(fmt::format("has the unknown unit '{}'; known: {}{}", Printable(unit, 40),
                                     fmt::join(names, ", "),
                                     guess ? "; did you mean " + *guess + "?" : ""));
}

}  // namespace

Result<double> ParseQuantity(Quantity quantity, std::string_view text) {
  const Kind& kind = KindOf(quantity);
  const std::string_view whole = Trimmed(text);
  double number = 0;
  const auto [end, code] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  if (code != std::errc() || !std::isfinite(number)) {
    return InvalidArgument(fmt::format("must be a number with its unit, such as {}, got '{}'",
                                       kind.example, Printable(text, 60)));
  }
  const std::string_view name = Trimmed(whole.substr(static_cast<size_t>(end - whole.data())));
  for (const Unit& unit : kind.units) {
    if (unit.name != name) continue;
    const double value = number * unit.size;
    if (value >= kind.min && value <= kind.max) return value;
    return InvalidArgument(fmt::format("must be in {}, got '{}'", kind.range, Printable(text, 60)));
  }
  return UnknownUnit(kind, name, text);
}

std::string FormatQuantity(Quantity quantity, double value) {
  const Kind& kind = KindOf(quantity);
  const Unit* best = &kind.units.front();
  for (const Unit& unit : kind.units) {
    // If the division does not multiply back to the same number, uses a smaller unit.
    if (unit.printed && value >= unit.size && value / unit.size * unit.size == value) best = &unit;
  }
  return fmt::format("{} {}", value / best->size, best->name);
}

}  // namespace millrace::plan
