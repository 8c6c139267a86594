// Fleet: what happens, what is counted, and the status.
#include "cluster/fleet/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::cluster {
namespace {

constexpr Duration kRateWindow = Duration::Seconds(30);

plan::spot::RateMeter::Options RateOptions(Duration cool_down) {
  plan::spot::RateMeter::Options options;
  options.short_window = std::min(kRateWindow, cool_down);
  options.long_window = cool_down;
  return options;
}

CapacityOptions CapacityOptionsOf(const LatencyLimits& limits) {
  CapacityOptions options;
  options.share = limits.any() ? limits.share() : 0;
  return options;
}

}  // namespace

std::string_view FleetCauseName(FleetCause cause) {
  switch (cause) {
    case FleetCause::kMinimum: return "minimum";
    case FleetCause::kLoad: return "load";
    case FleetCause::kMachinesLost: return "machines lost";
    case FleetCause::kLate: return "machines late";
    case FleetCause::kPriceChanged: return "price changed";
    case FleetCause::kCheaper: return "cheaper mix";
    case FleetCause::kBudget: return "budget";
    case FleetCause::kOverDelivered: return "over-delivered";
    case FleetCause::kProvider: return "provider";
  }
  return "?";
}

Fleet::Fleet(FleetSpec spec, const LatencyLimits& limits)
    : spec_(std::move(spec)),
      kinds_(spec_.kinds.size()),
      meter_(limits),
      rate_(RateOptions(spec_.cool_down)),
      capacity_(CapacityOptionsOf(limits)),
      missing_(spec_.kinds.size(), 0) {
  for (size_t k = 0; k < kinds_.size(); ++k) kinds_[k].desired = spec_.kinds[k].min;
}

// The fleet's own time: it goes on with the caller's, without jumps.
Time Fleet::Pass(Time now) {
  const Duration step = last_seen_ ? now - *last_seen_ : Duration{};
  last_seen_ = now;
  now_ = now_ + std::clamp(step, Duration{}, kStepMax);
  return now_;
}

void Fleet::Arrived(RequestId id, int prompt_tokens, Time now) {
  Pass(now);
  meter_.Arrived(id, prompt_tokens, now_);
  rate_.Arrive(now_);
  cost_.AddTokens(prompt_tokens, now_);
}

void Fleet::Heard(const RequestOutput& output, Time now) {
  Pass(now);
  meter_.Heard(output, now_);
  if (!output.tokens.empty()) cost_.AddTokens(std::ssize(output.tokens), now_);
}

void Fleet::Observe(const FleetView& view, Time now) {
  Pass(now);
  if (!std::exchange(observed_, true)) started_ = last_change_ = now_;
  for (const FleetMember& member : view.members) {
    const FleetMember* before = FindMember(member.worker);
    if (!member.under_notice || before == nullptr || before->under_notice) continue;
    last_lost_ = now_;
  }
  view_ = view;
  member_at_.clear();
  for (size_t i = 0; i < view_.members.size(); ++i) member_at_.emplace(view_.members[i].worker, i);
  for (size_t k = 0; k < kinds_.size(); ++k) Follow(k);
  MapWorkers();
  Charge();
  Judge();
  load_per_s_ = rate_.RequestsPerSecond(now_, view_.waiting);
  Decide();
  for (size_t k = 0; k < kinds_.size(); ++k) SendReleases(k);
}

void Fleet::TakeActions(std::vector<FleetAction>& actions) {
  for (FleetAction& action : actions_) actions.push_back(std::move(action));
  actions_.clear();
}

void Fleet::Log(FleetCause cause, std::string text) {
  FleetEvent event{.at_unix_s = view_.unix_s, .cause = cause, .text = std::move(text)};
  actions_.push_back(FleetLogged{event});
  events_.push_back(std::move(event));
  if (events_.size() > kEventsMax) events_.pop_front();
}

const FleetMember* Fleet::FindMember(const std::string& worker) const {
  const auto found = member_at_.find(worker);
  return found == member_at_.end() ? nullptr : &view_.members[found->second];
}

void Fleet::MapWorkers() {
  machine_kind_.clear();
  member_kind_.clear();
  for (size_t k = 0; k < kinds_.size(); ++k) {
    for (const Machine& machine : kinds_[k].machines) machine_kind_.emplace(machine.worker, k);
  }
  for (const FleetMember& member : view_.members) {
    std::optional<size_t> kind;
    if (const auto found = machine_kind_.find(member.worker); found != machine_kind_.end()) {
      kind = found->second;
    }
    for (size_t k = 0; k < kinds_.size() && !machine_kind_.contains(member.worker); ++k) {
      const std::string& begin = spec_.kinds[k].workers;
      const bool longer = !kind || begin.size() > spec_.kinds[*kind].workers.size();
      if (longer && member.worker.starts_with(begin)) kind = k;
    }
    if (kind) member_kind_.emplace(member.worker, *kind);
  }
}

std::optional<size_t> Fleet::KindOf(const FleetMember& member) const {
  const auto found = member_kind_.find(member.worker);
  return found == member_kind_.end() ? std::nullopt : std::optional(found->second);
}

// What the provider says, else the file, else what the workers of that kind were told.
std::optional<double> Fleet::PriceOf(size_t kind) const {
  if (kinds_[kind].said_usd_per_h) return kinds_[kind].said_usd_per_h;
  if (spec_.kinds[kind].usd_per_h) return spec_.kinds[kind].usd_per_h;
  for (const FleetMember& member : view_.members) {
    if (member.usd_per_h && KindOf(member) == kind) return member.usd_per_h;
  }
  return std::nullopt;
}

FleetKindStatus Fleet::CountKind(size_t k) const {
  const Kind& kind = kinds_[k];
  const Duration startup = spec_.kinds[k].startup;
  FleetKindStatus status{.usd_per_h = PriceOf(k)};
  const auto on_order = [&](Time since, int count) {
    status.on_order += count;
    if (now_ - since > startup) status.late += count;
  };
  const auto count = [&](const FleetMember& member) {
    ++(member.under_notice ? status.leaving : member.draining ? status.draining : status.serving);
  };
  for (const Machine& machine : kind.machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held != Held::kInUse) {
      ++status.draining;
    } else if (member == nullptr || (!member->usable && !member->under_notice)) {
      on_order(machine.absent_since, 1);
    } else {
      count(*member);
    }
  }
  for (const FleetMember& member : view_.members) {  // of which no provider knows
    const bool listed = machine_kind_.contains(member.worker);
    if (!listed && KindOf(member) == k && member.usable) count(member);
  }
  for (const Order& order : orders_) {
    if (order.kind == k) on_order(order.since, order.count);
  }
  if (spec_.kinds[k].provider == FleetProvider::kNone && !Settling(k)) {
    const int more = kind.desired - status.serving;
    if (more > 0) on_order(kind.desired_since, more);
    status.draining += std::max(0, -more);  // they are not wanted any more
    status.serving += std::min(0, more);
  }
  return status;
}

std::vector<KindStanding> Fleet::Standings() const {
  std::vector<KindStanding> standings;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const FleetKind& spec = spec_.kinds[k];
    const FleetKindStatus have = CountKind(k);
    const Kind& kind = kinds_[k];
    standings.push_back(
        {.requests_per_s = spec.requests_per_s * capacity_.factor(),
         .usd_per_h = have.usd_per_h,
         .spot = spec.spot,
         .min = spec.min,
         .max = spec.max,
         .counted = have.serving + have.on_order - have.late,
         .committed = have.serving + have.on_order + have.draining,
         .obtainable = spec.provider == FleetProvider::kNone
                           ? !Settling(k)
                           : kind.listed && kind.list.text.empty() && now_ >= kind.acquire.until});
  }
  return standings;
}

double Fleet::NominalRate() const {
  double rate = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    rate += CountKind(k).serving * spec_.kinds[k].requests_per_s;
  }
  return rate;
}

// Compares what the machines do with what the file says, as long as they are the same machines.
void Fleet::Judge() {
  std::vector<uint64_t> ids;
  for (const FleetMember& member : view_.members) {
    if (member.usable && !member.draining && !member.under_notice) ids.push_back(member.id);
  }
  if (ids != serving_ids_) {
    serving_ids_ = std::move(ids);
    queued_ = true;
    return capacity_.Restart(now_);
  }
  queued_ = queued_ && view_.waiting > 0;
  if (!capacity_.Due(now_)) return;
  const Time since = capacity_.since();
  const MeasuredService service = meter_.Service(since, now_);
  capacity_.Judge({.nominal_per_s = NominalRate(),
                   .arrivals_per_s = meter_.Load(since, now_).requests_per_s,
                   .answers_per_s = service.answers_per_s,
                   .answers = service.answers,
                   .attainment = service.attainment(),
                   .queued = std::exchange(queued_, true)},
                  now_);
}

// Machines cost from the moment that they are listed until their provider no longer lists them.
void Fleet::Charge() {
  double usd = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    usd += PriceOf(k).value_or(0) * static_cast<double>(kinds_[k].machines.size());
  }
  for (const FleetMember& member : view_.members) {
    if (machine_kind_.contains(member.worker)) continue;
    const std::optional<size_t> kind = KindOf(member);
    usd += (kind ? PriceOf(*kind) : member.usd_per_h).value_or(0);
  }
  cost_.SetUsdPerHour(usd, now_);
}

FleetStatus Fleet::Describe(Time now) const {
  const Duration step = last_seen_ ? now - *last_seen_ : Duration{};
  const Time at = now_ + std::clamp(step, Duration{}, kStepMax);
  FleetStatus status{
      .requests_per_s = load_per_s_,
      .capacity_per_s = NominalRate() * capacity_.factor(),
      .capacity_factor = capacity_.factor(),
      .usd_per_h = cost_.usd_per_h(),
      .usd_per_million_tokens = cost_.UsdPerMillionTokensOver(CostMeter::kNow, at),
      .usd_per_million_tokens_hour = cost_.UsdPerMillionTokensOver(CostMeter::kHour, at),
      .usd_hour = cost_.UsdOver(CostMeter::kHour, at),
      .shortage = shortage_,
      .events = {events_.begin(), events_.end()}};
  for (size_t k = 0; k < kinds_.size(); ++k) {
    FleetKindStatus& kind = status.kinds.emplace_back(CountKind(k));
    const Kind& own = kinds_[k];
    if (!Settling(k)) kind.wanted = kind.serving + kind.on_order + missing_[k];
    for (const Trouble* trouble : {&own.price, &own.list, &own.release, &own.acquire}) {
      if (!trouble->text.empty()) kind.trouble = trouble->text;
    }
  }
  return status;
}

}  // namespace millrace::cluster
