// What the autopilot does when workers come, go and must go.
#include <gtest/gtest.h>

#include "cluster/autopilot/autopilot.h"
#include "cluster/autopilot/testing/toy_world.h"

namespace millrace::cluster {
namespace {

// Helix section 5: the plan is made again when machines change.
TEST(Autopilot, ALossIsUrgentAndWorkersThatGoTogetherCauseOneSearch) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.RunUntil("short", 100);
  world.Run(5);
  const int searches = world.searches();
  world.Put("small", [](double) { return 9.0; });
  world.Put("short", [](double) { return 3.0; });
  world.Lose("d");
  world.Run(1);
  world.Lose("c");
  EXPECT_LT(world.RunUntil("small", 60), 15) << "it does not wait for the dwell";
  EXPECT_EQ(world.searches(), searches + 1);
  EXPECT_EQ(world.last().cause, DecisionCause::kWorkersChanged);
  EXPECT_EQ(world.last().workers, 2);
  world.Run(60);
  world.Put("short", ForShort);
  world.Give("c");
  world.Run(30);
  EXPECT_EQ(world.last().why, "the cluster gained c");
}

// SpotServe section 3.2: a notice is answered before the machine is gone.
TEST(Autopilot, ANoticeIsAnsweredBeforeTheWorkerIsGone) {
  World world(Act());
  world.Put("small", [](double) { return 9.0; });
  world.Use(6, 100);
  world.Run(100);
  world.Put("rest", [](double) { return 8.0; });
  world.Put("small", [](double) { return 2.0; });  // without b
  world.view().members[1].leaving = true;
  EXPECT_LT(world.RunUntil("rest", 30), 15);
  EXPECT_EQ(world.last().cause, DecisionCause::kNotice);
  EXPECT_EQ(world.last().why, "the cluster must give up b");
}

TEST(Autopilot, AClusterThatServesNothingTakesWhatIsFound) {
  World world(Act());
  world.Put("some", [](double) { return 1.0; });
  world.view().serving = false;
  world.view().shape = "even";
  world.Run(1);
  EXPECT_LT(world.RunUntil("even", 1), 1);
  world.Put("even", [](double) { return 0.5; });
  EXPECT_LT(world.RunUntil("some", 30), 30) << "without a request, and without a known load";
}

TEST(Autopilot, AnAnswerForWorkersThatAreGoneIsNotUsed) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(6, 100);
  while (world.pilot().state() != "searching") world.Run(0.1);
  world.Lose("d");
  world.Put("short", [](double) { return 1.0; });
  world.Put("small", [](double) { return 9.0; });
  EXPECT_LT(world.RunUntil("small", 30), 30);
  EXPECT_EQ(world.changes(), 1) << "the plan for four workers was never ordered";
  EXPECT_EQ(world.searches(), 2);
}

// A change that waits for a worker that has gone.
TEST(Autopilot, ALossOvertakesAChangeThatIsBeingLoaded) {
  World world(Act());
  world.loads_for_s = 1000;
  world.Put("short", ForShort);
  world.Use(6, 100);
  while (world.pilot().state() != "changing") world.Run(0.1);
  world.Run(5);
  world.Lose("d");
  world.Put("short", [](double) { return 1.0; });
  world.Put("small", [](double) { return 9.0; });
  world.loads_for_s = kLoad_s;
  EXPECT_LT(world.RunUntil("small", 30), 30);
  EXPECT_EQ(world.pilot().decisions().front().outcome, "overtaken: the cluster lost d");
}

// Each search and each change takes longer than the time until the next loss.
TEST(Autopilot, AClusterThatLosesWorkersAllTheTimeGetsAPlanForThoseThatStay) {
  World world(Act());
  for (int i = 0; i < 60; ++i) world.Give("spot-" + std::to_string(i));
  world.loads_for_s = 10;
  world.Put("stable", ForShort);
  world.Need("stable", {"a", "b"});
  world.Use(6, 100);
  for (int i = 0; world.view().shape != "stable" && i < 60; ++i) {
    world.Run(4);
    world.Lose("spot-" + std::to_string(i));
  }
  EXPECT_EQ(world.view().shape, "stable");
  EXPECT_EQ(world.changes(), 1);
}

TEST(Autopilot, ALossOvertakesAChangeOnlyIfItsPlanNeedsTheWorker) {
  for (const std::string lost : {"b", "d"}) {
    World world(Act());
    world.loads_for_s = 20;
    world.Put("short", ForShort);
    world.Need("short", {"a", "b"});
    world.Use(6, 100);
    while (world.pilot().state() != "changing") world.Run(0.1);
    world.Lose(lost);
    world.Run(10);
    EXPECT_EQ(world.pilot().decisions().front().outcome,
              lost == "b" ? "overtaken: the cluster lost b" : "");
    world.Run(20);
    if (lost == "d") {
      EXPECT_EQ(world.view().shape, "short");
    }
  }
}

}  // namespace
}  // namespace millrace::cluster
