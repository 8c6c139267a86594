#include "sim/autopilot/autopilot_sim.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/test_time.h"
#include "cluster/autopilot/plan_shape.h"
#include "plan/io/plan_yaml.h"
#include "sim/cluster/testing_plans.h"

namespace millrace::sim {
namespace {

using cluster::Decision;
using cluster::DecisionKind;
using What = MembershipChange::What;

constexpr int kLayers = 10, kNodes = 3;
const LatencyLimits kLimits = {.ttft_s = 1};

Plan PlanOf(std::vector<StagePlan> stages) {
  Plan plan;
  plan.model = "modelled";
  plan.cluster = "here";
  plan.num_layers = kLayers;
  plan.stages = std::move(stages);
  return plan;
}
// One after the other, on these nodes.
Plan ChainOf(const std::vector<NodeIndex>& nodes) {
  Plan plan = PlanOf({});
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto border = [&](size_t at) { return static_cast<int>(kLayers * at / nodes.size()); };
    plan.stages.push_back({{nodes[i]}, 1, {border(i), border(i + 1)}});
    plan.edges.push_back(
        {i == 0 ? std::nullopt : std::optional(static_cast<int>(i) - 1), static_cast<int>(i), 10});
  }
  plan.edges.push_back({static_cast<int>(nodes.size()) - 1, {}, 10});
  return plan;
}
Plan ReplicasOn(const std::vector<NodeIndex>& nodes) {
  Plan plan = PlanOf({});
  for (size_t i = 0; i < nodes.size(); ++i) {
    plan.stages.push_back({{nodes[i]}, 1, {0, kLayers}});
    plan.edges.push_back({{}, static_cast<int>(i), 5});
    plan.edges.push_back({static_cast<int>(i), {}, 5});
  }
  return plan;
}

ClusterSimOptions Options(Plan plan) {
  ClusterSimOptions options;
  options.workers = SimWorkers::kByNode;
  options.machines.assign(kNodes, MachineOf(plan, 1 << 20));
  options.plan = std::move(plan);
  for (int i = 0; i < kNodes; ++i) options.cluster.nodes.push_back({.name = fmt::format("n{}", i)});
  for (int i = 0; i <= kNodes; ++i) {
    for (int j = 0; j <= kNodes; ++j) {
      if (i != j) options.cluster.links.push_back({i, j, 1e9, Duration::Micros(100), std::nullopt});
    }
  }
  options.kv_bytes_per_token_layer = 1000;
  options.controller.deaths_max = 1000;
  options.controller.scheduler.max_model_len = 4096;
  options.controller.scheduler.max_num_seqs = 4;
  options.controller.scheduler.prefix_caching = false;
  options.limits = kLimits;
  return options;
}

// Requests per second when all come at once: the judge of this test is a simulation as well.
double RateOf(const Plan& plan, const cluster::StartSearch& order) {
  auto sim = std::move(ClusterSim::Create(Options(plan))).value();
  const auto workload = NewSynthetic({.requests = 100,
                                      .rate = std::numeric_limits<double>::infinity(),
                                      .prompt = {.a = order.load.prompt_tokens},
                                      .output = {.a = order.load.output_tokens}});
  const ClusterReport report = sim->Run(*workload);
  return static_cast<double>(report.latency.requests) / report.latency.seconds();
}

std::shared_ptr<const WorkerPlan> Shared(const Plan& plan, const ClusterSpec& named) {
  return std::make_shared<const WorkerPlan>(plan::OnWorkers(plan, named));
}

// Compares a chain over all nodes that are there with replicas on each.
cluster::SearchAnswer Search(const cluster::StartSearch& order,
                             const cluster::ClusterStatus& status) {
  ClusterSpec named;
  std::vector<std::string> names;
  std::vector<NodeIndex> here;
  for (int i = 0; i < kNodes; ++i) {
    names.push_back(fmt::format("n{}", i));
    named.nodes.push_back({.name = names.back()});
    const auto worker =
        std::ranges::find(status.workers, names.back(), &cluster::WorkerStatus::name);
    if (worker == status.workers.end() || worker->draining || worker->notice) continue;
    here.push_back(i);
  }
  named.name = "here";
  cluster::SearchAnswer answer;
  for (const Plan& plan : {ChainOf(here), ReplicasOn(here)}) {
    cluster::PlanForecast forecast{.shape = cluster::PlanShape(plan, names),
                                   .plan = Shared(plan, named),
                                   .method = "test",
                                   .requests_per_s = RateOf(plan, order)};
    if (cluster::PlanShape(status.plan, names) == forecast.shape) answer.current = forecast;
    answer.found.push_back(std::move(forecast));
  }
  std::ranges::stable_sort(answer.found, std::greater(), &cluster::PlanForecast::requests_per_s);
  return answer;
}

AutopilotSimOptions Acting() {
  return {.autopilot = {.mode = cluster::AutopilotMode::kAct, .limits = kLimits}, .search = Search};
}

std::string Lines(const cluster::Autopilot& autopilot) {
  std::string lines;
  for (const Decision& decision : autopilot.decisions()) {
    lines += cluster::DecisionLine(decision) + "\n";
  }
  return lines;
}

SyntheticOptions Load(double rate, double seconds) {
  return {.requests = static_cast<uint64_t>(rate * seconds),
          .rate = rate,
          .prompt = {.a = 100},
          .output = {.a = 20}};
}

TEST(AutopilotSim, ItFindsThePlanThatCarriesTheLoad) {
  const auto attainment = [](bool with_autopilot) {
    auto sim = std::move(ClusterSim::Create(Options(ChainOf({0})))).value();
    std::optional<AutopilotSim> pilot;
    if (with_autopilot) pilot.emplace(Acting(), *sim);
    const auto workload = NewSynthetic(Load(25, 150));  // more than one worker can do
    const ClusterReport report = sim->Run(*workload);
    EXPECT_EQ(report.latency.requests, 3750u);
    ExpectNoKvLeft(*sim);
    if (pilot) {
      const Decision& first = pilot->autopilot().decisions().front();
      EXPECT_EQ(first.kind, DecisionKind::kChange) << Lines(pilot->autopilot());
      EXPECT_EQ(first.candidates.front().shape, "n0 0-9, n1 0-9, n2 0-9");
      EXPECT_TRUE(first.outcome.starts_with("verified: ")) << first.outcome;
      EXPECT_EQ(report.controller.plans_applied, 2u);
    }
    return report.latency.attainment();
  };
  EXPECT_LT(attainment(false), 0.2);
  EXPECT_GT(attainment(true), 0.6) << "also those that came before the change count";
}

// SpotServe section 3.2: after a notice the cluster plans for what is left, and the machine serves
// until that plan is in force.
TEST(AutopilotSim, ANoticeIsAnsweredBeforeTheMachineIsTaken) {
  ClusterSimOptions options = Options(ChainOf({0, 1, 2}));
  for (int i = 0; i < kNodes; ++i) {
    options.membership.push_back({At(0), i, i, What::kCame});
    options.membership.push_back({At(0), i, i, What::kReady});
  }
  options.membership.push_back({At(100), 1, 1, What::kNotice});
  options.membership.push_back({At(130), 1, 1, What::kLost});
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  AutopilotSim pilot(Acting(), *sim);
  const auto workload = NewSynthetic(Load(5, 250));
  const ClusterReport report = sim->Run(*workload);
  EXPECT_EQ(report.latency.requests, 1250u) << "nothing is lost\n" << Lines(pilot.autopilot());
  EXPECT_EQ(report.latency.refused, 0u);
  bool changed = false;
  for (const Decision& decision : pilot.autopilot().decisions()) {
    changed |= decision.kind == DecisionKind::kChange &&
               decision.cause == cluster::DecisionCause::kNotice && decision.workers == 2 &&
               decision.candidates.front().shape == "n0 0-9, n2 0-9";
  }
  EXPECT_TRUE(changed) << Lines(pilot.autopilot());
  EXPECT_EQ(report.controller.pipelines_lost, 0u) << "the machine was empty when it vanished";
  ExpectNoKvLeft(*sim);
}

// The profiles say that one worker is ten times faster than it is, and the others ten times slower.
TEST(AutopilotSim, ProfilesThatAreWrongByTenTimesDoLittleHarm) {
  auto sim = std::move(ClusterSim::Create(Options(ReplicasOn({0, 1, 2})))).value();
  AutopilotSimOptions wrong = Acting();
  wrong.search = [](const cluster::StartSearch& order, const cluster::ClusterStatus& status) {
    cluster::SearchAnswer answer = Search(order, status);
    if (answer.current) answer.current->requests_per_s /= 10;
    ClusterSpec named{.name = "here", .nodes = {{.name = "n0"}}};
    answer.found = {{.shape = "n0 0-9",
                     .plan = Shared(ChainOf({0}), named),
                     .method = "test",
                     .requests_per_s = 10 * RateOf(ChainOf({0}), order)}};
    return answer;
  };
  AutopilotSim pilot(wrong, *sim);
  const auto workload = NewSynthetic(Load(25, 400));
  const ClusterReport report = sim->Run(*workload);
  EXPECT_EQ(report.latency.requests, 10000u) << Lines(pilot.autopilot());
  EXPECT_EQ(report.latency.refused, 0u);
  const auto& decisions = pilot.autopilot().decisions();
  const auto count = [&](DecisionKind kind) {
    return std::ranges::count(decisions, kind, &Decision::kind);
  };
  EXPECT_EQ(count(DecisionKind::kRollBack), 1) << Lines(pilot.autopilot());
  EXPECT_EQ(count(DecisionKind::kChange), 1) << "it is not tried again";
  EXPECT_GT(report.latency.attainment(), 0.7);
  ExpectNoKvLeft(*sim);
}

}  // namespace
}  // namespace millrace::sim
