// CostMeter: what a cluster costs and computes: USD per hour, and USD per million tokens, now and
// over the last hour. Tokens are those of prompts and of answers, as in SpotServe's evaluation
// (section 6.1).
//
// Owned by Fleet. Pure: times are arguments and never go back. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace millrace::cluster {

class CostMeter {
 public:
  static constexpr Duration kNow = Duration::Seconds(60);     // what "now" is measured over
  static constexpr Duration kHour = Duration::Seconds(3600);  // what is kept

  void AddTokens(int64_t tokens, Time now);
  // From now on the cluster costs so much.
  void SetUsdPerHour(double usd_per_h, Time now);

  double usd_per_h() const { return usd_per_h_; }
  double UsdOver(Duration span, Time now) const;  // at most kHour
  // nullopt: no token was computed in that time.
  std::optional<double> UsdPerMillionTokensOver(Duration span, Time now) const;

 private:
  // What happened in one slice of time.
  struct Slice {
    Time begin;
    double usd = 0;
    int64_t tokens = 0;
  };
  static constexpr Duration kSlice = Duration::Seconds(10);

  Slice& SliceAt(Time now);
  void Charge(Time now);
  double Pending(Time now) const;  // USD since the last charge

  std::deque<Slice> slices_;
  double usd_per_h_ = 0;
  std::optional<Time> charged_;  // until then
};

}  // namespace millrace::cluster
