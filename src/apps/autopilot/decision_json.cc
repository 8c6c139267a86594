#include "apps/autopilot/decision_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cluster/json_fields.h"
#include "apps/common/local_time.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

using cluster::Decision;
using cluster::DecisionCause;
using cluster::DecisionKind;
using cluster::MeasuredLoad;
using cluster::MeasuredService;
using cluster::PlanForecast;

constexpr size_t kStoredBytesMax = 512 << 10;  // the store takes a megabyte
constexpr size_t kDecisionTextBytesMax = 4096, kPlanTextBytesMax = 256 << 10;

Json ToJson(const MeasuredLoad& load) {
  return {{"requests_per_s", load.requests_per_s},
          {"prompt_tokens", load.prompt_tokens},
          {"output_tokens", load.output_tokens},
          {"variation", load.variation},
          {"requests", load.requests}};
}

MeasuredLoad ReadLoad(const Json& json) {
  return {.requests_per_s = RealField(json, "requests_per_s"),
          .prompt_tokens = RealField(json, "prompt_tokens"),
          .output_tokens = RealField(json, "output_tokens"),
          .variation = RealField(json, "variation"),
          .requests = static_cast<uint64_t>(std::max<int64_t>(0, IntegerField(json, "requests")))};
}

Json ToJson(const MeasuredService& service) {
  return {{"answers", service.answers},
          {"within", service.within},
          {"missed_ttft", service.missed_ttft},
          {"missed_tpot", service.missed_tpot},
          {"failed", service.failed},
          {"answers_per_s", service.answers_per_s},
          {"output_tokens_per_s", service.output_tokens_per_s},
          {"attainment", service.attainment()}};
}

std::optional<MeasuredService> ReadService(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto count = [&json](const char* key) {
    return static_cast<uint64_t>(std::max<int64_t>(0, IntegerField(json, key)));
  };
  return MeasuredService{.answers = count("answers"),
                         .within = count("within"),
                         .missed_ttft = count("missed_ttft"),
                         .missed_tpot = count("missed_tpot"),
                         .failed = count("failed"),
                         .answers_per_s = RealField(json, "answers_per_s"),
                         .output_tokens_per_s = RealField(json, "output_tokens_per_s")};
}

Json ToJson(const PlanForecast& plan) {
  Json json = {
      {"shape", plan.shape}, {"method", plan.method}, {"requests_per_s", plan.requests_per_s}};
  if (!plan.text.empty()) json["plan"] = plan.text;
  return json;
}

PlanForecast ReadForecast(const Json& json) {
  PlanForecast plan{.shape = TextField(json, "shape", kDecisionTextBytesMax),
                    .method = TextField(json, "method", kDecisionTextBytesMax),
                    .requests_per_s = RealField(json, "requests_per_s")};
  // Read as written: TextField would replace its line breaks.
  if (const auto text = json.find("plan"); text != json.end() && text->is_string()) {
    plan.text = text->get<std::string>().substr(0, kPlanTextBytesMax);
  }
  return plan;
}

// The value of the enumeration whose name is `name`; the first if none is.
template <typename Kind, typename NameOf>
Kind FromName(const std::string& name, Kind last, NameOf name_of) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name_of(static_cast<Kind>(i)) == name) return static_cast<Kind>(i);
  }
  return Kind{};
}

// "0:02:35"
std::string SinceStart(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e11));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string ForecastLine(const char* what, const PlanForecast& plan) {
  return fmt::format("  {:<8} {:>8.3g} req/s  {}\n", what, plan.requests_per_s,
                     Printable(plan.shape, kDecisionTextBytesMax));
}

}  // namespace

Json ToJson(const Decision& decision) {
  Json candidates = Json::array();
  for (const PlanForecast& plan : decision.candidates) candidates.push_back(ToJson(plan));
  const auto service = [](const std::optional<MeasuredService>& of) {
    return of ? ToJson(*of) : Json();
  };
  return {{"id", decision.id},
          {"at", decision.at_unix_s},
          {"cause", CauseName(decision.cause)},
          {"why", decision.why},
          {"decision", KindName(decision.kind)},
          {"reason", decision.reason},
          {"load", ToJson(decision.load)},
          {"workers", decision.workers},
          {"current", decision.current ? ToJson(*decision.current) : Json()},
          {"candidates", std::move(candidates)},
          {"search_s", decision.search_s},
          {"gain_requests_per_s", decision.gain_per_s},
          {"cost_requests", decision.cost_requests},
          {"before", service(decision.before)},
          {"after", service(decision.after)},
          {"epoch", decision.epoch ? Json(*decision.epoch) : Json()},
          {"outcome", decision.outcome}};
}

Decision ReadDecision(const Json& json) {
  Decision decision;
  if (!json.is_object()) return decision;
  const auto object = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_object() ? *found : Json();
  };
  decision.id = static_cast<uint64_t>(std::max<int64_t>(0, IntegerField(json, "id")));
  decision.at_unix_s = RealField(json, "at");
  decision.cause =
      FromName(TextField(json, "cause"), DecisionCause::kForecastMissed, cluster::CauseName);
  decision.why = TextField(json, "why", kDecisionTextBytesMax);
  decision.kind = FromName(TextField(json, "decision"), DecisionKind::kRollBack, cluster::KindName);
  decision.reason = TextField(json, "reason", kDecisionTextBytesMax);
  if (const Json load = object("load"); load.is_object()) decision.load = ReadLoad(load);
  decision.workers = static_cast<int>(std::clamp<int64_t>(IntegerField(json, "workers"), 0, 4096));
  if (const Json now = object("current"); now.is_object()) decision.current = ReadForecast(now);
  for (const Json& plan : ObjectsField(json, "candidates")) {
    decision.candidates.push_back(ReadForecast(plan));
  }
  decision.search_s = RealField(json, "search_s");
  decision.gain_per_s = RealField(json, "gain_requests_per_s");
  decision.cost_requests = RealField(json, "cost_requests");
  decision.before = ReadService(object("before"));
  decision.after = ReadService(object("after"));
  if (HasNumber(json, "epoch")) decision.epoch = IntegerField(json, "epoch");
  decision.outcome = TextField(json, "outcome", kDecisionTextBytesMax);
  return decision;
}

std::string StoredDecisions(const std::vector<Decision>& decisions) {
  std::vector<std::string> lines;
  size_t bytes = 0;
  for (auto it = decisions.rbegin(); it != decisions.rend(); ++it) {
    lines.push_back(DumpJson(ToJson(*it)));
    bytes += lines.back().size() + 1;
    if (bytes > kStoredBytesMax) {
      lines.pop_back();
      break;
    }
  }
  std::string text;
  for (auto it = lines.rbegin(); it != lines.rend(); ++it) text += *it + "\n";
  return text;
}

Result<std::vector<Decision>> ReadStoredDecisions(const std::string& text) {
  std::vector<Decision> decisions;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    MR_ASSIGN_OR_RETURN(const Json json, ParseJson(text.substr(begin, end - begin)));
    if (!json.is_object()) return InvalidArgument("a stored decision is not an object");
    decisions.push_back(ReadDecision(json));
    begin = end + 1;
  }
  return decisions;
}

Json AutopilotJson(const ops::AutopilotStatus& status) {
  const cluster::AutopilotOptions& options = status.options;
  return {{"mode", options.mode == cluster::AutopilotMode::kAct ? "act" : "advise"},
          {"window_s", options.window.seconds()},
          {"horizon_s", options.horizon.seconds()},
          {"verify_s", options.verify.seconds()},
          {"margin", options.margin},
          {"state", status.state},
          {"load", ToJson(status.load)},
          {"service", ToJson(status.service)},
          {"decisions", status.decisions.empty() ? 0 : status.decisions.back().id},
          {"advice", status.advice ? ToJson(*status.advice) : Json()}};
}

std::string DecisionText(const Decision& decision, bool details, DecisionTimes times) {
  std::string text = fmt::format("{:>4}  {}  {}  ({}: {})\n      {}\n", decision.id,
                                 times == DecisionTimes::kOfDay ? LocalTime(decision.at_unix_s)
                                                                : SinceStart(decision.at_unix_s),
                                 KindName(decision.kind), CauseName(decision.cause),
                                 Printable(decision.why, kDecisionTextBytesMax),
                                 Printable(decision.reason, kDecisionTextBytesMax));
  if (!decision.outcome.empty()) {
    text += fmt::format("      {}\n", Printable(decision.outcome, kDecisionTextBytesMax));
  }
  if (!details) return text;
  text += fmt::format(
      "      load: {:.3g} requests/s, prompts of {:.0f} tokens, answers of {:.0f}; {} workers; the "
      "search took {:.1f} s\n",
      decision.load.requests_per_s, decision.load.prompt_tokens, decision.load.output_tokens,
      decision.workers, decision.search_s);
  if (decision.current) text += ForecastLine("in force", *decision.current);
  for (const PlanForecast& plan : decision.candidates) text += ForecastLine("found", plan);
  return text;
}

}  // namespace millrace::apps
