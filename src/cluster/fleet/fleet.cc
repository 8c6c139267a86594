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

Fleet::Fleet(FleetSpec spec, const LatencyLimits& limits)
    : spec_(std::move(spec)),
      machines_(spec_, clock_, outbox_),
      decision_(spec_, clock_, machines_, outbox_),
      meter_(limits),
      rate_(RateOptions(spec_.cool_down)),
      capacity_(CapacityOptionsOf(limits)) {}

void Fleet::Arrived(RequestId id, int prompt_tokens, Time now) {
  clock_.Pass(now);
  meter_.Arrived(id, prompt_tokens, clock_.now());
  rate_.Arrive(clock_.now());
  cost_.AddTokens(prompt_tokens, clock_.now());
}

void Fleet::Heard(const RequestOutput& output, Time now) {
  clock_.Pass(now);
  meter_.Heard(output, clock_.now());
  if (!output.tokens.empty()) cost_.AddTokens(std::ssize(output.tokens), clock_.now());
}

void Fleet::Observe(const FleetView& view, Time now) {
  clock_.Pass(now);
  outbox_.SetUnixTime(view.unix_s);
  machines_.Observe(view);
  cost_.SetUsdPerHour(machines_.UsdPerHour(), clock_.now());
  Judge();
  load_per_s_ = rate_.RequestsPerSecond(clock_.now(), view.waiting);
  decision_.Decide(load_per_s_, capacity_.factor());
  machines_.SendReleases();
}

// Compares what the machines do with what the file says, as long as they are the same machines.
void Fleet::Judge() {
  std::vector<uint64_t> ids;
  for (const FleetMember& member : machines_.view().members) {
    if (member.usable && !member.draining && !member.under_notice) ids.push_back(member.id);
  }
  if (ids != serving_ids_) {
    serving_ids_ = std::move(ids);
    queued_ = true;
    return capacity_.Restart(clock_.now());
  }
  queued_ = queued_ && machines_.view().waiting > 0;
  if (!capacity_.Due(clock_.now())) return;
  const Time since = capacity_.since();
  const MeasuredService service = meter_.Service(since, clock_.now());
  capacity_.Judge({.nominal_per_s = machines_.NominalRate(),
                   .arrivals_per_s = meter_.Load(since, clock_.now()).requests_per_s,
                   .answers_per_s = service.answers_per_s,
                   .answers = service.answers,
                   .attainment = service.attainment(),
                   .queued = std::exchange(queued_, true)},
                  clock_.now());
}

FleetStatus Fleet::Describe(Time now) const {
  const Time at = clock_.At(now);
  FleetStatus status{
      .requests_per_s = load_per_s_,
      .capacity_per_s = machines_.NominalRate() * capacity_.factor(),
      .capacity_factor = capacity_.factor(),
      .usd_per_h = cost_.usd_per_h(),
      .usd_per_million_tokens = cost_.UsdPerMillionTokensOver(CostMeter::kNow, at),
      .usd_per_million_tokens_hour = cost_.UsdPerMillionTokensOver(CostMeter::kHour, at),
      .usd_hour = cost_.UsdOver(CostMeter::kHour, at),
      .shortage = decision_.shortage(),
      .events = {outbox_.events().begin(), outbox_.events().end()}};
  for (size_t k = 0; k < spec_.kinds.size(); ++k) {
    FleetKindStatus& kind = status.kinds.emplace_back(machines_.Count(k));
    if (!machines_.Settling(k)) kind.wanted = kind.serving + kind.on_order + decision_.missing(k);
    kind.trouble = machines_.TroubleOf(k);
  }
  return status;
}

}  // namespace millrace::cluster
