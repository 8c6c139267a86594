#include "cluster/autopilot/autopilot.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "cluster/autopilot/testing/toy_world.h"

namespace millrace::cluster {
namespace {

// Good for long prompts.
double ForLong(double prompt) { return prompt < 200 ? 5 : 8; }

TEST(Autopilot, StaysWhileThePlanInForceCarriesTheLoad) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(3, 100);
  world.Run(300);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.searches(), 1) << "when the load was known";
  EXPECT_EQ(world.last().kind, DecisionKind::kKeep);
  EXPECT_EQ(world.last().cause, DecisionCause::kStart);
  EXPECT_EQ(world.last().reason, "the plan in force carries 3.6 requests/s, 1.2 times the load");
}

// DistServe section 4.3: a shift of the workload makes the planner run again.
TEST(Autopilot, ALastingShiftOfLoadIsActedUponWithinAMinute) {
  World world(Act());
  world.Put("short", ForShort);
  world.Put("long", ForLong);
  world.Use(6, 100);
  EXPECT_LT(world.RunUntil("short", 60), 60);
  world.Run(200);
  EXPECT_EQ(world.last().outcome.substr(0, 9), "verified:") << world.last().outcome;
  world.Use(6, 300);
  EXPECT_LT(world.RunUntil("long", 60), 60);
  EXPECT_EQ(world.last().cause, DecisionCause::kLoadShifted);
  EXPECT_GT(world.last().load.prompt_tokens, 290) << "not a mean of before and after";
  EXPECT_NE(world.last().why.find("mean input went from 100 to "), std::string::npos)
      << world.last().why;
  world.Run(100);
  EXPECT_EQ(world.changes(), 2);
  EXPECT_EQ(world.last().after->attainment(), 1);
}

// In a long period each level is a shift that lasts, and the first of them are followed.
TEST(Autopilot, AnOscillatingLoadCausesNoMoreThanOneChangePerPeriod) {
  for (const double period_s : {30.0, 60.0, 100.0, 150.0, 240.0, 400.0, 900.0}) {
    World world(Act());
    world.Put("short", ForShort);
    world.Put("long", ForLong);
    world.Use(6, 100);
    world.Run(200);
    const int before = world.changes();
    constexpr int kPeriods = 8;
    for (int i = 0; i < kPeriods; ++i) {
      world.Use(6, 300);
      world.Run(period_s / 2);
      world.Use(6, 100);
      world.Run(period_s / 2);
      if (period_s > 240) continue;
      EXPECT_LE(world.changes() - before, i + 1) << period_s << " s, period " << i;
    }
    EXPECT_LE(world.changes() - before, kPeriods) << period_s;
    // A load that stays is followed in the end.
    world.Use(6, 300);
    world.Run(AutopilotOptions().dwell_max.seconds() + 120);
    EXPECT_EQ(world.view().shape, "long") << period_s;
  }
}

TEST(Autopilot, AdviceIsGivenAndNotCarriedOut) {
  World world;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(120);
  EXPECT_EQ(world.changes(), 0);
  ASSERT_NE(world.pilot().advice(), nullptr);
  EXPECT_EQ(world.pilot().advice()->candidates.front().shape, "short");
  EXPECT_EQ(world.pilot().advice()->reason,
            "short answers 3.2 requests/s more; over 600 s that is 1920 requests, and the change "
            "delays 12");
  world.view().epoch = 2;  // an operator has followed it
  world.view().shape = "short";
  world.Run(10);
  EXPECT_EQ(world.pilot().advice(), nullptr);
}

TEST(Autopilot, APlanThatDoesWorseThanBeforeIsTakenBack) {
  World world(Act());
  world.Put("even", [](double) { return 5.0; });
  world.Put(
      "liar", [](double) { return 1.0; }, 20);
  world.Use(5.5, 100);
  EXPECT_LT(world.RunUntil("liar", 60), 60);
  EXPECT_LT(world.RunUntil("even", 60), 60);
  EXPECT_EQ(world.last().kind, DecisionKind::kRollBack);
  EXPECT_EQ(world.last().reason, "back to even");
  world.Run(600);
  EXPECT_EQ(world.changes(), 2) << "it is not tried again";
  EXPECT_EQ(world.view().shape, "even");
  world.Give("e");  // other workers: what was measured says nothing
  EXPECT_LT(world.RunUntil("liar", 600), 600);
}

TEST(Autopilot, AForecastThatIsMissedByABetterPlanStays) {
  World world(Act());
  world.Put("even", [](double) { return 1.0; });
  world.Put(
      "better", [](double) { return 3.0; }, 10);
  world.Use(6, 100);
  EXPECT_LT(world.RunUntil("better", 60), 60);
  world.Run(110);
  EXPECT_EQ(world.changes(), 1);
  bool missed = false;
  for (const Decision& decision : world.pilot().decisions()) {
    missed |= decision.outcome.starts_with("forecast missed: ");
  }
  EXPECT_TRUE(missed);
  EXPECT_EQ(world.last().kind, DecisionKind::kKeep);
}

TEST(Autopilot, AFailedSearchChangesNothingAndSaysSo) {
  World world(Act());
  world.search_fails = true;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(200);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.last().reason, "no plan was found: the model does not fit");
  EXPECT_EQ(world.pilot().decisions().size(), 1u) << "it is said once";
  world.view().serving = false;
  const int searches = world.searches();
  world.Run(100);
  EXPECT_GE(world.searches() - searches, 2) << "it goes on trying";
  EXPECT_LE(world.searches() - searches, 4);
  EXPECT_EQ(world.pilot().decisions().size(), 1u);
}

TEST(Autopilot, APlanThatIsGivenUpIsNotTriedAgainOnTheseWorkers) {
  World world(Act());
  world.plans_are_given_up = true;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(300);
  int changes = 0;
  for (const Decision& decision : world.pilot().decisions()) {
    if (decision.kind != DecisionKind::kChange) continue;
    ++changes;
    EXPECT_EQ(decision.outcome, "given up: no memory");
  }
  EXPECT_EQ(changes, 1);
}

TEST(Autopilot, AnOperatorsPlanEndsAChangeAndIsNotTakenBack) {
  for (const bool verifying : {false, true}) {
    World world(Act());
    world.Put("short", ForShort);
    world.Put("operator's", [](double) { return 1.0; });  // worse than what it replaces
    world.Use(6, 100);
    while (world.pilot().state() != (verifying ? "verifying" : "changing")) world.Run(0.1);
    world.Interfere("operator's");
    world.Run(1.1);
    EXPECT_NE(world.pilot().decisions().front().outcome.find("another plan"), std::string::npos)
        << world.pilot().decisions().front().outcome;
    for (const Decision& decision : world.pilot().decisions()) {
      EXPECT_NE(decision.kind, DecisionKind::kRollBack);
    }
    EXPECT_LT(world.RunUntil("short", 200), 200) << "it was not at fault, so it may come again";
  }
}

TEST(Autopilot, MissedLimitsCauseASearchNotMoreOftenThanTheDwell) {
  World world(Act());
  world.Use(6, 100);  // beyond the only plan's capacity
  world.Run(600);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.last().cause, DecisionCause::kLimitsMissed);
  EXPECT_LE(world.searches(), 11);
  EXPECT_GE(world.searches(), 8);
}

TEST(Autopilot, RemembersTheDecisionsOfEarlierControllers) {
  Decision open{.id = 7, .kind = DecisionKind::kChange};
  Autopilot pilot({}, {open});
  EXPECT_EQ(pilot.decisions().front().outcome, "the controller restarted");
  World world(Act());
  std::vector<Decision> many(AutopilotOptions::kDecisionsMax + 5);
  EXPECT_EQ(Autopilot({}, many).decisions().size(), AutopilotOptions::kDecisionsMax);
}

// Whatever happens: one search and one change at a time (checked by World), the record is bounded,
// and a state is left in the end.
TEST(Autopilot, RandomWorlds) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    World world(Act());
    std::vector<std::string> lost;
    for (int i = 0; i < 60; ++i) {
      switch (rng.Between(0, 6)) {
        case 0: world.Use(rng.Between(0, 12), static_cast<int>(rng.Between(10, 1000))); break;
        case 1:
          if (world.view().members.size() > 1) {
            lost.push_back(world.view().members.front().name);
            world.Lose(lost.back());
          }
          break;
        case 2:
          if (!lost.empty()) world.Give(lost.back()), lost.pop_back();
          break;
        case 3: {
          const double can = rng.Between(1, 12);
          world.Put(
              "p" + std::to_string(rng.Between(0, 3)), [can](double) { return can; },
              rng.Between(1, 30) / 3.0);
          if (rng.Between(0, 1) > 0)
            world.Need("p" + std::to_string(rng.Between(0, 3)), {"a", "b"});
          break;
        }
        case 4: world.search_fails = rng.Between(0, 3) == 0; break;
        case 5: world.plans_are_given_up = rng.Between(0, 3) == 0; break;
        case 6: world.view().serving = rng.Between(0, 5) != 0; break;
      }
      world.Run(static_cast<double>(rng.Between(1, 20)));
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_LE(world.pilot().decisions().size(), AutopilotOptions::kDecisionsMax);
    world.view().serving = true;
    world.search_fails = world.plans_are_given_up = false;
    world.Use(0, 1);
    world.Run(200);
    EXPECT_EQ(world.pilot().state(), "watching") << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::cluster
