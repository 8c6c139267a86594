#include "cluster/fleet/fleet_decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace millrace::cluster {
namespace {

constexpr double kReleaseMargin = 0.15;  // what is left must carry so much more than the need
constexpr double kSwapGain = 0.1;        // a cheaper mix must save this share
constexpr double kSwapStep = 1e-6;       // of the rate: less than one machine
constexpr int kTogether = 4;             // at most a quarter of the machines changes at once
constexpr Duration kAskLateEvery = Duration::Seconds(60);  // at least, for kinds that are late
constexpr Duration kLostRecently = Duration::Seconds(60);

std::string ShortageText(MixShortage shortage) {
  switch (shortage) {
    case MixShortage::kNone: break;
    case MixShortage::kLimits: return "every kind that can be had is at its max";
    case MixShortage::kBudget: return "another machine would cost more than the budget";
    case MixShortage::kPrice:
      return "the other machines have no price, so the budget could not be kept: give price";
  }
  return "";
}

}  // namespace

FleetDecision::FleetDecision(const FleetSpec& spec, const FleetClock& clock,
                             FleetMachines& machines, FleetOutbox& outbox)
    : spec_(spec),
      clock_(clock),
      machines_(machines),
      outbox_(outbox),
      missing_(spec.kinds.size(), 0) {}

void FleetDecision::Decide(double load_per_s, double capacity_factor) {
  if (!machines_.Known()) return;
  load_per_s_ = load_per_s;
  factor_ = capacity_factor;
  machines_.FollowDesired();
  for (size_t k = 0; k < spec_.kinds.size(); ++k) ReturnSurplus(k);
  KeepBudget();
  const MixNeed need{.requests_per_s = load_per_s_ * spec_.headroom,
                     .spares = spec_.spares,
                     .budget_usd_per_h = spec_.budget_usd_per_h};
  MixNeed left = need;  // by machines that stay
  left.requests_per_s *= 1 + kReleaseMargin;
  Add(need);
  Swap(left);
  Shrink(left);
}

// ---- more machines

// A kind whose machines are late is asked for more only if no other kind can take its place. Where
// there is nobody to ask, what is wanted has been logged.
MixAnswer FleetDecision::WhatToAdd(const MixNeed& need) const {
  std::vector<KindStanding> kinds = machines_.Standings(factor_);
  std::vector<KindStanding> in_time = kinds;
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (machines_.Count(k).late == 0) continue;
    in_time[k].obtainable = false;
    const Duration pause = std::max(spec_.kinds[k].startup, kAskLateEvery);
    const bool again = spec_.kinds[k].provider != FleetProvider::kNone &&
                       (!machines_.asked(k) || clock_.now() - *machines_.asked(k) >= pause);
    kinds[k].obtainable = kinds[k].obtainable && again;
  }
  MixAnswer add = MachinesToAdd(in_time, need);
  return add.shortage == MixShortage::kNone ? add : MachinesToAdd(kinds, need);
}

void FleetDecision::Add(const MixNeed& need) {
  const std::vector<KindStanding> kinds = machines_.Standings(factor_);
  const MixAnswer add = WhatToAdd(need);
  const MixShortage before = std::exchange(shortage_, add.shortage);
  std::fill(missing_.begin(), missing_.end(), 0);
  bool late = false;
  for (size_t k = 0; k < kinds.size(); ++k) {
    late = late || machines_.Count(k).late > 0 || machines_.AcquireFails(k);
  }
  const std::optional<Time> lost_at = machines_.last_lost();
  const bool lost = lost_at && clock_.now() - *lost_at <= kLostRecently;
  const std::string why = fmt::format(
      "the load is {:.3g} requests/s, {:.3g} with headroom, and the machines that serve answer "
      "{:.3g}",
      load_per_s_, need.requests_per_s, machines_.NominalRate() * factor_);
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (add.machines[k] == 0) continue;
    if (machines_.HasOrder(k)) {  // one at a time
      missing_[k] = add.machines[k];
      continue;
    }
    const FleetCause cause = kinds[k].counted < kinds[k].min ? FleetCause::kMinimum
                             : lost                          ? FleetCause::kMachinesLost
                             : late                          ? FleetCause::kLate
                                                             : FleetCause::kLoad;
    Ask(k, add.machines[k], cause, why);
  }
  if (add.shortage == MixShortage::kNone) return;
  // What would be asked for if every provider did what it is asked, in time.
  std::vector<KindStanding> all = machines_.Standings(factor_);
  for (size_t k = 0; k < all.size(); ++k) {
    all[k].obtainable = true;
    all[k].counted += machines_.Count(k).late;
  }
  missing_ = MachinesToAdd(all, need).machines;
  const bool fails = std::reduce(missing_.begin(), missing_.end()) > 0;  // and that was logged
  if (before != MixShortage::kNone || fails) return;
  outbox_.Log(FleetCause::kLoad,
              fmt::format("the load of {:.3g} requests/s needs more machines, but {}", load_per_s_,
                          ShortageText(add.shortage)));
}

void FleetDecision::Ask(size_t k, int count, FleetCause cause, const std::string& why) {
  outbox_.Log(cause, fmt::format("asks for {} {}: {}", count, spec_.kinds[k].name, why));
  last_change_ = clock_.now();
  machines_.Ask(k, count);
}

// The machines of a cheaper mix that let one machine go which that mix does not have. None: there
// is no such mix, or no room for both within the limits and the budget.
std::vector<int> FleetDecision::Replacement(const MixNeed& left) const {
  std::vector<KindStanding> kinds = machines_.Standings(factor_);
  std::vector<int> more(kinds.size(), 0);
  const MixAnswer best = CheapestMix(kinds, left);
  if (best.shortage != MixShortage::kNone) return {};
  std::vector<KindStanding> then = kinds;
  for (size_t k = 0; k < kinds.size(); ++k) then[k].counted = best.machines[k];
  const double usd = CountedUsdPerHour(kinds);
  if (usd - CountedUsdPerHour(then) < kSwapGain * usd || usd == 0) return {};
  while (true) {
    const std::optional<size_t> goes = KindToRelease(kinds, left);
    if (goes && kinds[*goes].counted > best.machines[*goes]) return more;
    // The next one of the cheaper mix: what would be added if more were needed.
    std::vector<KindStanding> of_best = kinds;
    double rate = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      rate += kinds[k].counted * kinds[k].requests_per_s;
      const bool wants = kinds[k].obtainable && kinds[k].counted < best.machines[k];
      if (!wants) of_best[k].obtainable = false;
    }
    const MixNeed one_more{.requests_per_s = rate * (1 + kSwapStep),
                           .budget_usd_per_h = left.budget_usd_per_h};
    const std::vector<int> add = MachinesToAdd(of_best, one_more).machines;
    const auto next = std::ranges::find_if(add, [](int count) { return count > 0; });
    if (next == add.end()) return {};
    const auto k = static_cast<size_t>(next - add.begin());
    ++more[k];
    ++kinds[k].counted;
    ++kinds[k].committed;
  }
}

// Acquires machines of a cheaper mix, if it has been cheaper for the cool-down and nothing else is
// under way. A dearer machine is released once these serve.
void FleetDecision::Swap(const MixNeed& left) {
  bool busy = machines_.HasOrders() || shortage_ != MixShortage::kNone;
  for (size_t k = 0; k < spec_.kinds.size(); ++k) {
    const FleetKindStatus have = machines_.Count(k);
    busy = busy || have.on_order > 0 || have.draining > 0 || !have.usd_per_h;
  }
  const std::vector<int> more = busy ? std::vector<int>() : Replacement(left);
  if (more.empty()) return swap_since_.reset();
  if (!swap_since_) swap_since_ = clock_.now();
  if (clock_.now() - *swap_since_ < spec_.cool_down ||
      clock_.now() - LastChange() < spec_.cool_down)
    return;
  const std::optional<Time> priced = machines_.price_changed();
  const bool changed = priced && *swap_since_ - *priced <= spec_.cool_down;
  swap_since_.reset();
  const std::string why =
      fmt::format("the machines cost {:.4g} USD/h, and others that carry the load cost less",
                  CountedUsdPerHour(machines_.Standings(factor_)));
  for (size_t k = 0; k < spec_.kinds.size(); ++k) {
    if (more[k] == 0) continue;
    Ask(k, more[k], changed ? FleetCause::kPriceChanged : FleetCause::kCheaper, why);
  }
}

// ---- fewer machines

bool FleetDecision::MayDrain() const {
  int serving = 0, draining = 0;
  for (size_t k = 0; k < spec_.kinds.size(); ++k) {
    const FleetKindStatus have = machines_.Count(k);
    serving += have.serving;
    draining += have.draining;
  }
  return draining < std::max(1, serving / kTogether);
}

// Machines beyond the kind's maximum go at once. Those that are only more than were asked for count
// as any others.
void FleetDecision::ReturnSurplus(size_t k) {
  if (spec_.kinds[k].provider == FleetProvider::kNone) return;
  const FleetKindStatus have = machines_.Count(k);
  if (have.serving + have.on_order <= spec_.kinds[k].max || !MayDrain()) return;
  machines_.Release(k, FleetCause::kOverDelivered,
                    fmt::format("there are {}, and at most {} may be", have.serving + have.on_order,
                                spec_.kinds[k].max));
}

void FleetDecision::KeepBudget() {
  if (!spec_.budget_usd_per_h) return;
  const std::vector<KindStanding> kinds = machines_.Standings(factor_);
  // What drains costs less soon.
  std::vector<KindStanding> staying = kinds;
  for (size_t k = 0; k < kinds.size(); ++k) {
    const FleetKindStatus have = machines_.Count(k);
    staying[k].committed = staying[k].counted = have.serving + have.on_order;
    if (machines_.Settling(k)) staying[k].min = staying[k].counted;
  }
  const double usd = CommittedUsdPerHour(staying);
  if (usd <= *spec_.budget_usd_per_h * (1 + 1e-9)) {
    over_budget_logged_ = false;
    return;
  }
  if (!MayDrain()) return;
  const std::string why = fmt::format("the machines cost {:.4g} USD/h, and the budget is {:.4g}",
                                      usd, *spec_.budget_usd_per_h);
  for (auto dearest = DearestKind(staying); dearest; dearest = DearestKind(staying)) {
    if (machines_.Release(*dearest, FleetCause::kBudget, why)) return;
    staying[*dearest].counted = 0;
  }
  if (std::exchange(over_budget_logged_, true)) return;
  outbox_.Log(FleetCause::kBudget, why + "; the minimum of each kind stays");
}

// Gives back a machine whose worker has not joined, if the others carry the load without it.
bool FleetDecision::CancelOrder(const MixNeed& left) {
  for (size_t k = 0; k < spec_.kinds.size(); ++k) {
    if (spec_.kinds[k].provider == FleetProvider::kNone) continue;
    const FleetKindStatus have = machines_.Count(k);
    if (have.on_order == 0 || have.serving + have.on_order <= spec_.kinds[k].min) continue;
    std::vector<KindStanding> without = machines_.Standings(factor_);
    without[k].counted -= have.late == have.on_order ? 0 : 1;
    if (!machines_.ReleasesAbsent(k)) continue;
    if (!Carries(without, left)) continue;
    return machines_.Release(k, FleetCause::kLoad, "its worker has not joined, and is not needed");
  }
  return false;
}

// Releases what is not needed. The load is at least the mean over the cool-down, so that a short
// pause releases nothing.
void FleetDecision::Shrink(const MixNeed& left) {
  if (machines_.HasOrders() || clock_.now() - LastChange() < spec_.cool_down) return;
  if (CancelOrder(left)) {
    last_change_ = clock_.now();
    return;
  }
  std::vector<KindStanding> kinds = machines_.Standings(factor_);
  int serving = 0;
  for (size_t k = 0; k < kinds.size(); ++k) {
    kinds[k].counted = machines_.Count(k).serving;
    if (machines_.Settling(k)) kinds[k].min = kinds[k].counted;
    serving += kinds[k].counted;
  }
  const std::string why = fmt::format(
      "the load is {:.3g} requests/s, and the others carry it with headroom", load_per_s_);
  for (int i = 0; i < std::max(1, serving / kTogether); ++i) {
    const std::optional<size_t> kind = KindToRelease(kinds, left);
    if (!kind || !MayDrain()) return;
    if (machines_.Release(*kind, FleetCause::kLoad, why)) {
      --kinds[*kind].counted;
      last_change_ = clock_.now();
    } else {
      kinds[*kind].min = kinds[*kind].counted;
    }
  }
}

}  // namespace millrace::cluster
