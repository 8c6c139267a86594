// Helix (ASPLOS'25), sections 6.3 to 6.8: decode throughput and latency of Helix, Swarm and
// separate pipelines on the published placements, as given by its released simulator, by an
// imitation of that simulator.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "experiments/helix_runs.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

constexpr double kBar = 0.05;
constexpr int kThreads = 2;

// Seconds, of prompts and of decode iterations in online runs.
struct Latencies {
  double prompt_p50, prompt_p95, decode_p50, decode_p95;
};

struct Row {
  std::string name;
  double paper_tokens_per_s = 0;
  HelixRun run;
  std::optional<Latencies> paper;
  std::string note;
};

std::vector<HelixPart> Parts(const std::string& folder, const std::vector<std::string>& names,
                             const std::vector<double>& loads) {
  std::vector<HelixPart> parts;
  for (size_t i = 0; i < names.size(); ++i) parts.push_back({folder + "/" + names[i], loads[i]});
  return parts;
}

HelixRun Offline(std::string model, HelixMethod method, std::vector<HelixPart> parts) {
  return {.model = std::move(model), .method = method, .parts = std::move(parts)};
}
HelixRun Online(std::string model, HelixMethod method, std::vector<HelixPart> parts) {
  return {.model = std::move(model),
          .method = method,
          .online = true,
          .parts = std::move(parts),
          .warm_up_s = 0,
          .window_s = 1800};
}

constexpr auto kHelix = HelixMethod::kHelix;
constexpr auto kSwarm = HelixMethod::kSwarm;
constexpr auto kPipelines = HelixMethod::kRandom;  // only one route exists
const std::vector<std::string> kHelix30 = {"helix_a100", "helix_l4", "helix_t4"};
const std::vector<std::string> kSp = {"sp_a100", "sp_l4", "sp_t4"};
const std::vector<std::string> kSp42 = {"sp_a100", "sp_l4", "sp_l4x2", "sp_t4x4"};
const std::vector<std::string> kSpPlus42 = {"sp_a100", "sp_l4", "sp_l4x2", "sp_t4x4", "sp_v100_t4"};

// The loads of the artifact's scripts.
void AddSingle(std::vector<Row>& rows) {
  const std::string f30 = "single24/llama1_30b", f70 = "single24/llama2_70b";
  const char *m30 = "llama1_30b", *m70 = "llama2_70b";
  rows.push_back({"single 30B offline, Helix",
                  339.6,
                  Offline(m30, kHelix, Parts(f30, kHelix30, {20, 20, 20})),
                  {},
                  ""});
  rows.push_back({"single 30B offline, Swarm",
                  151.6,
                  Offline(m30, kSwarm, Parts(f30, {"swarm"}, {50})),
                  {},
                  ""});
  rows.push_back({"single 30B offline, SP",
                  309.0,
                  Offline(m30, kPipelines, Parts(f30, kSp, {30, 25, 25})),
                  {},
                  ""});
  rows.push_back({"single 30B online, Helix", 216.7,
                  Online(m30, kHelix, Parts(f30, kHelix30, {600, 200, 170})),
                  Latencies{.43, 2.95, .13, .70}, ""});
  rows.push_back({"single 30B online, Swarm", 104.9,
                  Online(m30, kSwarm, Parts(f30, {"swarm"}, {450})),
                  Latencies{1.42, 2.28, .26, .47}, ""});
  rows.push_back({"single 30B online, SP", 189.8,
                  Online(m30, kPipelines, Parts(f30, kSp, {500, 150, 150})),
                  Latencies{.42, 2.99, .11, .57}, ""});
  rows.push_back({"single 70B offline, Helix",
                  252.1,
                  Offline(m70, kHelix, Parts(f70, {"helix"}, {20})),
                  {},
                  ""});
  rows.push_back({"single 70B offline, Swarm",
                  124.7,
                  Offline(m70, kSwarm, Parts(f70, {"swarm"}, {180})),
                  {},
                  ""});
  rows.push_back({"single 70B offline, SP",
                  124.3,
                  Offline(m70, kPipelines, Parts(f70, kSp, {18, 40, 3})),
                  {},
                  ""});
  rows.push_back({"single 70B online, Helix", 141.6,
                  Online(m70, kHelix, Parts(f70, {"helix"}, {700})),
                  Latencies{2.64, 4.41, .98, 3.19}, ""});
  rows.push_back({"single 70B online, Swarm", 69.8,
                  Online(m70, kSwarm, Parts(f70, {"swarm"}, {350})),
                  Latencies{3.32, 5.01, 1.04, 2.51}, ""});
  rows.push_back({"single 70B online, SP", 84.0,
                  Online(m70, kPipelines, Parts(f70, kSp, {240, 120, 10})),
                  Latencies{.80, 4.19, .22, 1.20}, ""});
}

void AddDistributed(std::vector<Row>& rows) {
  const std::string f30 = "dist24/llama1_30b", f70 = "dist24/llama2_70b";
  const char *m30 = "llama1_30b", *m70 = "llama2_70b";
  rows.push_back({"dist 30B offline, Helix",
                  232.7,
                  Offline(m30, kHelix, Parts(f30, kHelix30, {20, 20, 20})),
                  {},
                  ""});
  rows.push_back(
      {"dist 30B offline, Swarm", 98.7, Offline(m30, kSwarm, Parts(f30, {"swarm"}, {60})), {}, ""});
  rows.push_back({"dist 30B offline, SP",
                  223.2,
                  Offline(m30, kPipelines, Parts(f30, kSp, {35, 40, 40})),
                  {},
                  ""});
  rows.push_back({"dist 30B online, Helix", 183.5,
                  Online(m30, kHelix, Parts(f30, kHelix30, {560, 140, 140})),
                  Latencies{.51, 4.41, .23, .83}, ""});
  rows.push_back({"dist 30B online, Swarm", 82.1, Online(m30, kSwarm, Parts(f30, {"swarm"}, {380})),
                  Latencies{3.25, 7.32, .48, 1.12}, ""});
  rows.push_back({"dist 30B online, SP", 173.8,
                  Online(m30, kPipelines, Parts(f30, kSp, {520, 100, 140})),
                  Latencies{.50, 6.47, .23, .92}, ""});
  rows.push_back(
      {"dist 70B offline, Helix", 98.0, Offline(m70, kHelix, Parts(f70, {"helix"}, {20})), {}, ""});
  rows.push_back({"dist 70B offline, Swarm",
                  51.9,
                  Offline(m70, kSwarm, Parts(f70, {"swarm"}, {180})),
                  {},
                  ""});
  rows.push_back({"dist 70B offline, SP",
                  61.9,
                  Offline(m70, kPipelines, Parts(f70, kSp, {1, 60, 50})),
                  {},
                  ""});
  rows.push_back({"dist 70B online, Helix", 59.3, Online(m70, kHelix, Parts(f70, {"helix"}, {320})),
                  Latencies{5.79, 9.41, .93, 7.72}, ""});
  rows.push_back({"dist 70B online, Swarm", 31.0, Online(m70, kSwarm, Parts(f70, {"swarm"}, {160})),
                  Latencies{7.22, 14.83, 1.23, 6.50}, ""});
  rows.push_back({"dist 70B online, SP", 33.6,
                  Online(m70, kPipelines, Parts(f70, kSp, {1, 120, 60})),
                  Latencies{4.96, 15.82, 1.20, 5.01}, ""});
}

void AddHeterogeneous(std::vector<Row>& rows) {
  const std::string f = "hetero42/llama2_70b";
  const char* m = "llama2_70b";
  rows.push_back({"hetero42 70B offline, Helix",
                  645.6,
                  Offline(m, kHelix, Parts(f, {"helix"}, {20})),
                  {},
                  ""});
  rows.push_back({"hetero42 70B offline, Swarm",
                  473.2,
                  Offline(m, kSwarm, Parts(f, {"swarm"}, {500})),
                  {},
                  ""});
  rows.push_back({"hetero42 70B offline, SP",
                  219.3,
                  Offline(m, kPipelines, Parts(f, kSp42, {1, 60, 35, 110})),
                  {},
                  ""});
  rows.push_back({"hetero42 70B offline, SP+",
                  285.1,
                  Offline(m, kPipelines, Parts(f, kSpPlus42, {1, 60, 35, 110, 90})),
                  {},
                  ""});
  rows.push_back({"hetero42 70B online, Helix", 459.8,
                  Online(m, kHelix, Parts(f, {"helix"}, {2150})), Latencies{2.09, 3.51, .73, 2.18},
                  ""});
  rows.push_back({"hetero42 70B online, Swarm", 309.6,
                  Online(m, kSwarm, Parts(f, {"swarm"}, {1450})), Latencies{2.70, 4.10, .77, 1.74},
                  ""});
  rows.push_back({"hetero42 70B online, SP", 140.2,
                  Online(m, kPipelines, Parts(f, kSp42, {1, 140, 160, 350})),
                  Latencies{2.21, 3.78, .47, 2.49}, ""});
  rows.push_back({"hetero42 70B online, SP+", 181.3,
                  Online(m, kPipelines, Parts(f, kSpPlus42, {1, 140, 160, 350, 200})),
                  Latencies{2.22, 4.20, .57, 2.62}, ""});
}

void AddAblations(std::vector<Row>& rows) {
  const std::string f = "dist24/llama2_70b";
  const char* m = "llama2_70b";
  rows.push_back(
      {"dist placement only, Swarm", 41.6, Offline(m, kHelix, Parts(f, {"swarm"}, {20})), {}, ""});
  rows.push_back({"dist placement only, Petals",
                  66.6,
                  Offline(m, kHelix, Parts(f, {"petals"}, {20})),
                  {},
                  ""});
  const std::string other =
      "the shipped layers differ from the artifact's on two nodes that carry no flow";
  for (const auto& [name, method, load, paper] :
       {std::tuple{"Helix", kHelix, 20.0, 99.8}, std::tuple{"Swarm", kSwarm, 180.0, 81.7},
        std::tuple{"random", HelixMethod::kRandom, 180.0, 87.4},
        std::tuple{"shortest queue", HelixMethod::kShortestQueue, 180.0, 83.6}}) {
    rows.push_back({fmt::format("dist scheduler only, {}", name),
                    paper,
                    Offline(m, method, Parts(f, {"helix_no_warm_start"}, {load})),
                    {},
                    other});
  }
  rows.push_back({"dist, links not pruned",
                  74.9,
                  Offline(m, kHelix, Parts(f, {"helix_no_pruning"}, {20})),
                  {},
                  ""});
  rows.push_back({"hetero42, links not pruned",
                  574.2,
                  Offline(m, kHelix, Parts("hetero42/llama2_70b", {"helix_no_pruning"}, {20})),
                  {},
                  ""});
}

std::string Off(double ours, double paper) {
  return fmt::format("{:+.1f} %", (ours / paper - 1) * 100);
}

std::string Verdict(double ours, double paper, const std::string& note) {
  std::string verdict = std::abs(ours / paper - 1) <= kBar ? "reproduced" : "not reproduced";
  verdict += ", " + Off(ours, paper);
  return note.empty() ? verdict : verdict + "; " + note;
}

Figure Throughput(const Row& row, const helix::HelixReport& report, double wall_s) {
  return {.name = row.name,
          .paper = row.paper_tokens_per_s,
          .ours = report.DecodeTokensPerS(),
          .unit = "decode tokens/s",
          .verdict = Verdict(report.DecodeTokensPerS(), row.paper_tokens_per_s, row.note),
          .more = {{"prompt_tokens_per_s", report.PromptTokensPerS()},
                   {"prompt_mean_s", report.prompt_s.mean()},
                   {"decode_mean_s", report.decode_s.mean()},
                   {"rejected", report.rejected},
                   {"kv_overflows", report.kv_overflows},
                   {"events", report.events},
                   {"wall_s", wall_s}},
          .held = std::abs(report.DecodeTokensPerS() / row.paper_tokens_per_s - 1) <= kBar};
}

// The artifact's rule: of n ordered values, the one at index floor(n q).
double ArtifactQuantile(const sim::Quantiles& values, double q) {
  const double place = std::floor(static_cast<double>(values.count()) * q);
  const double last = std::max(1.0, static_cast<double>(values.count()) - 1);
  return values.At(std::min(1.0, (place + 0.5) / last));  // At returns the value below
}

Figure LatencyFigure(const Row& row, const helix::HelixReport& report) {
  const double ours[] = {
      ArtifactQuantile(report.prompt_s, .5), ArtifactQuantile(report.prompt_s, .95),
      ArtifactQuantile(report.decode_s, .5), ArtifactQuantile(report.decode_s, .95)};
  const double paper[] = {row.paper->prompt_p50, row.paper->prompt_p95, row.paper->decode_p50,
                          row.paper->decode_p95};
  double worst = 0;
  for (int i = 0; i < 4; ++i) {
    // The artifact prints two decimals.
    const double least = std::max(0.0, std::abs(ours[i] - paper[i]) - 0.005);
    worst = std::max(worst, least / paper[i]);
  }
  const auto four = [](const double* v) {
    return fmt::format("{:.2f}/{:.2f} {:.2f}/{:.2f}", v[0], v[1], v[2], v[3]);
  };
  return {.name = row.name + ", latency p50/p95 of prompts, of decodes",
          .paper = four(paper),
          .ours = four(ours),
          .unit = "s",
          .verdict = fmt::format("{}, at most {:.1f} % off",
                                 worst <= kBar ? "reproduced" : "not reproduced", worst * 100)};
}

Result<std::vector<Figure>> RunRow(const HelixInputs& inputs, const Row& row) {
  const auto began = std::chrono::steady_clock::now();
  MR_ASSIGN_OR_RETURN(const helix::HelixReport report, RunHelix(inputs, row.run));
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  std::vector<Figure> figures = {Throughput(row, report, wall.count())};
  if (row.paper) figures.push_back(LatencyFigure(row, report));
  return figures;
}

Result<std::vector<Figure>> RunAll(const HelixInputs& inputs, const std::vector<Row>& rows,
                                   bool progress) {
  std::vector<std::optional<Result<std::vector<Figure>>>> results(rows.size());
  std::atomic<size_t> next = 0, done = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (size_t i = next++; i < rows.size(); i = next++) {
          results[i] = RunRow(inputs, rows[i]);
          if (progress) fmt::print(stderr, "\r{}/{} runs ", ++done, rows.size());
        }
      });
    }
  }
  if (progress) fmt::print(stderr, "\n");
  std::vector<Figure> figures;
  for (auto& result : results) {
    if (!result->ok()) return result->status();
    for (Figure& figure : result->value()) figures.push_back(std::move(figure));
  }
  return figures;
}

Result<std::vector<Figure>> Run(const Context& context) {
  MR_ASSIGN_OR_RETURN(const HelixInputs inputs, LoadHelixInputs(context.data));
  std::vector<Row> rows;
  if (context.quick) {
    AddDistributed(rows);
    std::erase_if(rows, [](const Row& row) { return row.name != "dist 70B offline, Swarm"; });
    return RunAll(inputs, rows, context.progress);
  }
  AddSingle(rows);
  AddDistributed(rows);
  AddHeterogeneous(rows);
  AddAblations(rows);
  return RunAll(inputs, rows, context.progress);
}

}  // namespace

Experiment HelixTablesExperiment() {
  return {.name = "helix_tables",
          .title = "Helix 6.3-6.8: offline and online tables of its simulator, by an imitation",
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
