#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/log.h"

namespace millrace {
namespace {

constexpr double kBytesMax = 0x1.0p62;

Result<double> Multiplier(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 1.0;
  constexpr std::string_view kLetters = "KMGT";
  const size_t power = kLetters.find(static_cast<char>(unit[0] & ~0x20));
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos) return InvalidArgument("unknown unit");
  if (rest.empty() || rest == "B" || rest == "b") {
    return std::pow(1000.0, static_cast<double>(power) + 1);
  }
  if (rest == "i" || rest == "iB" || rest == "ib") {
    return std::pow(1024.0, static_cast<double>(power) + 1);
  }
  return InvalidArgument("unknown unit");
}

template <typename T>
Result<T> ParseWhole(std::string_view text, const char* kind) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument(fmt::format("must be {}, got '{}'", kind, Printable(text)));
  }
  return value;
}

}  // namespace

Result<int64_t> ParseBytes(std::string_view text) {
  const Status error = InvalidArgument(fmt::format(
      "must be a number of bytes such as 2GiB, 512MiB or 1048576, got '{}'", Printable(text)));
  double number = 0;
  auto [end, code] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (code != std::errc() || !std::isfinite(number) || number < 0) return error;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  auto multiplier = Multiplier(unit);
  if (!multiplier.ok()) return error;
  const double bytes = number * *multiplier;
  if (bytes >= kBytesMax) return error;
  return static_cast<int64_t>(bytes);
}

Result<int64_t> ParseInt(std::string_view text) { return ParseWhole<int64_t>(text, "an integer"); }

Result<uint64_t> ParseUint(std::string_view text) {
  return ParseWhole<uint64_t>(text, "a whole number, 0 or more");
}

Result<double> ParseReal(std::string_view text) {
  MR_ASSIGN_OR_RETURN(double value, ParseWhole<double>(text, "a number"));
  if (std::isnan(value)) return InvalidArgument("must be a number, got 'nan'");
  return value;
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kUnits[unit]);
}

std::string BytesText(int64_t bytes) {
  if (bytes < 1'000'000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::min(seconds + 0.5, 1e9));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string FormatCount(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > (n < 0 ? 1u : 0u);
    if (after_digit && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string FormatParameters(int64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.2f} B", static_cast<double>(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
  return FormatCount(n);
}

std::string FormatReal(double value) { return fmt::format("{}", value); }

}  // namespace millrace
