#include "plan/io/plan_yaml.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace millrace::plan {
namespace {

ClusterSpec Cluster() {
  ClusterSpec cluster;
  cluster.name = "rooms: three";
  for (const char* name : {"big-0", "big-1", "a \"quoted\": name", "null", "7"}) {
    cluster.nodes.push_back({.name = name, .device = "l4", .memory_bytes = 1 << 30});
  }
  cluster.links.push_back({0, 1, 1e9, Duration::Millis(1), {}});
  return cluster;
}

Plan SmallPlan() {
  Plan plan;
  plan.epoch = 3;
  plan.model = "llama-7b";
  plan.cluster = "rooms: three";
  plan.num_layers = 32;
  plan.partial_inference = false;
  plan.stages = {{{0}, 1, {0, 20}, StageRole::kPrefill},
                 {{1, 2}, 8, {20, 32}, StageRole::kDecode},
                 {{3}, 1, {20, 32}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 100.125},
                {0, 1, 1.0 / 3},
                {0, 2, 2e-7, EdgePhase::kHandOver},
                {1, {}, 5, EdgePhase::kPrefill},
                {2, {}, 6, EdgePhase::kDecode}};
  plan.unused = {{4, "its links carry nothing: 0 tokens/s # at all"}};
  plan.tokens_per_s = 100.125;
  plan.tokens_per_s_bound = 123456.789;
  return plan;
}

void ExpectEqual(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.cluster, b.cluster);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.partial_inference, b.partial_inference);
  EXPECT_EQ(a.tokens_per_s, b.tokens_per_s);
  EXPECT_EQ(a.tokens_per_s_bound, b.tokens_per_s_bound);
  ASSERT_EQ(a.stages.size(), b.stages.size());
  for (size_t i = 0; i < a.stages.size(); ++i) {
    EXPECT_EQ(a.stages[i].nodes, b.stages[i].nodes);
    EXPECT_EQ(a.stages[i].tensor_parallel, b.stages[i].tensor_parallel);
    EXPECT_EQ(a.stages[i].layers, b.stages[i].layers);
    EXPECT_EQ(a.stages[i].role, b.stages[i].role);
  }
  ASSERT_EQ(a.edges.size(), b.edges.size());
  for (size_t i = 0; i < a.edges.size(); ++i) {
    EXPECT_EQ(a.edges[i].from, b.edges[i].from);
    EXPECT_EQ(a.edges[i].to, b.edges[i].to);
    EXPECT_EQ(a.edges[i].tokens_per_s, b.edges[i].tokens_per_s);
    EXPECT_EQ(a.edges[i].phase, b.edges[i].phase);
  }
  ASSERT_EQ(a.unused.size(), b.unused.size());
  for (size_t i = 0; i < a.unused.size(); ++i) {
    EXPECT_EQ(a.unused[i].node, b.unused[i].node);
    EXPECT_EQ(a.unused[i].reason, b.unused[i].reason);
  }
}

std::string Error(std::string_view from, std::string_view to) {
  std::string text = WritePlanYaml(SmallPlan(), Cluster());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in\n" << text;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return ParsePlanYaml(text, "p.yaml", Cluster()).status().message();
}

TEST(PlanYamlTest, ReadsWhatItWrote) {
  const std::string text = WritePlanYaml(SmallPlan(), Cluster());
  const auto plan = ParsePlanYaml(text, "p.yaml", Cluster());
  ASSERT_TRUE(plan.ok()) << plan.status().ToString() << "\n" << text;
  ExpectEqual(*plan, SmallPlan());
}

TEST(PlanYamlTest, RandomPlansReadBackToTheLastBit) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    const ClusterSpec cluster = Cluster();
    Plan plan = SmallPlan();
    plan.stages.clear();
    plan.edges.clear();
    const auto count = static_cast<int>(rng.Between(0, 6));
    for (int i = 0; i < count; ++i) {
      const auto begin = static_cast<int>(rng.Between(0, 31));
      plan.stages.push_back({{static_cast<NodeIndex>(rng.Between(0, 4))},
                             static_cast<int>(rng.Between(1, 4)),
                             {begin, static_cast<int>(rng.Between(begin + 1, 32))},
                             static_cast<StageRole>(rng.Between(0, 2))});
      plan.edges.push_back({i == 0 ? std::nullopt : std::optional<int>(i - 1), i,
                            rng.Uniform() * static_cast<double>(rng.Between(1, 1'000'000))});
    }
    const auto read = ParsePlanYaml(WritePlanYaml(plan, cluster), "p.yaml", cluster);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ExpectEqual(*read, plan);
  }
}

TEST(PlanYamlTest, APlanForAnotherClusterIsRefused) {
  ClusterSpec other = Cluster();
  other.name = "cellar";
  other.nodes[1].memory_bytes *= 2;
  const auto plan = ParsePlanYaml(WritePlanYaml(SmallPlan(), Cluster()), "p.yaml", other);
  ASSERT_FALSE(plan.ok());
  EXPECT_TRUE(plan.status().message().starts_with(
      "p.yaml:6:22: the plan was made for another cluster: 'rooms: three' with fingerprint "))
      << plan.status().message();
  EXPECT_TRUE(plan.status().message().ends_with("; plan again for it"));
}

TEST(PlanYamlTest, TheFingerprintIsOfMachinesAndLinks) {
  const uint64_t print = ClusterFingerprint(Cluster());
  ClusterSpec cheaper = Cluster();
  cheaper.name = "other name";
  cheaper.nodes[0].price_usd_per_hour = 1;
  EXPECT_EQ(ClusterFingerprint(cheaper), print);
  ClusterSpec slower = Cluster();
  slower.links[0].bytes_per_s = 5e8;
  EXPECT_NE(ClusterFingerprint(slower), print);
  ClusterSpec smaller = Cluster();
  smaller.nodes.pop_back();
  EXPECT_NE(ClusterFingerprint(smaller), print);
}

TEST(PlanYamlTest, ErrorsNameThePlace) {
  EXPECT_EQ(Error("format: 1", "format: 2"),
            "p.yaml:2:9: the plan has format version 2, this program reads version 1; plan again "
            "with this program, or use the release that wrote the plan");
  EXPECT_EQ(Error("format: 1\n", ""), "") << "the first version needs no line";
  EXPECT_EQ(Error("layers: [0, 20]", "layers: [0, 33]"),
            "p.yaml:12:40: layers must be [BEGIN, END] with 0 <= BEGIN < END <= 32, the layers of "
            "the model");
  EXPECT_EQ(Error("nodes: [big-0]", "nodes: [bag-0]"),
            "p.yaml:12:23: the cluster has no node 'bag-0'; did you mean big-0?");
  EXPECT_EQ(Error("role: prefill", "role: fill"),
            "p.yaml:12:55: role must be one of both, prefill, decode, got 'fill'");
  EXPECT_EQ(Error("stage: 1", "stage: 4"),
            "p.yaml:13:13: stage must be an integer in [1, 1], got '4'");
  EXPECT_EQ(Error("to: 1,", "to: 3,"),
            "p.yaml:17:19: to must be 'coordinator' or a stage in [0, 2], got '3'");
  EXPECT_EQ(Error("flow: 5 tokens/s", "flow: 5"),
            "p.yaml:19:38: flow must have a unit (tokens/s), such as 120.5 tokens/s, got '5'");
  EXPECT_EQ(Error("from: 1, to: coordinator", "from: coordinator, to: coordinator"),
            "p.yaml:19:29: an edge must join two different ends");
  EXPECT_EQ(Error("phase: prefill", "phase: first"),
            "p.yaml:19:57: phase must be one of both, prefill, hand-over, decode, got 'first'");
  EXPECT_EQ(Error("to: coordinator, flow: 5 tokens/s, phase: prefill",
                  "to: coordinator, flow: 5 tokens/s, phase: hand-over"),
            "p.yaml:19:57: a hand-over goes from a stage to a stage");
  EXPECT_EQ(Error("bound:", "bounds:"),
            "p.yaml:10:1: unknown key 'bounds' in the plan file; did you mean bound?");
}

TEST(WorkerPlanTest, NamesWorkersWithoutKnowingTheCluster) {
  const auto read = ParseWorkerPlan(WritePlanYaml(SmallPlan(), Cluster()), "p");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->workers,
            (std::vector<std::string>{"big-0", "big-1", "a \"quoted\": name", "null", "7"}));
  ExpectEqual(read->plan, SmallPlan());
  EXPECT_EQ(WritePlanYaml(*read), WritePlanYaml(SmallPlan(), Cluster()));
}

// In 0.2.0 no plan said otherwise.
TEST(PlanYamlTest, AStageHasAllDevicesOfItsNodeUnlessItSays) {
  ClusterSpec cluster = Cluster();
  cluster.nodes[0].device_count = 4;
  Plan plan = SmallPlan();
  for (const int devices : {1, 2, 4}) {
    for (StagePlan& stage : plan.stages) {
      stage.tensor_parallel = stage.nodes.front() == 0 ? devices : 1;
    }
    const std::string text = WritePlanYaml(plan, cluster);
    const auto read = ParsePlanYaml(text, "p", cluster);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ExpectEqual(*read, plan);
  }
  std::string earlier = WritePlanYaml(plan, cluster);
  const std::string said = ", tensor_parallel: 4";
  ASSERT_NE(earlier.find(said), std::string::npos);
  earlier.erase(earlier.find(said), said.size());
  const auto read = ParsePlanYaml(earlier, "p", cluster);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ExpectEqual(*read, plan);
}

TEST(WorkerPlanTest, MayBeShort) {
  const auto read = ParseWorkerPlan(
      "format: 1\nmodel: demo\nlayers: 12\nstages:\n"
      "  - {stage: 0, nodes: [b], layers: [0, 5]}\n"
      "  - {stage: 1, nodes: [a, c], layers: [5, 12], tensor_parallel: 2}\n",
      "p");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->workers, (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_EQ(read->plan.stages[1].nodes, (std::vector<NodeIndex>{1, 2}));
  EXPECT_EQ(WritePlanYaml(*read).find("fingerprint"), std::string::npos) << "it is not known";
  const auto& edges = read->plan.edges;
  ASSERT_EQ(edges.size(), 3u) << "one in, one between, one out";
  EXPECT_EQ(edges[0].to, 0);
  EXPECT_FALSE(edges[0].from.has_value());
  EXPECT_EQ(edges[1].from, 0);
  EXPECT_EQ(edges[1].to, 1);
  EXPECT_EQ(edges[2].from, 1);
  EXPECT_FALSE(edges[2].to.has_value());
}

TEST(PlanYamlTest, APlanForAKnownClusterMayBeShortToo) {
  const auto read = ParsePlanYaml(
      "model: demo\nlayers: 12\nstages:\n  - {stage: 0, nodes: [big-0], layers: [0, 12]}\n"
      "  - {stage: 1, nodes: [big-1], layers: [0, 12]}\n",
      "p", Cluster());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->edges.size(), 4u) << "in and out of each";
  EXPECT_FALSE(ParsePlanYaml("model: demo\nlayers: 12\ncluster_fingerprint: \"0\"\nstages: []\n",
                             "p", Cluster())
                   .ok())
      << "made for another cluster";
}

TEST(WorkerPlanTest, OverlappingLayersAreEnteredInTheMiddleOnlyWherePartsMayRun) {
  const std::string stages =
      "stages:\n  - {stage: 0, nodes: [a], layers: [0, 8]}\n"
      "  - {stage: 1, nodes: [b], layers: [4, 12]}\n  - {stage: 2, nodes: [c], layers: [8, 12]}\n";
  const auto edges = [&stages](const char* partial) {
    const auto read =
        ParseWorkerPlan(std::string("format: 1\nmodel: demo\nlayers: 12\npartial_inference: ") +
                            partial + "\n" + stages,
                        "p");
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    return read.ok() ? read->plan.edges.size() : 0;
  };
  EXPECT_EQ(edges("true"), 5u) << "in, 0-1, 0-2, out twice";
  EXPECT_EQ(edges("false"), 4u) << "stage 1 cannot begin at layer 8";
}

TEST(WorkerPlanTest, ErrorsNameThePlace) {
  const auto error = [](const std::string& tail) {
    const auto read = ParseWorkerPlan("format: 1\nmodel: demo\nlayers: 12\n" + tail, "p");
    return read.ok() ? "no error" : read.status().message();
  };
  EXPECT_EQ(error("stages:\n  - {stage: 0, nodes: [a], layers: [0, 13]}\n").substr(0, 7),
            "p:5:36:");
  EXPECT_EQ(error("stages:\n  - {stage: 0, nodes: [], layers: [0, 12]}\n"),
            "p:5:23: a stage needs at least one node");
  EXPECT_EQ(error("stages:\n  - {stage: 0, nodes: [\"\"], layers: [0, 12]}\n"),
            "p:5:24: nodes's entry must be a plain value");
  EXPECT_EQ(error("flow: 1 tokens/s\nstages: []\n"), "p:1:1: 'bound' is missing in the plan file");
}

}  // namespace
}  // namespace millrace::plan
