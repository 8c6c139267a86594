#include "apps/autopilot/decision_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/cluster/json_fields.h"
#include "apps/common/local_time.h"
#include "base/log.h"
#include "plan/io/plan_yaml.h"

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

serve::ClusterMetric Gauge(std::string name, std::string help, double value) {
  return {.name = std::move(name),
          .help = std::move(help),
          .counter = false,
          .series = {{.labels = {}, .value = value}}};
}

}  // namespace

// A field that is missing from one of these lists does not compile.
void ForEachJsonField(MeasuredLoad& load, const auto& visit) {
  auto& [requests_per_s, prompt_tokens, output_tokens, variation, requests] = load;
  visit({"requests_per_s"}, requests_per_s);
  visit({"prompt_tokens"}, prompt_tokens);
  visit({"output_tokens"}, output_tokens);
  visit({"variation"}, variation);
  visit({"requests"}, requests);
}

void ForEachJsonField(MeasuredService& service, const auto& visit) {
  auto& [answers, within, missed_ttft, missed_tpot, failed, answers_per_s, output_tokens_per_s] =
      service;
  double attainment = service.attainment();  // written only
  visit({"answers"}, answers);
  visit({"within"}, within);
  visit({"missed_ttft"}, missed_ttft);
  visit({"missed_tpot"}, missed_tpot);
  visit({"failed"}, failed);
  visit({"answers_per_s"}, answers_per_s);
  visit({"output_tokens_per_s"}, output_tokens_per_s);
  visit({"attainment"}, attainment);
}

void ForEachJsonField(PlanForecast& forecast, const auto& visit) {
  auto& [shape, kept, method, requests_per_s] = forecast;
  std::optional<std::string> text;
  if (kept) text = plan::WritePlanYaml(*kept);
  visit({"shape", kDecisionTextBytesMax}, shape);
  visit({"method", kDecisionTextBytesMax}, method);
  visit({"requests_per_s"}, requests_per_s);
  visit({.name = "plan", .bytes_max = kPlanTextBytesMax, .lines = true, .omitted = true}, text);
  if (kept || !text) return;
  if (auto read = plan::ParseWorkerPlan(*text, "plan"); read.ok()) {
    kept = std::make_shared<const WorkerPlan>(*std::move(read));
  }
}

void ForEachJsonField(Decision& decision, const auto& visit) {
  auto& [id, at_unix_s, cause, why, kind, reason, load, workers, current, candidates, search_s,
         gain_per_s, cost_requests, before, after, epoch, outcome] = decision;
  std::string cause_name(CauseName(cause)), kind_name(KindName(kind));
  visit({"id"}, id);
  visit({"at"}, at_unix_s);
  visit({"cause"}, cause_name);
  visit({"why", kDecisionTextBytesMax}, why);
  visit({"decision"}, kind_name);
  visit({"reason", kDecisionTextBytesMax}, reason);
  visit({"load"}, load);
  visit({.name = "workers", .most = 4096}, workers);
  visit({"current"}, current);
  visit({"candidates"}, candidates);
  visit({"search_s"}, search_s);
  visit({.name = "gain_requests_per_s", .least = kAnyNumber}, gain_per_s);
  visit({"cost_requests"}, cost_requests);
  visit({"before"}, before);
  visit({"after"}, after);
  visit({"epoch"}, epoch);
  visit({"outcome", kDecisionTextBytesMax}, outcome);
  cause = FromName(cause_name, DecisionCause::kForecastMissed, cluster::CauseName);
  kind = FromName(kind_name, DecisionKind::kRollBack, cluster::KindName);
}

Json ToJson(const Decision& decision) { return WriteJson(decision); }

Decision ReadDecision(const Json& json) { return ReadJson<Decision>(json); }

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

Json DecisionsJson(const ops::AutopilotStatus& status) {
  Json list = Json::array();
  for (const Decision& decision : status.decisions) list.push_back(ToJson(decision));
  return {{"autopilot", true}, {"decisions", std::move(list)}};
}

Json AutopilotJson(const ops::AutopilotStatus& status) {
  const cluster::AutopilotOptions& options = status.options;
  return {{"mode", options.mode == cluster::AutopilotMode::kAct ? "act" : "advise"},
          {"window_s", options.window.seconds()},
          {"horizon_s", options.horizon.seconds()},
          {"verify_s", options.verify.seconds()},
          {"margin", options.margin},
          {"state", status.state},
          {"load", WriteJson(status.load)},
          {"service", WriteJson(status.service)},
          {"decisions", status.decisions.empty() ? 0 : status.decisions.back().id},
          {"advice", WriteJson(status.advice)}};
}

void AddAutopilotMetrics(const ops::AutopilotStatus& status,
                         std::vector<serve::ClusterMetric>& metrics) {
  serve::ClusterMetric made{.name = "millrace_autopilot_decisions",
                            .help = "Kept decisions of the autopilot, by what was decided and why.",
                            .counter = false};
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const cluster::Decision& decision : status.decisions) {
    ++counts[{std::string(KindName(decision.kind)), std::string(CauseName(decision.cause))}];
  }
  for (const auto& [key, count] : counts) {
    made.series.push_back({.labels = {{"decision", key.first}, {"cause", key.second}},
                           .value = static_cast<double>(count)});
  }
  metrics.push_back(std::move(made));
  metrics.push_back(Gauge("millrace_autopilot_advice",
                          "1 while the autopilot advises another plan than the one in force.",
                          status.advice ? 1 : 0));
  metrics.push_back(Gauge("millrace_autopilot_load_requests_per_second",
                          "Requests that arrived, as the autopilot measures the load.",
                          status.load.requests_per_s));
  metrics.push_back(Gauge("millrace_autopilot_attainment_ratio",
                          "Share of the recent answers that kept the limits of --slo.",
                          status.service.attainment()));
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
