#include "plan/spot/rate_meter.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::plan::spot {

void RateMeter::Arrive(Time now) {
  MR_CHECK(arrivals_.empty() || arrivals_.back() <= now) << "time went back";
  if (!first_.has_value()) first_ = now;
  arrivals_.push_back(now);
  if (arrivals_.size() > options_.arrivals_max) arrivals_.pop_front();
}

double RateMeter::RequestsPerSecond(Time now, size_t queue_length) {
  while (!arrivals_.empty() && now - arrivals_.front() > options_.long_window) {
    arrivals_.pop_front();
  }
  if (!first_.has_value()) return 0;
  double rate = 0;
  for (const Duration window : {options_.short_window, options_.long_window}) {
    const auto oldest = std::partition_point(arrivals_.begin(), arrivals_.end(),
                                             [&](Time t) { return now - t > window; });
    const double seen = std::min(window.seconds(), (now - *first_).seconds());
    // A window that has just begun shows little: divides by at least a third of its length.
    const double span = std::max(seen, options_.short_window.seconds() / 3);
    rate = std::max(rate, static_cast<double>(arrivals_.end() - oldest) / span);
  }
  return rate + static_cast<double>(queue_length) / options_.drain.seconds();
}

double RateMeter::Variation() const {
  constexpr size_t kGapsMin = 20;
  if (arrivals_.size() <= kGapsMin) return 1;
  const double gaps = static_cast<double>(arrivals_.size() - 1);
  const double mean = (arrivals_.back() - arrivals_.front()).seconds() / gaps;
  if (mean <= 0) return 1;
  double squares = 0;
  for (size_t i = 1; i < arrivals_.size(); ++i) {
    const double off = (arrivals_[i] - arrivals_[i - 1]).seconds() - mean;
    squares += off * off;
  }
  return squares / gaps / (mean * mean);
}

}  // namespace millrace::plan::spot
