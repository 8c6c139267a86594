#include "cluster/autopilot/autopilot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cluster/autopilot/plan_shape.h"

namespace millrace::cluster {
namespace {

constexpr double kSimilar = 0.25;  // loads that differ by less are the same to hysteresis
constexpr int kVerifyMost = 3;     // times `verify`, if there are few answers
constexpr Duration kRetry = Duration::Seconds(30);  // after a search that found nothing

double SecondsOf(Time time) { return (time - Time{}).seconds(); }

bool Similar(double a, double b) {
  return std::abs(std::log(std::max(a, 1e-6)) - std::log(std::max(b, 1e-6))) < std::log1p(kSimilar);
}

bool Similar(const MeasuredLoad& a, const MeasuredLoad& b) {
  return Similar(a.requests_per_s, b.requests_per_s) && Similar(a.prompt_tokens, b.prompt_tokens) &&
         Similar(a.output_tokens, b.output_tokens);
}

bool CanServe(const AutopilotView& view) {
  return std::ranges::any_of(view.members, [](const AutopilotView::Member& member) {
    return member.usable && !member.leaving;
  });
}

// That get layers; none: they are not known.
std::vector<std::string> WorkersOf(const PlanForecast& forecast) {
  return forecast.plan ? PlanWorkers(*forecast.plan) : std::vector<std::string>();
}

plan::ReplanOptions ShiftOptions(const AutopilotOptions& options) {
  return {.window_s = options.window.seconds(),
          .reference_windows = options.reference_windows,
          .confirm_windows = options.confirm_windows,
          .requests_min = options.requests_min};
}

}  // namespace

Autopilot::Autopilot(const AutopilotOptions& options, std::vector<Decision> decisions)
    : options_(options), meter_(options.limits), shift_(ShiftOptions(options)) {
  for (Decision& decision : decisions) {
    last_decision_ = std::max(last_decision_, decision.id);
    if (decision.outcome.empty() && decision.kind != DecisionKind::kKeep) {
      decision.outcome = "the controller restarted";
    }
    decisions_.push_back(std::move(decision));
  }
  while (decisions_.size() > AutopilotOptions::kDecisionsMax) decisions_.pop_front();
}

void Autopilot::Arrived(RequestId id, int prompt_tokens, Time now) {
  if (!started_) started_ = now;
  meter_.Arrived(id, prompt_tokens, now);
  const auto output = static_cast<int>(std::lround(meter_.MeanOutput(1)));
  NoteShift(shift_.Arrived(SecondsOf(now), prompt_tokens, output), now);
}

void Autopilot::Observe(const AutopilotView& view, Time now) {
  if (!started_) started_ = now;
  NoteMembers(view, now);
  view_ = view;
  const bool busy = phase_ == Phase::kSearching || phase_ == Phase::kChanging;
  if (view.serving || busy || !CanServe(view)) {
    idle_since_.reset();
  } else if (!idle_since_) {
    idle_since_ = now;  // for a moment while a plan comes into force
  } else if (now - *idle_since_ >= options_.settle) {
    Want({.cause = DecisionCause::kWorkersChanged,
          .why = "the plan in force serves no request",
          .urgent = true});
  }
  NoteShift(shift_.Tick(SecondsOf(now)), now);
  NoteFirstLoad(now);
  FollowChange(now);
  NoteLimits(now);
  MaybeSearch(now);
}

void Autopilot::TakeActions(std::vector<AutopilotAction>& actions) {
  for (AutopilotAction& action : actions_) actions.push_back(std::move(action));
  actions_.clear();
}

// ---- a search has ended

void Autopilot::SearchEnded(uint64_t id, SearchAnswer answer, Time now) {
  if (phase_ != Phase::kSearching || id != last_search_) return;
  phase_ = Phase::kWatching;
  if (wanted_ && wanted_->urgent) {  // it planned with workers that are gone
    std::erase_if(answer.found, [&](const auto& plan) { return !AllMayServe(WorkersOf(plan)); });
    if (answer.found.empty()) return;
  }
  Decision decision = std::exchange(searching_, {});
  decision.search_s = answer.seconds;
  decision.current = std::move(answer.current);
  if (!answer.status.ok()) {
    return FoundNothing(std::move(decision), "no plan was found: " + answer.status.message(), now);
  }
  for (PlanForecast& plan : answer.found) {
    if (decision.candidates.size() == AutopilotOptions::kCandidatesKept) break;
    if (worse_.contains(plan.shape)) continue;
    if (!decision.candidates.empty()) plan.plan.reset();  // only the best may be applied
    decision.candidates.push_back(std::move(plan));
  }
  if (decision.candidates.empty()) {
    return FoundNothing(std::move(decision), "every plan that was found has already failed here",
                        now);
  }
  Decide(searching_for_, std::move(decision), now);
}

// The cluster goes on with what it has. It is said once.
void Autopilot::FoundNothing(Decision decision, std::string reason, Time now) {
  retry_at_ = now + kRetry;
  if (!decisions_.empty() && decisions_.back().reason == reason) return;
  decision.kind = DecisionKind::kKeep;
  decision.reason = std::move(reason);
  Record(std::move(decision));
}

double Autopilot::ValueOf(const std::optional<PlanForecast>& plan, double requests_per_s) const {
  return plan ? std::min(requests_per_s, plan->requests_per_s) : 0;
}

void Autopilot::Decide(const Cause& cause, Decision decision, Time now) {
  const std::optional<std::string> stay = WhyStay(cause, decision, now);
  if (stay) {
    decision.kind = DecisionKind::kKeep;
    decision.reason = *stay;
    Record(std::move(decision));
    return;
  }
  const PlanForecast best = decision.candidates.front();
  decision.reason = fmt::format(
      "{} answers {:.3g} requests/s more; over {:.0f} s that is {:.0f} requests, and the change "
      "delays {:.0f}",
      best.shape, decision.gain_per_s, options_.horizon.seconds(),
      decision.gain_per_s * options_.horizon.seconds(), decision.cost_requests);
  const MeasuredLoad load = decision.load;
  if (options_.mode == AutopilotMode::kAdvise) {
    decision.kind = DecisionKind::kAdvise;
    decision.epoch = view_->epoch;
    Record(std::move(decision));
    return;
  }
  decision.kind = DecisionKind::kChange;
  const uint64_t id = Record(std::move(decision));
  Order({.decision = id,
         .from_shape = view_->shape,
         .to_shape = best.shape,
         .from_plan = view_->plan,
         .workers = WorkersOf(best),
         .load = load},
        best.plan, now);
}

std::optional<std::string> Autopilot::WhyStay(const Cause& cause, Decision& decision, Time now) {
  const PlanForecast& best = decision.candidates.front();
  const double rate = decision.load.requests_per_s * options_.headroom;
  const double now_per_s = view_->serving ? ValueOf(decision.current, rate) : 0;
  if (view_->serving && now_per_s >= rate) {
    return fmt::format("the plan in force carries {:.3g} requests/s, {:g} times the load", rate,
                       options_.headroom);
  }
  if (view_->serving && best.shape == view_->shape) return "the plan in force is the best found";
  decision.gain_per_s = ValueOf(best, rate) - now_per_s;
  decision.cost_requests =
      decision.load.requests_per_s * stall_.value_or(options_.stall_guess).seconds();
  if (!view_->serving) return std::nullopt;  // any plan is better
  if (decision.gain_per_s <= options_.gain_min * now_per_s) {
    return fmt::format(
        "the best plan found answers {:.3g} of {:.3g} requests/s and the one in force {:.3g}; a "
        "change needs {:.0f} % more",
        now_per_s + decision.gain_per_s, rate, now_per_s, 100 * options_.gain_min);
  }
  if (decision.gain_per_s * options_.horizon.seconds() <= decision.cost_requests) {
    return fmt::format(
        "over {:.0f} s the best plan answers {:.0f} requests more, but the change "
        "delays {:.0f}",
        options_.horizon.seconds(), decision.gain_per_s * options_.horizon.seconds(),
        decision.cost_requests);
  }
  if (cause.urgent || !last_change_) return std::nullopt;
  const Time earliest = *last_change_ + DwellBefore(best, decision.load);
  if (now >= earliest) return std::nullopt;
  not_before_ = earliest;
  Want(cause);
  return fmt::format(
      "{} would be better, but the last change was {:.0f} s ago: searching again "
      "in {:.0f} s",
      best.shape, (now - *last_change_).seconds(), (earliest - now).seconds());
}

// A return to what was before the last change waits longer each time.
Duration Autopilot::DwellBefore(const PlanForecast& to, const MeasuredLoad& load) const {
  if (to.shape != shape_before_ && !Similar(load, load_before_)) return options_.dwell;
  Duration dwell = options_.dwell;
  for (int i = 0; i <= returns_ && dwell < options_.dwell_max; ++i) {
    dwell = Duration{dwell.ns * options_.return_factor};
  }
  return std::min(dwell, options_.dwell_max);
}

// ---- a change

void Autopilot::Order(Change change, std::shared_ptr<const WorkerPlan> plan, Time now) {
  change.ordered = now;
  change_ = std::move(change);
  phase_ = Phase::kChanging;
  meter_.TakeLongestSilence(now);
  actions_.push_back(ApplyPlan{std::move(plan)});
}

void Autopilot::ApplyEnded(const Result<int64_t>& epoch) {
  if (phase_ != Phase::kChanging || change_->epoch) return;
  if (!epoch.ok()) return GivenUp(epoch.status().message());
  change_->epoch = *epoch;
  if (Decision* decision = Find(change_->decision)) decision->epoch = *epoch;
}

void Autopilot::FollowChange(Time now) {
  if (!change_ || !change_->epoch) return;
  const bool in_force = view_->epoch == *change_->epoch;
  if (phase_ == Phase::kVerifying) {
    return in_force ? Verify(now) : EndChange("not verified: another plan came into force");
  }
  if (in_force) return PutInForce(now);
  if (view_->given_up == change_->epoch) return GivenUp(view_->given_up_reason);
  if (!view_->changing || view_->epoch > *change_->epoch) {
    EndChange("another plan took its place");
  }
}

void Autopilot::GivenUp(const std::string& why) {
  worse_.insert(change_->to_shape);  // until the workers change, it would be given up again
  EndChange("given up: " + why);
}

void Autopilot::PutInForce(Time now) {
  const bool back = change_->to_shape == shape_before_ || Similar(change_->load, load_before_);
  returns_ = last_change_ && back ? returns_ + 1 : 0;
  shape_before_ = change_->from_shape;
  load_before_ = std::exchange(load_now_, change_->load);
  last_change_ = change_->in_force = now;
  stall_ = meter_.TakeLongestSilence(now);
  if (change_->rolls_back) {
    return EndChange(fmt::format("in force after {:.1f} s", (now - change_->ordered).seconds()));
  }
  change_->verify_at = now + options_.verify;
  phase_ = Phase::kVerifying;
}

// The share of the requests that get a good answer; without limits, any answer.
double Autopilot::GoodShare(const MeasuredService& service, const MeasuredLoad& load) const {
  if (options_.limits.any()) return service.attainment();
  if (load.requests_per_s <= 0) return 1;
  return std::min(1.0, service.answers_per_s / load.requests_per_s);
}

double Autopilot::ForecastShare(const PlanForecast& plan, const MeasuredLoad& load) const {
  return load.requests_per_s > 0 ? std::min(1.0, plan.requests_per_s / load.requests_per_s) : 1;
}

// Judges the requests that arrived in the second half of the time, because the new plan begins with
// the queue of the old one. A forecast that is missed gets more time.
void Autopilot::Verify(Time now) {
  if (now < change_->verify_at) return;
  const Duration since = now - change_->in_force;
  const bool last = since >= Duration{options_.verify.ns * kVerifyMost};
  const Time begin{now.ns - options_.verify.ns / 2};
  const MeasuredService service = meter_.Service(begin, now, begin);
  const bool few = std::cmp_less(service.answers, options_.requests_min);
  change_->verify_at = now + options_.verify;
  Decision* decision = Find(change_->decision);
  if (few && !last && decision != nullptr) return;
  if (few || decision == nullptr) return EndChange("not verified: too few answers");
  decision->after = service;
  const double forecast = ForecastShare(decision->candidates.front(), decision->load);
  const double measured = GoodShare(service, meter_.Load(begin, now));
  const bool known =
      decision->before && std::cmp_greater_equal(decision->before->answers, options_.requests_min);
  const double before = known ? GoodShare(*decision->before, decision->load) : 0;
  const std::string figures =
      fmt::format("{:.0f} % good answers, {:.0f} % were forecast and {} before", 100 * measured,
                  100 * forecast, known ? fmt::format("{:.0f} %", 100 * before) : "unknown");
  if (measured >= forecast - options_.margin) return EndChange("verified: " + figures);
  if (known && measured < before - options_.margin && change_->from_plan != nullptr) {
    return RollBack(figures, now);
  }
  if (!last) return;
  EndChange("forecast missed: " + figures);
  Want({.cause = DecisionCause::kForecastMissed, .why = figures});
}

void Autopilot::EndChange(std::string outcome) {
  Conclude(change_->decision, std::move(outcome));
  change_.reset();
  phase_ = Phase::kWatching;
}

void Autopilot::RollBack(const std::string& why, Time now) {
  Change change = *std::exchange(change_, std::nullopt);
  Conclude(change.decision, "rolled back: " + why);
  worse_.insert(change.to_shape);
  Decision decision{.cause = DecisionCause::kForecastMissed,
                    .why = why,
                    .kind = DecisionKind::kRollBack,
                    .reason = "back to " + change.from_shape,
                    .load = change.load};
  const uint64_t id = Record(std::move(decision));
  Order({.decision = id,
         .from_shape = change.to_shape,
         .to_shape = change.from_shape,
         .load = change.load,
         .rolls_back = true},
        change.from_plan, now);
}

// ---- the record

uint64_t Autopilot::Record(Decision decision) {
  decision.id = ++last_decision_;
  decision.at_unix_s = view_->unix_s;
  actions_.push_back(DecisionMade{decision});
  decisions_.push_back(std::move(decision));
  if (decisions_.size() > AutopilotOptions::kDecisionsMax) decisions_.pop_front();
  return last_decision_;
}

Decision* Autopilot::Find(uint64_t id) {
  const auto found = std::ranges::find(decisions_, id, &Decision::id);
  return found == decisions_.end() ? nullptr : &*found;
}

void Autopilot::Conclude(uint64_t id, std::string outcome) {
  Decision* decision = Find(id);
  if (decision == nullptr) return;
  decision->outcome = std::move(outcome);
  actions_.push_back(DecisionMade{*decision});
}

const Decision* Autopilot::advice() const {
  if (decisions_.empty() || !view_) return nullptr;
  const Decision& last = decisions_.back();
  const bool valid = last.kind == DecisionKind::kAdvise && last.epoch == view_->epoch;
  return valid ? &last : nullptr;
}

std::string_view Autopilot::state() const {
  switch (phase_) {
    case Phase::kWatching: return "watching";
    case Phase::kSearching: return "searching";
    case Phase::kChanging: return "changing";
    case Phase::kVerifying: return "verifying";
  }
  return "?";
}

MeasuredLoad Autopilot::RecentLoad(Time now) const {
  return started_ ? meter_.Load(LoadSince(now), now) : MeasuredLoad{};
}

MeasuredService Autopilot::RecentService(Time now) const {
  return started_ ? meter_.Service(LoadSince(now), now) : MeasuredService{};
}

}  // namespace millrace::cluster
