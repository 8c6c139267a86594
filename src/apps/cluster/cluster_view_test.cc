#include "apps/cluster/cluster_view.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "apps/cluster/plan_diff.h"

namespace millrace::apps {
namespace {

Json SmallStatus() {
  return {{"model", "demo"},
          {"term", 2},
          {"epoch", 3},
          {"missing", nullptr},
          {"changing", false},
          {"workers",
           {{{"name", "a"},
             {"state", "serving"},
             {"layers", {{0, 6}}},
             {"rank", 0},
             {"ranks", 1},
             {"weight_bytes", 6 << 20},
             {"kv_bytes", 1 << 30},
             {"batches", 12031},
             {"silent_s", 0.1},
             {"address", "10.0.0.2:7101"},
             {"device", "cpu"},
             {"memory_bytes", 2147483648},
             {"cores", 4},
             {"zone", "east"},
             {"price_usd_per_hour", 0.12},
             {"spot", true},
             {"numeric_class", "x86-64"},
             {"prefill_tokens_per_s", 5012.3},
             {"decode_tokens_per_s", 301.2}},
            {{"name", "b"}, {"state", "draining"}, {"note", "numeric class differs"}}}},
          {"pipelines",
           {{{"id", 4},
             {"state", "open"},
             {"role", "both"},
             {"requests", 5},
             {"blocks_total", 4096},
             {"blocks_used", 120},
             {"workers", {"a", "b"}},
             {"layers", {{0, 6}, {6, 7}}}}}},
          {"stages",
           {{{"workers", Json::array({"a"})},
             {"layers", {{0, 6}}},
             {"role", "both"},
             {"up", true},
             {"kv_blocks", 4096},
             {"kv_blocks_used", 120},
             {"running", 4},
             {"waiting", 1}},
            {{"workers", Json::array({"b"})},
             {"layers", Json::array({Json::array({6, 7})})},
             {"role", "both"},
             {"up", false}}}},
          {"links",
           {{{"from", "coordinator"},
             {"to", "a"},
             {"latency_s", 2.1e-4},
             {"bytes_per_s", 2e8},
             {"age_s", 12}},
            {{"from", "a"},
             {"to", "coordinator"},
             {"latency_s", 2e-4},
             {"bytes_per_s", 1.175e8},
             {"age_s", 31}}}},
          {"requests", 5},
          {"waiting_for", {{"prefill", 1}, {"decode", 0}, {"transfer", 0}}},
          {"moving", 1},
          {"counters", {{"joins", 2}, {"workers_lost", 0}}}};
}

TEST(ClusterView, ShowsStagesWorkersAndRequests) {
  EXPECT_EQ(FormatClusterView(ReadClusterView(SmallStatus())),
            R"(demo, plan 3, term 2: ready
5 requests: 4 running, 1 waiting for prefill, 1 moving

STAGE               LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT           PLANNED           MEASURED                 KV SPEED
coordinator
a                   [##########..] 0-5          4     1      120/4,096    3 %
b                   [..........##] 6            0     0         not up

pipelines: 1 open

WORKER  STATE     WEIGHTS   KV        BATCHES  SILENT  ADDRESS        DEVICE
a       serving   6.00 MiB  1.00 GiB  12,031   0.1 s   10.0.0.2:7101  cpu
b       draining  0 B       0 B       0        0.0 s
b: numeric class differs

)"
            "MACHINE  ZONE  MEMORY    CORES  PRICE       SPOT  PREFILL     DECODE     "
            "CONTROLLER                     BITS\n"
            "a        east  2.00 GiB  4      0.12 USD/h  yes   5012 tok/s  301 tok/s  "
            "0.21 ms, 940 Mbit/s, 31 s ago  x86-64\n"
            "b        -     -         -      -           no    -           -          "
            "-                              -\n"
            R"(
since the start: joins 2
)");
  Json status = SmallStatus();
  status["missing"] = "Layers 4-7 are on no worker.";
  status["changing"] = true;
  EXPECT_EQ(FormatClusterView(ReadClusterView(status)).substr(0, 84),
            "demo, plan 3, term 2: not ready: Layers 4-7 are on no worker.; changing to another p");
}

TEST(ClusterView, ShowsNotices) {
  Json status = SmallStatus();
  status["workers"][0]["notice"] = {
      {"source", "aws"}, {"kind", "rebalance"}, {"leaves", false}, {"in_s", nullptr}};
  status["workers"][1]["notice"] = {
      {"source", "azure"}, {"kind", "preempt"}, {"leaves", true}, {"in_s", 22.7}};
  const ClusterView view = ReadClusterView(status);
  const std::string text = FormatClusterView(view);
  EXPECT_NE(text.find("\na: may leave (aws: rebalance)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nb: leaving in 23 s (azure: preempt)\n"), std::string::npos) << text;
  EXPECT_NE(FormatClusterNow(view, std::nullopt)
                .find("workers: 1 serving, a may leave (aws: rebalance), b draining,\n"
                      "  b leaving in 23 s (azure: preempt)\n"),
            std::string::npos);
}

TEST(ClusterView, ShowsClassesIfThereAreSeveral) {
  Json status = SmallStatus();
  status["workers"][0]["fingerprint"] = "fp_1";
  status["workers"][1]["fingerprint"] = "fp_1";
  status["pipelines"][0]["fingerprint"] = "fp_1";
  EXPECT_EQ(FormatClusterView(ReadClusterView(status)).find("CLASS"), std::string::npos);
  status["workers"][1]["fingerprint"] = "fp_2";
  status["workers"][1]["numeric_class"] = "aarch64";
  const std::string text = FormatClusterView(ReadClusterView(status));
  EXPECT_NE(text.find(R"(
CLASS  WORKERS  PIPELINES  REQUESTS  BITS
fp_1   1        1          5         x86-64
fp_2   1        0          0         aarch64
)"),
            std::string::npos)
      << text;
}

TEST(ClusterView, AScreenShowsWhatChanges) {
  Json status = SmallStatus();
  status["edges"] = Json::array({Json({{"from", "coordinator"},
                                       {"to", "a"},
                                       {"phase", "both"},
                                       {"planned_tokens_per_s", 75.5},
                                       {"tokens", 1000}})});
  const ClusterView before = ReadClusterView(status);
  status["edges"][0]["tokens"] = 1150;
  for (int i = 0; i < 12; ++i) {
    status["counters"][fmt::format("counter_{}", i)] = 1'000'000 + i;
  }
  EXPECT_EQ(FormatClusterNow(ReadClusterView(status), EarlierView{before, 1.5}),
            R"(demo, plan 3, term 2: ready
5 requests: 4 running, 1 waiting for prefill, 1 moving

STAGE               LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT           PLANNED           MEASURED                 KV SPEED
coordinator
  -> a              76 tok/s    100 %   100 tok/s   100 %
a                   [##########..] 0-5          4     1      120/4,096    3 %
b                   [..........##] 6            0     0         not up

pipelines: 1 open
workers: 1 serving, b draining
since the start: counter 0 1,000,000, counter 1 1,000,001, counter 10 1,000,010,
  counter 11 1,000,011, counter 2 1,000,002, counter 3 1,000,003,
  counter 4 1,000,004, counter 5 1,000,005, counter 6 1,000,006,
  counter 7 1,000,007, counter 8 1,000,008, counter 9 1,000,009, joins 2
)");
}

TEST(ClusterView, ShowsWhatIsNotUpAndWhatWasGivenUp) {
  Json status = SmallStatus();
  status["degraded"] = "Layers 4-7 are on no worker.";
  status["given_up"] = {{"plan", 4}, {"reason", "worker b cannot load layers 4-7: no memory"}};
  const std::string text = FormatClusterView(ReadClusterView(status));
  EXPECT_EQ(text.substr(0, text.find("\n\n")),
            "demo, plan 3, term 2: ready, but not every stage is up: Layers 4-7 are on no worker.\n"
            "plan 4 was given up: worker b cannot load layers 4-7: no memory\n"
            "5 requests: 4 running, 1 waiting for prefill, 1 moving");
}

TEST(ClusterView, MalformedAnswersAreReadSafely) {
  for (
      const char* text :
      {"{}", "[]", "null", R"({"workers":7,"pipelines":{},"counters":[]})",
       R"({"workers":[7,null,{"layers":[[1],[2,1],["a","b"],[-1,5],[0,1e9],[0,99999999999]]}]})",
       R"({"workers":[{"name":["a"],"rank":-5,"ranks":0,"weight_bytes":-1}]})",
       R"({"pipelines":[{"workers":[1,null,"a"],"layers":[[0,1]],"requests":18446744073709551615}]})",
       R"({"stages":[7,{"workers":7},{"workers":[null,"a"],"layers":[],"kv_blocks":-1}],"edges":[{}]})",
       R"({"waiting_for":7,"stages":[{"layers":[[0,1]]}],"edges":[{"from":"a","seconds":-1}]})",
       R"({"model":"a\nb\u001b[31m","counters":{"a":1.5,"b":18446744073709551615}})"}) {
    const std::string shown = FormatClusterView(ReadClusterView(*ParseJson(text)));
    EXPECT_EQ(shown.find('\x1b'), std::string::npos);
    EXPECT_NE(shown.find("requests"), std::string::npos) << text;
  }
}

WorkerPlan Plan(const std::string& stages) {
  auto plan = plan::ParseWorkerPlan("format: 1\nmodel: demo\nlayers: 12\nstages:\n" + stages, "p");
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

// a: 0-5, b: 6-11, 1 MiB a layer.
ClusterView TwoWorkers() {
  ClusterView view;
  view.workers = {
      {.name = "a", .layers = {{0, 6}}, .weight_bytes = 6 << 20},
      {.name = "b", .layers = {{6, 12}}, .weight_bytes = 6 << 20},
  };
  return view;
}

TEST(PlanDiff, TheSamePlanMovesNothing) {
  const PlanDiff diff =
      DiffPlans(TwoWorkers(), Plan("  - {stage: 0, nodes: [a], layers: [0, 6]}\n"
                                   "  - {stage: 1, nodes: [b], layers: [6, 12]}\n"));
  EXPECT_TRUE(diff.empty());
  EXPECT_EQ(FormatPlanDiff(diff), "a: 0-5 -> 0-5: stays\nb: 6-11 -> 6-11: stays\nno layer moves\n");
}

TEST(PlanDiff, SaysWhatIsFetchedAndDropped) {
  const PlanDiff diff =
      DiffPlans(TwoWorkers(), Plan("  - {stage: 0, nodes: [a], layers: [0, 8]}\n"
                                   "  - {stage: 1, nodes: [c], layers: [8, 12]}\n"));
  EXPECT_EQ(FormatPlanDiff(diff),
            "a: 0-5 -> 0-7: gets 6-7 (about 2.00 MiB)\n"
            "b: 6-11 -> -: drops 6-11\n"
            "c: - -> 8-11: gets 8-11 (about 4.00 MiB); HAS NOT JOINED\n"
            "6 layers to fetch, about 6.00 MiB of weights; the KV of running requests moves with "
            "them\n");
}

TEST(PlanDiff, AnotherDegreeIsAnotherShare) {
  const PlanDiff diff = DiffPlans(
      TwoWorkers(), Plan("  - {stage: 0, nodes: [a, b], layers: [0, 12], tensor_parallel: 2}\n"));
  EXPECT_EQ(FormatPlanDiff(diff),
            "a: 0-5 -> 0-11: gets 0-11 (about 6.00 MiB), drops 0-5\n"
            "b: 6-11 -> 0-11: gets 0-11 (about 6.00 MiB), drops 6-11\n"
            "24 layers to fetch, about 12.0 MiB of weights; the KV of running requests moves with "
            "them\n");
}

TEST(PlanDiff, ReportsUnknownSizesAndMissingLayers) {
  ClusterView view = TwoWorkers();
  view.workers.pop_back();
  const PlanDiff diff = DiffPlans(view, Plan("  - {stage: 0, nodes: [a], layers: [0, 7]}\n"));
  EXPECT_EQ(FormatPlanDiff(diff),
            "a: 0-5 -> 0-6: gets 6 (of unknown size: no worker holds them)\n"
            "the plan leaves out layers 7-11: no request could be served\n"
            "1 layer to fetch, at least 0 B of weights; the KV of running requests moves with "
            "them\n");
}

}  // namespace
}  // namespace millrace::apps
