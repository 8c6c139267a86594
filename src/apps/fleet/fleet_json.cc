#include "apps/fleet/fleet_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "apps/cluster/json_fields.h"
#include "apps/common/local_time.h"
#include "apps/common/text_table.h"

namespace millrace::apps {
namespace {

using cluster::FleetKindStatus;
using cluster::FleetSpec;
using cluster::FleetStatus;

constexpr size_t kFleetTextBytesMax = 400;
constexpr ptrdiff_t kEventsShown = 10;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string_view ShortageName(cluster::MixShortage shortage) {
  switch (shortage) {
    case cluster::MixShortage::kNone: return "";
    case cluster::MixShortage::kLimits: return "max";
    case cluster::MixShortage::kBudget: return "budget";
    case cluster::MixShortage::kPrice: return "price";
  }
  return "?";
}

serve::ClusterMetric FleetGauge(std::string name, std::string help) {
  return {.name = std::move(name), .help = std::move(help), .counter = false, .series = {}};
}

// "0.35"; "-" for what is not known.
std::string Number(const Json& object, const char* key, int digits) {
  return HasNumber(object, key) ? fmt::format("{:.{}g}", RealField(object, key), digits) : "-";
}

}  // namespace

Json FleetJson(const FleetSpec& spec, const FleetStatus& status) {
  Json kinds = Json::array(), events = Json::array();
  for (size_t k = 0; k < status.kinds.size(); ++k) {
    const FleetKindStatus& kind = status.kinds[k];
    kinds.push_back({{"name", spec.kinds[k].name},
                     {"provider", cluster::ProviderName(spec.kinds[k].provider)},
                     {"spot", spec.kinds[k].spot},
                     {"min", spec.kinds[k].min},
                     {"max", spec.kinds[k].max},
                     {"usd_per_h", OrNull(kind.usd_per_h)},
                     {"requests_per_s", spec.kinds[k].requests_per_s},
                     {"wanted", OrNull(kind.wanted)},
                     {"serving", kind.serving},
                     {"on_order", kind.on_order},
                     {"late", kind.late},
                     {"draining", kind.draining},
                     {"leaving", kind.leaving},
                     {"trouble", kind.trouble}});
  }
  for (const cluster::FleetEvent& event : status.events) {
    events.push_back({{"at", event.at_unix_s},
                      {"cause", cluster::FleetCauseName(event.cause)},
                      {"text", event.text}});
  }
  return {{"kinds", std::move(kinds)},
          {"budget_usd_per_h", OrNull(spec.budget_usd_per_h)},
          {"cool_down_s", spec.cool_down.seconds()},
          {"headroom", spec.headroom},
          {"spares", spec.spares},
          {"requests_per_s", status.requests_per_s},
          {"capacity_requests_per_s", status.capacity_per_s},
          {"capacity_factor", status.capacity_factor},
          {"usd_per_h", status.usd_per_h},
          {"usd_last_hour", status.usd_hour},
          {"usd_per_million_tokens", OrNull(status.usd_per_million_tokens)},
          {"usd_per_million_tokens_last_hour", OrNull(status.usd_per_million_tokens_hour)},
          {"short_of", ShortageName(status.shortage)},
          {"events", std::move(events)}};
}

std::string FleetText(const Json& fleet) {
  std::vector<std::vector<std::string>> rows = {
      {"KIND", "PROVIDER", "USD/h", "WANTED", "SERVING", "ON ORDER", "DRAINING", "LEAVING"}};
  std::string troubles;
  for (const Json& kind : ObjectsField(fleet, "kinds")) {
    const std::string name = TextField(kind, "name", 20);
    rows.push_back({name, TextField(kind, "provider"), Number(kind, "usd_per_h", 4),
                    Number(kind, "wanted", 6)});
    for (const char* count : {"serving", "on_order", "draining", "leaving"}) {
      rows.back().push_back(fmt::to_string(IntegerField(kind, count)));
    }
    if (const std::string trouble = TextField(kind, "trouble", kFleetTextBytesMax);
        !trouble.empty()) {
      troubles += fmt::format("{}: {}\n", name, trouble);
    }
  }
  std::string text = TextTable(rows, "llrrrrrr") + troubles;
  text +=
      fmt::format("\nload {} requests/s; the machines that serve answer {} ({} times the file)\n",
                  Number(fleet, "requests_per_s", 3), Number(fleet, "capacity_requests_per_s", 3),
                  Number(fleet, "capacity_factor", 3));
  text += fmt::format("cost {} USD/h", Number(fleet, "usd_per_h", 4));
  if (HasNumber(fleet, "budget_usd_per_h")) {
    text += fmt::format(" of {}", Number(fleet, "budget_usd_per_h", 4));
  }
  text += fmt::format("; per million tokens {} USD now, {} USD over the last hour\n",
                      Number(fleet, "usd_per_million_tokens", 4),
                      Number(fleet, "usd_per_million_tokens_last_hour", 4));
  if (const std::string shortage = TextField(fleet, "short_of"); !shortage.empty()) {
    text += fmt::format("the load needs more machines than {} allows\n", shortage);
  }
  const std::vector<Json> events = ObjectsField(fleet, "events");
  if (!events.empty()) text += "\n";
  const auto first = std::max<ptrdiff_t>(0, std::ssize(events) - kEventsShown);
  for (auto i = static_cast<size_t>(first); i < events.size(); ++i) {
    text += fmt::format("{}  {} ({})\n", LocalTime(RealField(events[i], "at")),
                        TextField(events[i], "text", kFleetTextBytesMax),
                        TextField(events[i], "cause"));
  }
  return text;
}

void AddFleetMetrics(const FleetSpec& spec, const FleetStatus& status,
                     std::vector<serve::ClusterMetric>& metrics) {
  auto wanted = FleetGauge("millrace_wanted_workers", "Workers of each kind that there should be.");
  auto workers = FleetGauge("millrace_fleet_workers", "Machines of each kind, by state.");
  for (size_t k = 0; k < status.kinds.size(); ++k) {
    const FleetKindStatus& kind = status.kinds[k];
    const std::string& name = spec.kinds[k].name;
    if (kind.wanted) {
      wanted.series.push_back(
          {.labels = {{"kind", name}}, .value = static_cast<double>(*kind.wanted)});
    }
    for (const auto& [state, count] : {std::pair{"serving", kind.serving},
                                       {"on_order", kind.on_order},
                                       {"draining", kind.draining},
                                       {"leaving", kind.leaving}}) {
      workers.series.push_back(
          {.labels = {{"kind", name}, {"state", state}}, .value = static_cast<double>(count)});
    }
  }
  auto cost = FleetGauge("millrace_cost_usd_per_hour", "What the machines cost now.");
  cost.series.push_back({.labels = {}, .value = status.usd_per_h});
  auto tokens = FleetGauge("millrace_usd_per_million_tokens",
                           "Cost of a million tokens of prompts and answers, now (the last minute) "
                           "and over the last hour.");
  for (const auto& [window, usd] : {std::pair{"now", status.usd_per_million_tokens},
                                    {"hour", status.usd_per_million_tokens_hour}}) {
    if (usd) tokens.series.push_back({.labels = {{"window", window}}, .value = *usd});
  }
  for (auto* metric : {&wanted, &workers, &cost, &tokens}) {
    if (!metric->series.empty()) metrics.push_back(std::move(*metric));
  }
}

}  // namespace millrace::apps
