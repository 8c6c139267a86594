// Compares the published runs of DistServe's released simulator, row by row and request by request.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/statistics.h"
#include "cost/distserve_cost.h"
#include "experiments/distserve_data.h"
#include "experiments/lib/distserve/simdistserve.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

using distserve::SimDistServeOptions;
using distserve::SimDistServeResult;

constexpr size_t kRequests = 1000;
constexpr double kRowTolerance = 1e-3;  // relative
constexpr double kRequestToleranceMs = 1e-3;
constexpr size_t kSummaryColumns = 20;
constexpr size_t kRequestColumns = 7;
constexpr size_t kQuickRows = 4;
const char* const kMetrics[] = {"ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99",   "tpot_mean",
                                "tpot_p50",  "tpot_p90", "tpot_p99", "attain_both"};

using Row = std::vector<std::string>;

double Number(const Row& row, size_t column) { return std::strtod(row[column].c_str(), nullptr); }
int Whole(const Row& row, size_t column) { return static_cast<int>(Number(row, column)); }

struct Inputs {
  cost::DistServeProfile disaggregated, colocated;
  std::vector<Lengths> lengths;
  std::string data;
};

Result<SimDistServeOptions> OptionsOf(const Inputs& in, const Row& row) {
  const std::string model = "opt-" + row[1];
  SimDistServeOptions options{.colocated = row[0] == "vllm"};
  const auto& profile = options.colocated ? in.colocated : in.disaggregated;
  MR_ASSIGN_OR_RETURN(options.prefill, profile.Find(model, Whole(row, 2)));
  options.prefill_stages = Whole(row, 3);
  if (!options.colocated) {
    MR_ASSIGN_OR_RETURN(options.decode, profile.Find(model, Whole(row, 4)));
    options.decode_stages = Whole(row, 5);
  }
  MR_ASSIGN_OR_RETURN(const auto max_tokens, MaxTokens(in.data, model));
  const auto found = max_tokens.find({Whole(row, 2), Whole(row, 3)});
  if (found != max_tokens.end()) options.prefill_tokens_max = found->second;
  return options;
}

Result<SimDistServeResult> RunRow(const Inputs& in, const Row& row) {
  MR_ASSIGN_OR_RETURN(const auto options, OptionsOf(in, row));
  const auto arrivals = OracleArrivalsMs(in.lengths.size(), Number(row, 6));
  std::vector<distserve::SimDistServeRequest> requests;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    requests.push_back({arrivals[i], in.lengths[i].input, in.lengths[i].output});
  }
  return SimulateSimDistServe(options, requests);
}

// The metrics in the order of kMetrics.
std::vector<double> Summarise(const SimDistServeResult& result, double slo_ttft_ms,
                              double slo_tpot_ms) {
  std::vector<double> ttft, tpot;
  double attained = 0;
  for (const auto& t : result.times) {
    ttft.push_back(t.ttft_ms);
    tpot.push_back(t.tpot_ms);
    attained += t.ttft_ms <= slo_ttft_ms && t.tpot_ms <= slo_tpot_ms ? 1 : 0;
  }
  std::vector<double> all;
  for (const auto* values : {&ttft, &tpot}) {
    all.push_back(std::accumulate(values->begin(), values->end(), 0.0) /
                  static_cast<double>(values->size()));
    for (const double percent : {50, 90, 99}) all.push_back(Percentile(*values, percent));
  }
  all.push_back(100 * attained / static_cast<double>(result.times.size()));
  return all;
}

// The largest relative difference in the row, and its metric.
Figure CompareRow(const Row& row, const SimDistServeResult& result) {
  const auto ours = Summarise(result, Number(row, 17), Number(row, 18));
  size_t worst = 0;
  double worst_error = -1;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double expected = Number(row, 8 + i);
    const double error = std::abs(ours[i] - expected) / expected;
    if (error > worst_error) {
      worst_error = error;
      worst = i;
    }
  }
  Json more = {{"worst_metric", kMetrics[worst]},
               {"worst_relative_error", worst_error},
               {"makespan_relative_error", std::abs(result.makespan_ms / Number(row, 19) - 1)}};
  return {.name = row[0] == "vllm" ? fmt::format("vllm opt-{} tp{} pp{}, {} req/s, ttft p90",
                                                 row[1], row[2], row[3], row[6])
                                   : fmt::format("opt-{} ({},{},{},{}), {} req/s, ttft p90", row[1],
                                                 row[2], row[3], row[4], row[5], row[6]),
          .paper = Number(row, 10),
          .ours = ours[2],
          .unit = "ms",
          .verdict = worst_error <= kRowTolerance
                         ? fmt::format("reproduced: 9 metrics within {:.1e} relative", worst_error)
                         : fmt::format("not reproduced: {} off by {:.2f} %", kMetrics[worst],
                                       100 * worst_error),
          .more = std::move(more),
          .held = worst_error <= kRowTolerance};
}

Result<Figure> CompareRequests(const Inputs& in) {
  const std::string path =
      in.data + "/profiles/distserve/simdistserve_oracle_perreq_opt13b_2_1_1_1_r4.csv";
  MR_ASSIGN_OR_RETURN(const auto rows, ReadCsv(path, kRequestColumns));
  const Row run = {"distserve", "13b", "2", "1", "1", "1", "4"};
  MR_ASSIGN_OR_RETURN(const auto result, RunRow(in, run));
  if (rows.size() != result.times.size()) {
    return InvalidArgument(
        fmt::format("{}: {} requests, expected {}", path, rows.size(), result.times.size()));
  }
  double worst_ms = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& t = result.times[i];
    worst_ms = std::max({worst_ms, std::abs(t.ttft_ms - Number(rows[i], 4)),
                         std::abs(t.tpot_ms - Number(rows[i], 5)),
                         std::abs(t.e2e_ms - Number(rows[i], 6))});
  }
  return Figure{.name = "opt-13b (2,1,1,1), 4 req/s: every request, largest difference",
                .paper = 0.0,
                .ours = worst_ms,
                .unit = "ms",
                .verdict = worst_ms <= kRequestToleranceMs
                               ? "reproduced: 1000 requests, TTFT, TPOT and end to end"
                               : "not reproduced",
                .held = worst_ms <= kRequestToleranceMs};
}

Result<std::vector<Figure>> RunOracle(const Context& context) {
  const std::string folder = context.data + "/profiles/distserve/";
  MR_ASSIGN_OR_RETURN(auto disaggregated,
                      cost::DistServeProfile::Load(folder + "profiler-a100-80g.distserve.json"));
  MR_ASSIGN_OR_RETURN(auto colocated,
                      cost::DistServeProfile::Load(folder + "profiler-a100-80g.vllm.json"));
  MR_ASSIGN_OR_RETURN(auto lengths, AzureLengthsWithin2048(context.data, kRequests));
  const Inputs in{std::move(disaggregated), std::move(colocated), std::move(lengths), context.data};
  MR_ASSIGN_OR_RETURN(const auto rows,
                      ReadCsv(folder + "simdistserve_oracle_summary.csv", kSummaryColumns));
  std::vector<Figure> figures;
  for (const auto& row : rows) {
    if (context.quick && figures.size() == kQuickRows) break;
    MR_ASSIGN_OR_RETURN(const auto result, RunRow(in, row));
    figures.push_back(CompareRow(row, result));
  }
  MR_ASSIGN_OR_RETURN(auto requests, CompareRequests(in));
  figures.push_back(std::move(requests));
  return figures;
}

}  // namespace

Experiment DistserveOracleExperiment() {
  return {.name = "distserve_oracle",
          .title = "DistServe's released simulator, run by run (OSDI'24, section 4; artifact)",
          .quick = true,
          .run = RunOracle};
}

}  // namespace millrace::experiments
