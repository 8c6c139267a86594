// Autopilot: what calls for a search.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cluster/autopilot/autopilot.h"

namespace millrace::cluster {
namespace {

constexpr Duration kLoadSpan = Duration::Seconds(60);  // over which a steady load is measured
constexpr Duration kLimitsSpan = Duration::Seconds(30);

Time Before(Time now, Duration span) { return {now.ns - span.ns}; }

const AutopilotView::Member* FindMember(const AutopilotView& view, const std::string& name) {
  const auto found = std::ranges::find(view.members, name, &AutopilotView::Member::name);
  return found == view.members.end() ? nullptr : &*found;
}

std::string Listed(const char* what, const std::vector<std::string>& names) {
  constexpr size_t kNamed = 5;
  if (names.size() > kNamed) return fmt::format("{} {} workers", what, names.size());
  return fmt::format("{} {}", what, fmt::join(names, ", "));
}

bool MayServe(const AutopilotView::Member* member) {
  return member != nullptr && member->usable && !member->leaving;
}

}  // namespace

void Autopilot::Want(Cause cause) {
  if (wanted_ && (wanted_->urgent || !cause.urgent)) return;  // the first cause is as good
  wanted_ = std::move(cause);
}

bool Autopilot::AllMayServe(const std::vector<std::string>& workers) const {
  return !workers.empty() && std::ranges::all_of(workers, [&](const std::string& name) {
    return MayServe(FindMember(*view_, name));
  });
}

// Compares the workers with those of the last view.
void Autopilot::NoteMembers(const AutopilotView& view, Time now) {
  if (!view_) return;
  std::vector<std::string> joined, lost, leaving;
  for (const AutopilotView::Member& member : view.members) {
    const auto* before = FindMember(*view_, member.name);
    if (MayServe(&member) && !MayServe(before)) joined.push_back(member.name);
    if (!MayServe(&member) && MayServe(before)) {
      (member.leaving ? leaving : lost).push_back(member.name);
    }
  }
  for (const AutopilotView::Member& member : view_->members) {
    if (MayServe(&member) && FindMember(view, member.name) == nullptr) lost.push_back(member.name);
  }
  if (joined.empty() && lost.empty() && leaving.empty()) return;
  members_changed_ = now;
  worse_.clear();
  retry_at_.reset();
  std::vector<std::string> parts;
  if (!lost.empty()) parts.push_back(Listed("lost", lost));
  if (!leaving.empty()) parts.push_back(Listed("must give up", leaving));
  if (!joined.empty()) parts.push_back(Listed("gained", joined));
  Want({.cause = lost.empty() && !leaving.empty() ? DecisionCause::kNotice
                                                  : DecisionCause::kWorkersChanged,
        .why = fmt::format("the cluster {}", fmt::join(parts, ", ")),
        .urgent = !lost.empty() || !leaving.empty()});
}

void Autopilot::NoteShift(const std::optional<plan::ReplanReason>& shift, Time now) {
  if (!shift) return;
  // The first of the windows may hold requests from before the shift.
  const int windows = std::max(1, options_.confirm_windows - 1);
  level_since_ = Before(now, Duration{options_.window.ns * windows});
  Want({.cause = DecisionCause::kLoadShifted, .why = shift->ToString()});
}

void Autopilot::NoteFirstLoad(Time now) {
  if (known_load_ || now - *started_ < Duration{options_.window.ns * options_.reference_windows}) {
    return;
  }
  const MeasuredLoad load = meter_.Load(LoadSince(now), now);
  if (std::cmp_less(load.requests, options_.requests_min) || load.output_tokens == 0) return;
  known_load_ = true;
  Want({.cause = DecisionCause::kStart,
        .why = fmt::format("{:.3g} requests/s, prompts of {:.0f} tokens, answers of {:.0f}",
                           load.requests_per_s, load.prompt_tokens, load.output_tokens)});
}

void Autopilot::NoteLimits(Time now) {
  if (!options_.limits.any() || phase_ != Phase::kWatching || !known_load_) return;
  if (limits_searched_ && now - *limits_searched_ < options_.dwell) return;
  if (last_change_ && now - *last_change_ < kLimitsSpan) return;
  const MeasuredService service = meter_.Service(Before(now, kLimitsSpan), now);
  if (std::cmp_less(service.answers, options_.requests_min) ||
      service.attainment() >= options_.limits.share()) {
    return;
  }
  limits_searched_ = now;
  Want({.cause = DecisionCause::kLimitsMissed,
        .why = fmt::format("{:.0f} % of {} answers kept the limits in {:.0f} s, {:.0f} % should",
                           100 * service.attainment(), service.answers, kLimitsSpan.seconds(),
                           100 * options_.limits.share())});
}

Time Autopilot::LoadSince(Time now) const {
  return std::max({level_since_, *started_, Before(now, kLoadSpan)});
}

void Autopilot::MaybeSearch(Time now) {
  if (!wanted_ || phase_ == Phase::kSearching) return;
  // A change that waits for a worker that is gone would wait for ever. Any other one is the soonest
  // way to a plan for those who are left, and a cluster that often loses workers must get there.
  const bool busy = change_.has_value() || view_->changing;
  if (busy && !wanted_->urgent) return;
  if (phase_ == Phase::kChanging && AllMayServe(change_->workers)) return;
  if (members_changed_ && now - *members_changed_ < options_.settle) return;
  if (retry_at_ && now < *retry_at_) return;
  if (!wanted_->urgent && not_before_ && now < *not_before_) return;
  const MeasuredLoad load = meter_.Load(LoadSince(now), now);
  // Without requests every plan is as good, if only it serves.
  if (view_->serving && (load.requests == 0 || load.output_tokens == 0)) return;
  if (change_) EndChange("overtaken: " + wanted_->why);
  searching_for_ = *std::exchange(wanted_, std::nullopt);
  searching_ = {};
  searching_.cause = searching_for_.cause;
  searching_.why = searching_for_.why;
  searching_.load = load;
  searching_.workers = static_cast<int>(
      std::ranges::count_if(view_->members, [](const auto& member) { return MayServe(&member); }));
  searching_.before = meter_.Service(std::max(LoadSince(now), Before(now, kLimitsSpan)), now);
  phase_ = Phase::kSearching;
  actions_.push_back(
      StartSearch{.id = ++last_search_,
                  .load = load,
                  .planned_requests_per_s = load.requests_per_s * options_.headroom,
                  .lengths = meter_.Lengths(AutopilotOptions::kLengthsMax, level_since_)});
}

}  // namespace millrace::cluster
