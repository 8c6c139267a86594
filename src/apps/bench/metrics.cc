#include "apps/bench/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/option.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kErrorsShownMax = 10;
constexpr int kTableColumns = 50;

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

struct Totals {
  int completed = 0, failed = 0, good = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  std::vector<double> ttfts, tpots, itls, e2els, per_token;  // seconds
};

Totals Sum(const std::vector<Outcome>& outcomes, const GoodputLimits& goodput) {
  Totals totals;
  for (const Outcome& o : outcomes) {
    if (!o.ok()) {
      ++totals.failed;
      continue;
    }
    ++totals.completed;
    totals.good += goodput.any() && goodput.Holds(o) ? 1 : 0;
    totals.input_tokens += o.prompt_tokens;
    totals.output_tokens += o.output_tokens;
    totals.ttfts.push_back(o.ttft_s);
    if (o.output_tokens > 1) totals.tpots.push_back(o.TpotSeconds());
    totals.itls.insert(totals.itls.end(), o.itls_s.begin(), o.itls_s.end());
    totals.e2els.push_back(o.latency_s);
    if (o.output_tokens > 0) totals.per_token.push_back(o.latency_s / o.output_tokens);
  }
  return totals;
}

// The most tokens that arrived within one whole second of the run.
double PeakTokensPerSecond(const std::vector<Outcome>& outcomes) {
  std::vector<double> times;
  for (const Outcome& o : outcomes) {
    if (!o.ok()) continue;
    double at = o.start_s + o.ttft_s;
    times.push_back(at);
    for (double itl : o.itls_s) times.push_back(at += itl);
  }
  if (times.empty()) return 0;
  double start = outcomes.front().start_s;
  for (const Outcome& o : outcomes) start = std::min(start, o.start_s);
  std::sort(times.begin(), times.end());
  double peak = 0, count = 0, second = -1;
  for (double time : times) {
    const double bucket = std::floor(time - start);
    count = bucket == second ? count + 1 : 1;
    second = bucket;
    peak = std::max(peak, count);
  }
  return peak;
}

int PeakConcurrency(const std::vector<Outcome>& outcomes) {
  std::vector<std::pair<double, int>> events;  // at equal times, ends sort before starts
  for (const Outcome& o : outcomes) {
    if (!o.ok()) continue;
    events.emplace_back(o.start_s, 1);
    events.emplace_back(o.start_s + o.latency_s, -1);
  }
  std::sort(events.begin(), events.end());
  int now = 0, peak = 0;
  for (const auto& [time, change] : events) peak = std::max(peak, now += change);
  return peak;
}

class Writer {
 public:
  explicit Writer(Report& report) : report_(report) {}

  void Rule(std::string_view title, char fill) {
    report_.table += fill == '=' ? fmt::format("{:=^{}}\n", title, kTableColumns)
                                 : fmt::format("{:-^{}}\n", title, kTableColumns);
  }
  void Count(std::string_view label, int64_t value) {
    report_.table += fmt::format("{:<40} {:<10}\n", label, value);
  }
  void Number(std::string_view label, double value) {
    report_.table += fmt::format("{:<40} {:<10.2f}\n", label, value);
  }
  // One block of the table and its JSON keys.
  void Metric(const std::string& key, const std::string& name, const std::string& title,
              const std::vector<double>& seconds, const std::vector<double>& percentiles) {
    const double mean = Mean(seconds) * 1000, median = Median(seconds) * 1000;
    Rule(title, '-');
    Number(fmt::format("Mean {} (ms):", name), mean);
    Number(fmt::format("Median {} (ms):", name), median);
    report_.json["mean_" + key + "_ms"] = mean;
    report_.json["median_" + key + "_ms"] = median;
    report_.json["std_" + key + "_ms"] = StdDev(seconds) * 1000;
    for (double p : percentiles) {
      const double value = Percentile(seconds, p) * 1000;
      Number(fmt::format("P{} {} (ms):", FormatReal(p), name), value);
      report_.json[fmt::format("p{}_{}_ms", FormatReal(p), key)] = value;
    }
  }

 private:
  Report& report_;
};

void AddPerRequest(const std::vector<Outcome>& outcomes, Json& json) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "generated_texts", "errors"}) {
    json[key] = Json::array();
  }
  for (const Outcome& o : outcomes) {
    json["input_lens"].push_back(o.prompt_tokens);
    json["output_lens"].push_back(o.ok() ? o.output_tokens : 0);
    json["ttfts"].push_back(o.ttft_s);
    json["itls"].push_back(o.itls_s);
    json["latencies"].push_back(o.latency_s);
    json["start_times"].push_back(o.start_s);
    json["generated_texts"].push_back(o.text);
    json["errors"].push_back(o.error);
  }
}

void AddErrors(const std::vector<Outcome>& outcomes, std::string& table) {
  size_t shown = 0;
  for (const Outcome& o : outcomes) {
    if (o.ok()) continue;
    if (shown == 0) table += "Failed requests during the run (at most 10 are shown):\n";
    table += fmt::format("Error {}: {}\n", shown, Printable(o.error));
    if (++shown == kErrorsShownMax) return;
  }
}

// A failed request counts as one that misses the limits, as it does in the simulator.
void AddAttainment(const Totals& totals, const LatencyLimits& limits, Writer& writer, Json& json) {
  const int all = totals.completed + totals.failed;
  const double share = all == 0 ? 0 : static_cast<double>(totals.good) / all;
  writer.Number("Requests within the limits (%):", 100 * share);
  writer.Number("Wanted within the limits (%):", 100 * limits.share());
  json["attainment"] = share;
  json["attainment_target"] = limits.share();
  json["attainment_kept"] = share >= limits.share();
}

void AddThroughput(const Totals& totals, const std::vector<Outcome>& outcomes,
                   const ReportOptions& options, Writer& writer, Json& json) {
  const double seconds = std::max(options.duration_s, 1e-9);
  const auto output = static_cast<double>(totals.output_tokens);
  const auto total = static_cast<double>(totals.input_tokens) + output;
  const double peak_tokens = PeakTokensPerSecond(outcomes);
  const int peak_requests = PeakConcurrency(outcomes);
  writer.Number("Benchmark duration (s):", options.duration_s);
  writer.Count("Total input tokens:", totals.input_tokens);
  writer.Count("Total generated tokens:", totals.output_tokens);
  writer.Number("Request throughput (req/s):", totals.completed / seconds);
  if (options.goodput.any()) {
    writer.Number("Request goodput (req/s):", totals.good / seconds);
    AddAttainment(totals, options.goodput.limits, writer, json);
  }
  writer.Number("Output token throughput (tok/s):", output / seconds);
  writer.Number("Peak output token throughput (tok/s):", peak_tokens);
  writer.Number("Peak concurrent requests:", peak_requests);
  writer.Number("Total token throughput (tok/s):", total / seconds);
  json["duration"] = options.duration_s;
  json["completed"] = totals.completed;
  json["failed"] = totals.failed;
  json["total_input_tokens"] = totals.input_tokens;
  json["total_output_tokens"] = totals.output_tokens;
  json["request_throughput"] = totals.completed / seconds;
  json["request_goodput"] = options.goodput.any() ? Json(totals.good / seconds) : Json();
  json["output_throughput"] = output / seconds;
  json["total_token_throughput"] = total / seconds;
  json["max_output_tokens_per_s"] = peak_tokens;
  json["max_concurrent_requests"] = peak_requests;
}

}  // namespace

bool GoodputLimits::Holds(const Outcome& outcome) const {
  return limits.KeepsTtft(outcome.ttft_s) && limits.KeepsTpot(outcome.TpotSeconds()) &&
         (!e2el_s || outcome.latency_s <= *e2el_s);
}

Result<GoodputLimits> ParseGoodputLimits(const std::vector<std::string>& pairs) {
  GoodputLimits goodput;
  for (const std::string& pair : pairs) {
    const size_t colon = pair.find(':');
    const auto value = ParseReal(colon == std::string::npos ? "" : pair.substr(colon + 1));
    if (!value.ok() || *value < 0) {
      return InvalidArgument(fmt::format(
          "must be pairs of a metric and milliseconds such as ttft:200 tpot:50, got '{}'",
          Printable(pair)));
    }
    const std::string name = pair.substr(0, colon);
    MR_RETURN_IF_ERROR(CheckChoice(name, {"ttft", "tpot", "e2el"}));
    (name == "ttft"   ? goodput.limits.ttft_s
     : name == "tpot" ? goodput.limits.tpot_s
                      : goodput.e2el_s) = *value / 1000;
  }
  return goodput;
}

Result<std::vector<std::string>> ParseMetricNames(const std::string& text) {
  auto names = SplitCommas(text);
  for (const std::string& name : names) {
    MR_RETURN_IF_ERROR(CheckChoice(name, {"ttft", "tpot", "itl", "e2el"}));
  }
  return names;
}

Result<std::vector<double>> ParsePercentiles(const std::string& text) {
  std::vector<double> percentiles;
  for (const std::string& part : SplitCommas(text)) {
    const auto value = ParseReal(part);
    if (!value.ok() || *value < 0 || *value > 100) {
      return InvalidArgument(fmt::format(
          "must be numbers in [0, 100] separated by commas, got '{}'", Printable(text)));
    }
    percentiles.push_back(*value);
  }
  return percentiles;
}

Report MakeReport(const std::vector<Outcome>& outcomes, const ReportOptions& options) {
  Report report;
  report.json = Json::object();
  AddErrors(outcomes, report.table);
  const Totals totals = Sum(outcomes, options.goodput);
  Writer writer(report);
  writer.Rule(" Serving Benchmark Result ", '=');
  writer.Count("Successful requests:", totals.completed);
  writer.Count("Failed requests:", totals.failed);
  if (options.max_concurrency) {
    writer.Count("Maximum request concurrency:", *options.max_concurrency);
  }
  if (std::isfinite(options.request_rate)) {
    writer.Number("Request rate configured (RPS):", options.request_rate);
  }
  AddThroughput(totals, outcomes, options, writer, report.json);
  const auto wanted = [&options](std::string_view name) {
    return std::find(options.metrics.begin(), options.metrics.end(), name) != options.metrics.end();
  };
  const auto& p = options.percentiles;
  if (wanted("ttft")) writer.Metric("ttft", "TTFT", "Time to First Token", totals.ttfts, p);
  if (wanted("tpot")) {
    writer.Metric("tpot", "TPOT", "Time per Output Token (excl. 1st token)", totals.tpots, p);
  }
  if (wanted("itl")) writer.Metric("itl", "ITL", "Inter-token Latency", totals.itls, p);
  if (wanted("e2el")) writer.Metric("e2el", "E2EL", "End-to-end Latency", totals.e2els, p);
  if (options.orca) {
    const double median = Median(totals.per_token) * 1000;
    writer.Rule("Latency per Generated Token", '-');
    writer.Number("Median E2EL / tokens (ms):", median);
    report.json["median_normalized_latency_ms"] = median;
  }
  writer.Rule("", '=');
  AddPerRequest(outcomes, report.json);
  return report;
}

}  // namespace millrace::apps
