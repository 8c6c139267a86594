#include "cluster/fleet/cost_meter.h"

#include "cost/link_model.h"

namespace millrace::cluster {
namespace {

constexpr double kSecondsPerHour = 3600;

}  // namespace

CostMeter::Slice& CostMeter::SliceAt(Time now) {
  while (!slices_.empty() && now - slices_.front().begin > kHour) slices_.pop_front();
  if (slices_.empty() || now - slices_.back().begin >= kSlice) slices_.push_back({.begin = now});
  return slices_.back();
}

double CostMeter::Pending(Time now) const {
  return charged_ ? usd_per_h_ * (now - *charged_).seconds() / kSecondsPerHour : 0;
}

void CostMeter::Charge(Time now) {
  const double usd = Pending(now);
  SliceAt(now).usd += usd;
  charged_ = now;
}

void CostMeter::AddTokens(int64_t tokens, Time now) { SliceAt(now).tokens += tokens; }

void CostMeter::SetUsdPerHour(double usd_per_h, Time now) {
  Charge(now);
  usd_per_h_ = usd_per_h;
}

double CostMeter::UsdOver(Duration span, Time now) const {
  double usd = Pending(now);
  for (const Slice& slice : slices_) {
    if (now - slice.begin <= span) usd += slice.usd;
  }
  return usd;
}

std::optional<double> CostMeter::UsdPerMillionTokensOver(Duration span, Time now) const {
  int64_t tokens = 0;
  for (const Slice& slice : slices_) {
    if (now - slice.begin <= span) tokens += slice.tokens;
  }
  if (tokens == 0) return std::nullopt;
  return cost::UsdPerMillionTokens(UsdOver(span, now) * kSecondsPerHour,
                                   static_cast<double>(tokens));
}

}  // namespace millrace::cluster
