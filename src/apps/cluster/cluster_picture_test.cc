#include "apps/cluster/cluster_picture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>

namespace millrace::apps {
namespace {

constexpr int kBlocks = 512;

StageView Stage(const std::string& worker, LayerRange layers, const std::string& role,
                int64_t running, int64_t waiting, int64_t used) {
  return {.workers = {worker},
          .layers = layers,
          .role = role,
          .up = true,
          .kv_blocks = kBlocks,
          .kv_blocks_used = used,
          .running = running,
          .waiting = waiting};
}

EdgeView Edge(const std::string& from, const std::string& to, const std::string& phase,
              double planned, int64_t tokens, int64_t bytes = 0, double seconds = 0) {
  return {.from = from,
          .to = to,
          .phase = phase,
          .planned_tokens_per_s = planned,
          .tokens = tokens,
          .requests = 1,
          .bytes = bytes,
          .seconds = seconds};
}

std::string Draw(const ClusterView& view, const std::optional<EarlierView>& earlier = {}) {
  std::string text = ClusterPicture(view, earlier);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  return text;
}

TEST(ClusterPicture, OneWorker) {
  ClusterView view;
  view.stages = {Stage("this-process", {0, 12}, "both", 2, 1, 128)};
  view.edges = {Edge("coordinator", "this-process", "both", 0, 1024),
                Edge("this-process", "coordinator", "both", 0, 1024)};
  EXPECT_EQ(Draw(view), R"(STAGE               LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT           PLANNED           MEASURED                 KV SPEED
coordinator
  -> this-process   -                   1024 tok    100 %
this-process        [############] 0-11         2     1        128/512   25 %
  -> coordinator    -                   1024 tok    100 %

)");
}

// Two prefill workers, a decode worker of all layers, and one in two stages. One more is missing.
ClusterView SixWorkers() {
  ClusterView view;
  view.stages = {
      Stage("p1", {0, 12}, "prefill", 2, 1, 120), Stage("p2", {0, 12}, "prefill", 1, 0, 80),
      Stage("d1", {0, 12}, "decode", 4, 1, 200),  Stage("d2", {0, 5}, "decode", 3, 0, 130),
      Stage("d3", {5, 12}, "decode", 3, 0, 130),  Stage("", {0, 12}, "decode", 0, 0, 0),
  };
  view.stages[5].up = false;
  view.stages[4].workers = {"d3", "d4"};
  view.edges = {Edge("coordinator", "p1", "prefill", 150, 160'000),
                Edge("p1", "coordinator", "prefill", 150, 160'000),
                Edge("coordinator", "p2", "prefill", 75, 40'000),
                Edge("p2", "coordinator", "prefill", 75, 40'000),
                Edge("p1", "d1", "hand-over", 150, 150'000, 3'000'000'000, 2),
                Edge("p2", "d2", "hand-over", 75, 40'000, 500'000'000, 8),
                Edge("p2", "d3", "hand-over", 75, 40'000, 700'000'000, 9),
                Edge("coordinator", "d1", "decode", 50, 90'000),
                Edge("d1", "coordinator", "decode", 50, 90'000),
                Edge("coordinator", "d2", "decode", 25, 30'000),
                Edge("d2", "d3", "decode", 25, 30'000),
                Edge("d3", "coordinator", "decode", 25, 30'000),
                Edge("coordinator", "stage 5", "decode", 0, 0),
                Edge("stage 5", "coordinator", "decode", 0, 0)};
  return view;
}

TEST(ClusterPicture, SixWorkersInRoles) {
  EXPECT_EQ(Draw(SixWorkers()),
            R"(STAGE               LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT           PLANNED           MEASURED                 KV SPEED
coordinator
  -> p1             150 tok/s    67 %   160.0k tok   80 %
  -> p2             75 tok/s     33 %   40.0k tok    20 %
  -> d1             50 tok/s     67 %   90.0k tok    75 %
  -> d2             25 tok/s     33 %   30.0k tok    25 %
  -> stage 5        -                   0 tok         0 %

PREFILL
p1                  [############] 0-11         2     1        120/512   23 %
  => d1             150 tok/s           150.0k tok               1.5 GB/s
p2                  [############] 0-11         1     0         80/512   16 %
  => d2             75 tok/s            40.0k tok               62.5 MB/s
  => d3 (2 ranks)   75 tok/s            40.0k tok               77.8 MB/s

DECODE
d1                  [############] 0-11         4     1        200/512   39 %
  -> coordinator    50 tok/s     67 %   90.0k tok    75 %
d2                  [#####.......] 0-4          3     0        130/512   25 %
  -> d3 (2 ranks)   25 tok/s     33 %   30.0k tok    25 %
d3 (2 ranks)        [.....#######] 5-11         3     0        130/512   25 %
  -> coordinator    25 tok/s     33 %   30.0k tok    25 %
stage 5             [############] 0-11         0     0         not up
  -> coordinator    -                   0 tok         0 %

)");
}

TEST(ClusterPicture, ASecondLookShowsRates) {
  const ClusterView before = SixWorkers();
  ClusterView now = before;
  now.edges[0].tokens += 312;  // coordinator to p1
  now.edges[4].tokens += 300;  // p1 to d1
  *now.edges[4].bytes += 25'000'000;
  *now.edges[4].seconds += 2;
  now.edges[7].tokens = 30;  // coordinator to d1: another plan came into force
  const std::string text = Draw(now, EarlierView{before, 2});
  for (const char* line : {
           "  -> p1             150 tok/s    67 %   156 tok/s   100 %\n",
           "  => d1             150 tok/s           150 tok/s               12.5 MB/s\n",
           "  => d2             75 tok/s            0 tok/s                         -\n",
           "  -> d1             50 tok/s     67 %   15 tok/s    100 %\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(ClusterPicture, FortyWorkersAlikeAreFewLines) {
  ClusterView view;
  for (int i = 0; i < 16; ++i) {
    const std::string p = fmt::format("p{:02}", i);
    view.stages.push_back(Stage(p, {0, 32}, "prefill", 1, 2, 64));
    view.edges.push_back(Edge("coordinator", p, "prefill", 100, 1000));
    view.edges.push_back(Edge(p, "coordinator", "prefill", 100, 1000));
  }
  for (int i = 0; i < 12; ++i) {
    const std::string front = fmt::format("f{:02}", i), back = fmt::format("b{:02}", i);
    view.stages.push_back(Stage(front, {0, 16}, "decode", 8, 0, 256));
    view.stages.push_back(Stage(back, {16, 32}, "decode", 8, 0, 256));
    view.edges.push_back(Edge("coordinator", front, "decode", 50, 500));
    view.edges.push_back(Edge(front, back, "decode", 50, 500));
    view.edges.push_back(Edge(back, "coordinator", "decode", 50, 500));
    for (int p = 0; p < 16; ++p) {
      for (const std::string& to : {front, back}) {
        view.edges.push_back(
            Edge(fmt::format("p{:02}", p), to, "hand-over", 100. / 12, 80, 10'000'000, 1.0 / 64));
      }
    }
  }
  view.stages[3].up = false;
  EXPECT_EQ(Draw(view), R"(STAGE               LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT           PLANNED           MEASURED                 KV SPEED
coordinator
  -> p00 +15        1600 tok/s  100 %   16.0k tok   100 %
  -> f00 +11        600 tok/s   100 %   6000 tok    100 %

PREFILL
p00 +15             [############] 0-31        16    32       1 not up
  => f00 +11        1600 tok/s          15.4k tok              640.0 MB/s
  => b00 +11        1600 tok/s          15.4k tok              640.0 MB/s

DECODE
f00 +11             [######......] 0-15        96     0    3,072/6,144   50 %
  -> b00 +11        600 tok/s   100 %   6000 tok    100 %
b00 +11             [......######] 16-31       96     0    3,072/6,144   50 %
  -> coordinator    600 tok/s   100 %   6000 tok    100 %

)");
}

// Unlike machines, each with layers of its own.
TEST(ClusterPicture, FortyUnlikeWorkersTakeTwoLinesEach) {
  ClusterView view;
  for (int i = 0; i < 40; ++i) {
    view.stages.push_back(Stage(fmt::format("w{:02}", i), {i, i + 1 + i % 3}, "both", 1, 0, 1));
    for (int to = i + 1; to < std::min(40, i + 4); ++to) {
      view.edges.push_back(
          Edge(fmt::format("w{:02}", i), fmt::format("w{:02}", to), "both", 10, 5));
    }
  }
  view.edges.push_back(Edge("coordinator", "w00", "both", 30, 15));
  const std::string text = Draw(view);
  EXPECT_NE(
      text.find("w07                 [..#.........] 7-8          1     0          1/512    0 %\n"
                "  -> 3 stages       30 tok/s    100 %   15 tok      100 %\n"),
      std::string::npos)
      << text;
  EXPECT_LE(std::ranges::count(text, '\n'), 2 + 2 + 2 * 40 + 1);
}

TEST(ClusterPicture, WorkersOfAnEarlierPlanComeLast) {
  ClusterView view;
  view.stages = {Stage("w1", {0, 4}, "both", 0, 0, 0)};
  view.edges = {Edge("coordinator", "w1", "both", 0, 10),
                Edge("gone", "coordinator", "both", 0, 7)};
  const std::string text = Draw(view);
  EXPECT_NE(text.find("\ngone\n  -> coordinator    -"), std::string::npos) << text;
}

// The names of pods differ in their last letters only.
TEST(ClusterPicture, LongNamesWidenTheirColumn) {
  ClusterView view;
  view.stages = {Stage("millrace-worker-0", {0, 6}, "both", 1, 0, 128),
                 Stage("millrace-worker-1", {6, 12}, "both", 1, 0, 128)};
  view.edges = {Edge("coordinator", "millrace-worker-0", "both", 0, 10),
                Edge("millrace-worker-0", "millrace-worker-1", "both", 0, 10),
                Edge("millrace-worker-1", "coordinator", "both", 0, 10)};
  EXPECT_EQ(ClusterPicture(view, {}),
            R"(STAGE                  LAYERS                    RUN  WAIT      KV BLOCKS
  -> NEXT              PLANNED           MEASURED                 KV SPEED
coordinator
  -> millrace-worker-0 -                   10 tok      100 %
millrace-worker-0      [######......] 0-5          1     0        128/512   25 %
  -> millrace-worker-1 -                   10 tok      100 %
millrace-worker-1      [......######] 6-11         1     0        128/512   25 %
  -> coordinator       -                   10 tok      100 %

)");
}

TEST(ClusterPicture, NothingWithoutStages) { EXPECT_EQ(Draw({}), ""); }

}  // namespace
}  // namespace millrace::apps
