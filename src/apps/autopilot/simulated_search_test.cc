#include "apps/autopilot/simulated_search.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::apps {
namespace {

const LatencyLimits kPairLimits = {.ttft_s = 2, .tpot_s = 0.1};

// Each of the two machines holds the model.
SimulatedSearch PairSearch() {
  PlanInputFlags flags;
  flags.live = "the pair";
  flags.live_text =
      "name: pair\n"
      "nodes: [{name: a, count: 2, device: a100-80gb, memory: 80 GB}]\n"
      "links: {within_region: {bandwidth: 100 Gbit/s, latency: 0.1 ms}}\n";
  flags.model = "opt-13b";
  auto search = SimulatedSearch::Load(std::move(flags), {.limits = kPairLimits, .effort = 0.1});
  EXPECT_TRUE(search.ok()) << search.status().ToString();
  return *std::move(search);
}

cluster::StartSearch OrderOf(double requests_per_s) {
  sim::WorkloadSpec load;
  load.rate = requests_per_s;
  load.requests = 1000;
  load.prompt = {.a = 500};
  load.output = {.a = 60};
  return OrderAtStart(load, 1);
}

// A cluster whose plan uses the first machine only.
cluster::ClusterStatus OnTheFirst(const std::vector<std::string>& workers) {
  cluster::ClusterStatus status;
  for (const std::string& name : workers) status.workers.push_back({.name = name});
  status.plan.num_layers = 40;
  status.plan.stages = {{.nodes = {0}, .tensor_parallel = 1, .layers = {0, 40}}};
  status.plan.edges = {{{}, 0, 1000}, {0, {}, 1000}};
  status.stages = {{.workers = {"a-0"}, .layers = {0, 40}}};
  return status;
}

TEST(SimulatedSearch, APlanThatCarriesTheLoadNeedsNoOther) {
  const cluster::StartSearch order = OrderOf(2);
  const cluster::SearchAnswer answer = PairSearch()(order, OnTheFirst({"a-0", "a-1"}));
  ASSERT_TRUE(answer.status.ok()) << answer.status.ToString();
  ASSERT_TRUE(answer.current);
  EXPECT_EQ(answer.current->requests_per_s, order.planned_requests_per_s);
  ASSERT_EQ(answer.found.size(), 1u);
  EXPECT_EQ(answer.found.front().shape, "a-0 0-39");
}

TEST(SimulatedSearch, UsesTheWorkersThatAreThere) {
  const SimulatedSearch search = PairSearch();
  const cluster::StartSearch order = OrderOf(16);
  const cluster::SearchAnswer both = search(order, OnTheFirst({"a-0", "a-1"}));
  ASSERT_TRUE(both.status.ok()) << both.status.ToString();
  ASSERT_TRUE(both.current);
  EXPECT_LT(both.current->requests_per_s, 16);
  EXPECT_EQ(both.found.front().shape, "a-0 0-39, a-1 0-39");
  EXPECT_GT(both.found.front().requests_per_s, 1.5 * both.current->requests_per_s);
  const Plan plan = search.OnCluster(*both.found.front().plan);
  EXPECT_TRUE(search.Deploy(plan, {.by_node = true}).ok());

  const cluster::SearchAnswer one = search(order, OnTheFirst({"a-0"}));
  ASSERT_TRUE(one.status.ok()) << one.status.ToString();
  for (const cluster::PlanForecast& found : one.found) EXPECT_EQ(found.shape, "a-0 0-39");

  // A plan that serves nothing is not kept, whatever it would carry.
  cluster::ClusterStatus down = OnTheFirst({"a-1"});
  down.missing = "nobody";
  const cluster::SearchAnswer other = search(OrderOf(2), down);
  ASSERT_TRUE(other.status.ok()) << other.status.ToString();
  EXPECT_FALSE(other.current);
  EXPECT_EQ(other.found.front().shape, "a-1 0-39");
  EXPECT_TRUE(other.found.front().plan);
}

}  // namespace
}  // namespace millrace::apps
