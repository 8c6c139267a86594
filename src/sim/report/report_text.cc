#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/units.h"
#include "sim/report/report.h"

namespace millrace::sim {
namespace {

constexpr size_t kInstanceLinesMax = 32, kLinksShown = 3;

struct Metric {
  const char* key;    // of JSON and CSV
  const char* title;  // of the table
  const Quantiles LatencyReport::*values;
  bool grows;  // meaningless while the queue grows
};
constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", &LatencyReport::ttft, true},
    {"tpot", "TPOT", &LatencyReport::tpot, false},
    {"itl", "ITL", &LatencyReport::itl, false},
    {"max_gap", "Longest gap", &LatencyReport::max_gap, false},
    {"e2e", "End to end", &LatencyReport::e2e, true},
};
struct Point {
  const char* key;
  double q;
};
constexpr Point kPoints[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};

double Ms(double seconds) { return seconds * 1e3; }

// "12.3": four significant digits, and no exponent below a million.
std::string Number(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  return value >= 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

std::string LatencyRows(const SimReport& report) {
  std::string text = fmt::format("{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50",
                                 "p90", "p99", "max");
  for (const Metric& metric : kMetrics) {
    const Quantiles& values = report.latency.*metric.values;
    text += fmt::format("{:<14}", metric.title);
    if (report.saturation && metric.grows) {
      text += fmt::format("{:>10}  (the queue grows: no steady value)\n", "-");
      continue;
    }
    if (values.count() == 0) {
      text += fmt::format("{:>10}  (no request has one)\n", "-");
      continue;
    }
    text += fmt::format("{:>10}", Number(Ms(values.mean())));
    for (const Point& p : kPoints) text += fmt::format("{:>10}", Number(Ms(values.At(p.q))));
    text += fmt::format("{:>10}\n", Number(Ms(values.max())));
  }
  return text;
}

double ShareOfAll(uint64_t part, const LatencyReport& r) {
  const uint64_t all = r.requests + r.refused;
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string SloLines(const SimReport& report) {
  const LatencyLimits& limits = report.limits;
  if (!limits.any()) return "";
  std::string text;
  const LatencyReport& r = report.latency;
  if (limits.ttft_s) {
    text += fmt::format("TTFT within {:g} ms: {:.2f} %\n", Ms(*limits.ttft_s),
                        ShareOfAll(r.met_ttft, r) * 100);
  }
  if (limits.tpot_s) {
    text += fmt::format("TPOT within {:g} ms: {:.2f} %\n", Ms(*limits.tpot_s),
                        ShareOfAll(r.met_tpot, r) * 100);
  }
  const Interval over = MeanInterval(report.attainment);
  text += fmt::format(
      "All limits: {:.2f} %{} (wanted {:.4g} %): {}\n", r.attainment() * 100,
      report.seeds.size() > 1
          ? fmt::format(" [{:.2f}, {:.2f}] over {} seeds", std::max(over.low, 0.0) * 100,
                        std::min(over.high, 1.0) * 100, report.seeds.size())
          : "",
      limits.share() * 100, report.meets_target() ? "kept" : "missed");
  return text;
}

std::string Capitalised(std::string name) {
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] = static_cast<char>(name[0] - 32);
  return name;
}

std::string LinkLine(const std::vector<LinkSummary>& links) {
  std::string text;
  for (size_t i = 0; i < std::min(links.size(), kLinksShown); ++i) {
    text += fmt::format("{}{} {:.0f} %", i == 0 ? "Busiest links: " : ", ", links[i].name,
                        links[i].busy_share * 100);
  }
  return text.empty() ? text : text + "\n";
}

std::string MembershipLines(const SimReport& report) {
  const MembershipReport& m = *report.membership;
  const double seconds = std::max(report.simulated_s, 1e-9);
  std::string text = fmt::format(
      "Machines: {:.2f} paid for and {:.2f} ready on average, {} at most; {} added, {} lost\n"
      "Requests of lost machines: {} moved with their KV, {} recomputed ({} tokens)\n",
      m.paid_s / seconds, m.ready_s / seconds, m.machines, m.came, m.lost,
      FormatCount(static_cast<int64_t>(m.moved)), FormatCount(static_cast<int64_t>(m.replayed)),
      FormatCount(static_cast<int64_t>(m.replayed_tokens)));
  if (m.nobody_s > 0) {
    text +=
        fmt::format("No instance took requests for {} ({:.2f} % of the time); at most {} waited\n",
                    FormatDuration(m.nobody_s), m.nobody_s / seconds * 100,
                    FormatCount(static_cast<int64_t>(m.waited_most)));
  }
  return text;
}

// Shares of the tokens that were delivered while requests arrived: what follows only drains the
// queues.
std::vector<double> ClientShares(const SimReport& report) {
  double all = 0;
  for (const ClientReport& c : report.latency.clients) {
    all += static_cast<double>(c.told_while_arriving);
  }
  std::vector<double> shares;
  for (const ClientReport& c : report.latency.clients) {
    shares.push_back(all > 0 ? static_cast<double>(c.told_while_arriving) / all : 0);
  }
  return shares;
}

std::string ClientLines(const SimReport& report) {
  const std::vector<double> shares = ClientShares(report);
  std::string text;
  for (size_t i = 0; i < std::min(shares.size(), report.clients.size()); ++i) {
    const ClientReport& c = report.latency.clients[i];
    text += fmt::format(
        "Client {}: {} requests, {:.1f} % of the tokens while requests arrived, TTFT p50 {} and "
        "p99 {} ms\n",
        report.clients[i], FormatCount(static_cast<int64_t>(c.requests)), shares[i] * 100,
        Number(Ms(c.ttft.At(0.5))), Number(Ms(c.ttft.At(0.99))));
  }
  return text;
}

Json MembershipJson(const SimReport& report) {
  if (!report.membership) return nullptr;
  const MembershipReport& m = *report.membership;
  return {{"came", m.came},
          {"lost", m.lost},
          {"moved", m.moved},
          {"replayed", m.replayed},
          {"replayed_tokens", m.replayed_tokens},
          {"waited_most", m.waited_most},
          {"nobody_s", m.nobody_s},
          {"ready_s", m.ready_s},
          {"paid_s", m.paid_s},
          {"simulated_s", report.simulated_s}};
}

std::string InstanceLine(const InstanceSummary& at) {
  std::string busy;
  for (const double share : at.busy_share) {
    fmt::format_to(std::back_inserter(busy), "{}{:.0f}", busy.empty() ? "" : "/", share * 100);
  }
  if (at.kv_blocks == 0) return fmt::format("{}: busy {} %\n", Capitalised(at.name), busy);
  return fmt::format(
      "{}: busy {} %, {:.1f} sequences a step, KV {:.0f} % of {} blocks (most {:.0f} %), {} "
      "preemptions\n",
      Capitalised(at.name), busy, at.batch, at.kv_share * 100, FormatCount(at.kv_blocks),
      at.kv_share_peak * 100, at.preemptions);
}

Json MetricJson(const Quantiles& values) {
  if (values.count() == 0) return nullptr;
  Json json = {{"mean", Ms(values.mean())}, {"max", Ms(values.max())}};
  for (const Point& p : kPoints) json[p.key] = Ms(values.At(p.q));
  return json;
}

Json InstanceJson(const InstanceSummary& at) {
  return {{"name", at.name},
          {"busy_share", at.busy_share},
          {"mean_batch", at.batch},
          {"steps", at.steps},
          {"steps_full_of_sequences", at.full_of_sequences},
          {"steps_full_of_tokens", at.full_of_tokens},
          {"kv_blocks", at.kv_blocks},
          {"kv_share_mean", at.kv_share},
          {"kv_share_peak", at.kv_share_peak},
          {"preemptions", at.preemptions}};
}

Json SloJson(const SimReport& report) {
  const LatencyLimits& limits = report.limits;
  if (!limits.any()) return nullptr;
  const auto value = [](std::optional<double> v, double factor) {
    return v ? Json(*v * factor) : Json();
  };
  const LatencyReport& r = report.latency;
  const Interval over = MeanInterval(report.attainment);
  return {{"ttft_ms", value(limits.ttft_s, 1e3)},
          {"tpot_ms", value(limits.tpot_s, 1e3)},
          {"ttft_attainment", ShareOfAll(r.met_ttft, r)},
          {"tpot_attainment", ShareOfAll(r.met_tpot, r)},
          {"attainment", r.attainment()},
          {"attainment_per_seed", report.attainment},
          {"attainment_low", over.low},
          {"attainment_high", over.high},
          {"attainment_target", limits.share()},
          {"kept", report.meets_target()}};
}

Json ClientsJson(const SimReport& report) {
  const std::vector<double> shares = ClientShares(report);
  Json clients = Json::array();
  for (size_t i = 0; i < std::min(shares.size(), report.clients.size()); ++i) {
    const ClientReport& c = report.latency.clients[i];
    clients.push_back({{"name", report.clients[i]},
                       {"requests", c.requests},
                       {"output_tokens", c.told_tokens},
                       {"share_while_arriving", shares[i]},
                       {"ttft_ms", MetricJson(c.ttft)},
                       {"e2e_ms", MetricJson(c.e2e)}});
  }
  return clients;
}

}  // namespace

std::string ReportTable(const SimReport& report) {
  std::string text = fmt::format("{}\nStep times: {}\nWorkload: {}\n\n", report.deployment,
                                 report.cost_from, report.workload);
  if (report.saturation) {
    text += fmt::format(
        "SATURATED: {:.4g} requests arrive per second and the queue grows by {:.4g} of them\n\n",
        report.saturation->arrivals_per_s, report.saturation->growth_per_s);
  }
  text += LatencyRows(report) + "\n";
  const LatencyReport& r = report.latency;
  text += fmt::format(
      "Throughput: {:.4g} requests/s, {} output tokens/s, {} tokens/s in all\n"
      "Requests: {} done, {} refused; {} steps in {} simulated\n",
      report.requests_per_s(), Number(report.output_tokens_per_s()),
      Number(report.total_tokens_per_s()), FormatCount(static_cast<int64_t>(r.requests)),
      FormatCount(static_cast<int64_t>(r.refused)), FormatCount(static_cast<int64_t>(report.steps)),
      FormatDuration(r.seconds()));
  text += SloLines(report);
  text += ClientLines(report);
  if (report.membership) text += MembershipLines(report);
  for (size_t i = 0; i < std::min(report.instances.size(), kInstanceLinesMax); ++i) {
    text += InstanceLine(report.instances[i]);
  }
  if (report.instances.size() > kInstanceLinesMax) {
    text += fmt::format("... and {} instances more (--json has them)\n",
                        report.instances.size() - kInstanceLinesMax);
  }
  text += LinkLine(report.links);
  if (const auto hits = report.prefix_hit_rate()) {
    text += fmt::format("Prefix cache: {:.2f} % of {} prompt tokens found\n", *hits * 100,
                        FormatCount(static_cast<int64_t>(report.prefix_query_tokens)));
  }
  if (report.kv_transfer.count() > 0) {
    text +=
        fmt::format("KV hand-over: waits {} ms and takes {} ms on average, p99 {} and {} ms\n",
                    Number(Ms(report.kv_wait.mean())), Number(Ms(report.kv_transfer.mean())),
                    Number(Ms(report.kv_wait.At(0.99))), Number(Ms(report.kv_transfer.At(0.99))));
  }
  if (!report.instances.empty()) text += "Bottleneck: " + report.Bottleneck() + "\n";
  if (const auto usd = report.usd_per_million_output_tokens()) {
    text += fmt::format("Cost: {:.4g} USD/h, {:.4g} USD per million output tokens\n",
                        *report.usd_per_hour, *usd);
  }
  return text;
}

Json ReportJson(const SimReport& report) {
  const LatencyReport& r = report.latency;
  const auto hits = report.prefix_hit_rate();
  Json json = {
      {"deployment", report.deployment},
      {"step_times", report.cost_from},
      {"workload", report.workload},
      {"rate", report.rate ? Json(*report.rate) : Json()},
      {"seeds", report.seeds},
      {"requests", r.requests},
      {"refused", r.refused},
      {"prompt_tokens", r.prompt_tokens},
      {"output_tokens", r.output_tokens},
      {"steps", report.steps},
      {"prefix_query_tokens", report.prefix_query_tokens},
      {"prefix_hit_tokens", report.prefix_hit_tokens},
      {"prefix_hit_rate", hits ? Json(*hits) : Json()},
      {"simulated_s", r.seconds()},
      {"requests_per_s", report.requests_per_s()},
      {"output_tokens_per_s", report.output_tokens_per_s()},
      {"total_tokens_per_s", report.total_tokens_per_s()},
      {"saturated", report.saturation.has_value()},
      {"queue_growth_per_s", report.saturation ? Json(report.saturation->growth_per_s) : Json(0)},
      {"slo", SloJson(report)},
      {"clients", ClientsJson(report)},
      {"kv_wait_ms", MetricJson(report.kv_wait)},
      {"kv_transfer_ms", MetricJson(report.kv_transfer)},
      {"membership", MembershipJson(report)},
      {"instances", Json::array()}};
  for (const Metric& m : kMetrics) {
    const bool none = report.saturation && m.grows;
    json[std::string(m.key) + "_ms"] = none ? Json() : MetricJson(r.*m.values);
  }
  for (const InstanceSummary& at : report.instances) json["instances"].push_back(InstanceJson(at));
  json["links"] = Json::array();
  for (const LinkSummary& link : report.links) {
    json["links"].push_back({{"name", link.name}, {"busy_share", link.busy_share}});
  }
  json["bottleneck"] = report.instances.empty() ? Json() : Json(report.Bottleneck());
  const auto usd = report.usd_per_million_output_tokens();
  json["usd_per_hour"] = report.usd_per_hour ? Json(*report.usd_per_hour) : Json();
  json["usd_per_million_output_tokens"] = usd ? Json(*usd) : Json();
  return json;
}

std::string ReportCsvHeader() {
  std::string line = "rate,seeds,requests,refused,saturated";
  for (const Metric& m : kMetrics) {
    line += fmt::format(",{}_mean_ms", m.key);
    for (const Point& p : kPoints) line += fmt::format(",{}_{}_ms", m.key, p.key);
  }
  return line +
         ",requests_per_s,output_tokens_per_s,ttft_attainment,tpot_attainment,attainment,"
         "attainment_low,attainment_high,busiest_share,kv_share_mean,kv_share_peak,preemptions,"
         "usd_per_million_output_tokens\n";
}

std::string ReportCsvRow(const SimReport& report) {
  const LatencyReport& r = report.latency;
  std::string line =
      fmt::format("{},{},{},{},{}", report.rate ? FormatReal(*report.rate) : "inf",
                  report.seeds.size(), r.requests, r.refused, report.saturation ? 1 : 0);
  for (const Metric& m : kMetrics) {
    const Quantiles& values = r.*m.values;
    const bool none = values.count() == 0 || (report.saturation && m.grows);
    line += none ? "," : fmt::format(",{:.6g}", Ms(values.mean()));
    for (const Point& p : kPoints) line += none ? "," : fmt::format(",{:.6g}", Ms(values.At(p.q)));
  }
  const Interval over = MeanInterval(report.attainment);
  double busiest = 0, kv = 0, kv_peak = 0;
  uint64_t preemptions = 0;
  for (const InstanceSummary& at : report.instances) {
    for (const double share : at.busy_share) busiest = std::max(busiest, share);
    kv = std::max(kv, at.kv_share);
    kv_peak = std::max(kv_peak, at.kv_share_peak);
    preemptions += at.preemptions;
  }
  const auto usd = report.usd_per_million_output_tokens();
  return line + fmt::format(
                    ",{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},"
                    "{},{}\n",
                    report.requests_per_s(), report.output_tokens_per_s(),
                    ShareOfAll(r.met_ttft, r), ShareOfAll(r.met_tpot, r), r.attainment(), over.low,
                    over.high, busiest, kv, kv_peak, preemptions,
                    usd ? fmt::format("{:.6g}", *usd) : "");
}

}  // namespace millrace::sim
