#include "sim/load/rate_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/log.h"

namespace millrace::sim {
namespace {

constexpr double kRateMax = 1e6;
constexpr std::string_view kBetween = ", \t\r\n;";

}  // namespace

double RateShape::After(double now_s, double gap_s) const {
  if (shares.empty() || !std::isfinite(gap_s)) return now_s + gap_s;
  const double period_s = every_s * static_cast<double>(shares.size());
  const double periods = std::floor(gap_s / period_s);
  double left_s = gap_s - periods * period_s;
  double at_s = now_s + periods * period_s;
  // Counts intervals instead of comparing times: with rounding, a time could stay at the same
  // border.
  auto interval = static_cast<uint64_t>(at_s / every_s);
  for (;; ++interval) {
    const double share = shares[interval % shares.size()];
    const double end_s = std::max(at_s, static_cast<double>(interval + 1) * every_s);
    const double holds_s = (end_s - at_s) * share;
    if (share > 0 && left_s <= holds_s) return std::min(end_s, at_s + left_s / share);
    left_s -= holds_s;
    at_s = end_s;
  }
}

Result<RateShape> ShapeOf(std::vector<double> rates, double every_s, double& mean) {
  if (rates.empty() || rates.size() > kRatesMax) {
    return InvalidArgument(
        fmt::format("1 to {} rates are possible, got {}", kRatesMax, rates.size()));
  }
  for (const double rate : rates) {
    if (!(rate >= 0 && rate <= kRateMax)) {
      return InvalidArgument(
          fmt::format("a rate must be in [0, {:g}] req/s, got {:g}", kRateMax, rate));
    }
  }
  mean = std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
  if (mean <= 0) return InvalidArgument("some rate must be above 0");
  for (double& rate : rates) rate /= mean;
  return RateShape{std::move(rates), every_s};
}

Result<std::vector<double>> ParseRates(std::string_view text) {
  if (text.size() > kRatesBytesMax) {
    return InvalidArgument(fmt::format("{} bytes, at most {}", text.size(), kRatesBytesMax));
  }
  std::vector<double> rates;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;
       at = text.find_first_not_of(kBetween, at)) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    double rate = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), rate);
    if (error != std::errc() || rest != word.data() + word.size()) {
      return InvalidArgument(fmt::format("number {}: must be requests per second, got '{}'",
                                         rates.size() + 1, Printable(word, 40)));
    }
    if (rates.size() == kRatesMax) {
      return InvalidArgument(fmt::format("more than {} numbers", kRatesMax));
    }
    rates.push_back(rate);
    at = end;
  }
  return rates;
}

}  // namespace millrace::sim
