// The lab itself: a seed determines a schedule, the production code keeps every invariant, and each
// planted defect is detected by its invariant.
#include "tests/fault/lab.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <set>

#include "tests/fault/campaign.h"

namespace millrace::sim::fault {
namespace {

class FaultLab : public testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }
};

CampaignResult Campaign(CampaignOptions options) {
  return RunCampaign(options, [](int64_t) { return true; });
}

std::string Describe(const CampaignResult& result) {
  if (!result.broken_seed) return "held";
  const Violation& v = *result.totals.violation;
  return "seed " + std::to_string(*result.broken_seed) + ": " +
         std::string(InvariantName(v.invariant)) + ": " + v.what;
}

TEST_F(FaultLab, TheSameSeedIsTheSameSchedule) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const LabReport one = Lab(MakeScenario(seed, {}), {}).Run();
    const LabReport two = Lab(MakeScenario(seed, {}), {}).Run();
    EXPECT_EQ(one.events, two.events);
    EXPECT_EQ(one.messages, two.messages);
    EXPECT_EQ(one.tokens, two.tokens);
    EXPECT_EQ(one.virtual_s, two.virtual_s);
  }
}

TEST_F(FaultLab, WithoutFaultsNothingIsLost) {
  const CampaignResult result =
      Campaign({.first_seed = 1, .count = 100, .scenario = {.faults = 0, .autopilot = false}});
  EXPECT_FALSE(result.broken_seed) << Describe(result);
  EXPECT_EQ(result.totals.controller.replays, 0u);
  EXPECT_GT(result.totals.tokens, 5000u);
}

TEST_F(FaultLab, InvariantsHoldUnderEveryKindOfFault) {
  const CampaignResult result = Campaign({.first_seed = 1, .count = 400});
  EXPECT_FALSE(result.broken_seed) << Describe(result);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    EXPECT_GT(result.totals.faults[kind], 0u) << FaultName(static_cast<FaultKind>(kind));
  }
  const ControllerTotals& c = result.totals.controller;
  EXPECT_GT(c.replays, 0u);
  EXPECT_GT(c.computed_in_part, 0u);
  EXPECT_GT(c.pipelines_lost, 0u);
  EXPECT_GT(c.moves, 0u);
  EXPECT_GT(c.stale, 0u);
  EXPECT_GT(c.plans_given_up, 0u);
  EXPECT_GT(c.leases_renewed, 0u);
  EXPECT_GT(result.totals.pulls_served, 0u);
  EXPECT_GT(result.totals.collectives, 0u);
  EXPECT_GT(result.totals.duplicates, 0u);
  EXPECT_GT(result.totals.stale_at_workers, 0u);
  EXPECT_GT(result.totals.withdrawn, 0u);
  EXPECT_GT(result.totals.autopilot_changes, 0u);
}

// Plans change at any moment, with forecasts that are often wrong, and are taken back.
TEST_F(FaultLab, TheAutopilotsDecisionsLoseNothing) {
  const CampaignResult calm =
      Campaign({.first_seed = 1, .count = 150, .scenario = {.faults = 0, .autopilot = true}});
  EXPECT_FALSE(calm.broken_seed) << Describe(calm);
  EXPECT_GT(calm.totals.autopilot_changes, 30u);
  EXPECT_EQ(calm.totals.controller.workers_lost, 0u);
  EXPECT_EQ(calm.totals.errors, 0u);
  const CampaignResult faults =
      Campaign({.first_seed = 1, .count = 250, .scenario = {.autopilot = true}});
  EXPECT_FALSE(faults.broken_seed) << Describe(faults);
  EXPECT_GT(faults.totals.autopilot_changes, 60u);
}

// Workers that drain when they hear that they stay, have drained already, or are stopped.
TEST_F(FaultLab, WithdrawnNoticesLoseNothing) {
  const CampaignResult result = Campaign(
      {.first_seed = 5000, .count = 150, .scenario = {.faults = 5, .only = FaultKind::kLeave}});
  EXPECT_FALSE(result.broken_seed) << Describe(result);
  EXPECT_GT(result.totals.withdrawn, 40u);
  EXPECT_GT(result.totals.controller.drained_finished, 0u);
  EXPECT_GT(result.totals.controller.drained_replayed, 0u);
  EXPECT_GT(result.totals.controller.plans_given_up, 0u) << "replacements that were not needed";
}

TEST_F(FaultLab, EachKindOfFaultAlone) {
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    const auto only = static_cast<FaultKind>(kind);
    const CampaignResult result =
        Campaign({.first_seed = 1000, .count = 25, .scenario = {.faults = 4, .only = only}});
    EXPECT_FALSE(result.broken_seed) << FaultName(only) << ", " << Describe(result);
  }
}

TEST_F(FaultLab, WorkersThatStandStillAreReplaced) {
  const CampaignResult result = Campaign(
      {.first_seed = 9000, .count = 150, .scenario = {.faults = 3, .only = FaultKind::kStill}});
  EXPECT_FALSE(result.broken_seed) << Describe(result);
  EXPECT_GT(result.totals.controller.workers_still, 40u);
}

TEST_F(FaultLab, LossesCloseTogetherPausesAndLostStores) {
  for (const FaultKind kind :
       {FaultKind::kTwoLosses, FaultKind::kPause, FaultKind::kRestoredStore}) {
    const CampaignResult result =
        Campaign({.first_seed = 9500, .count = 150, .scenario = {.faults = 2, .only = kind}});
    EXPECT_FALSE(result.broken_seed) << FaultName(kind) << ", " << Describe(result);
    EXPECT_GE(result.totals.faults[static_cast<size_t>(kind)], 250u) << FaultName(kind);
  }
}

TEST_F(FaultLab, NothingCrossesBitClasses) {
  const CampaignResult result =
      Campaign({.first_seed = 1, .count = 300, .scenario = {.two_classes = true}});
  EXPECT_FALSE(result.broken_seed) << Describe(result);
  EXPECT_GT(result.totals.controller.replays, 0u);
  EXPECT_GT(result.totals.controller.fetched, 0u);
  EXPECT_GT(result.totals.controller.moves, 0u);
  EXPECT_GT(result.totals.errors, 0u) << "some requests lack their class and may not change it";
}

// Schedules in which the production code once failed.
TEST_F(FaultLab, StaysFixed) {
  struct Case {
    uint64_t seed;
    ScenarioOptions scenario;
  };
  const std::vector<Case> cases = {
      {150750, {.autopilot = false}},
      {151129, {.autopilot = false}},
      {498440, {.autopilot = false}},
      {895760, {.autopilot = false}},
      {5016462, {.autopilot = false}},
      {13035080, {.autopilot = false}},
      {400004751, {}},
      {700052288, {}},
      {641, {.faults = 6, .only = FaultKind::kSlow, .autopilot = false}}};
  for (const Case& c : cases) {
    const CampaignResult result = Campaign({.first_seed = c.seed, .scenario = c.scenario});
    EXPECT_FALSE(result.broken_seed) << Describe(result);
  }
}

struct Planted {
  Defect defect;
  std::set<Invariant> found_by;  // whichever detects it first
  ScenarioOptions scenario;
};

TEST_F(FaultLab, DetectsPlantedDefects) {
  constexpr int64_t kSeeds = 400;
  const std::vector<Planted> all = {
      {Defect::kLateSteps, {Invariant::kStaleIsCounted, Invariant::kTokensInOrder}, {}},
      {Defect::kLoseOutput,
       {Invariant::kTokensInOrder, Invariant::kAnswerIsWhole, Invariant::kOneClass},
       {}},
      {Defect::kDeliveredTwice, {Invariant::kEndsOnce}, {}},
      {Defect::kEarlyEnd, {Invariant::kAnswerIsWhole}, {}},
      {Defect::kFailRequest, {Invariant::kNoNeedlessError}, {}},
      {Defect::kKeepHeld, {Invariant::kNothingLeft}, {}},
      {Defect::kDropClose, {Invariant::kNothingLeft}, {}},
      {Defect::kKeepShard, {Invariant::kShardsArePlanned}, {}},
      {Defect::kKeepSession, {Invariant::kMembersAreSessions}, {}},
      {Defect::kOldTerm,
       {Invariant::kNamesGrow},
       {.faults = 1, .only = FaultKind::kRestartController}},
      {Defect::kIdle,
       {Invariant::kNoStarvation, Invariant::kEndsInTime},
       {.faults = 1, .only = FaultKind::kRestartController}},
      {Defect::kSkipBlock, {Invariant::kPlansRun}, {}},
      {Defect::kWrongBlock, {Invariant::kTokensInOrder}, {}},
      {Defect::kMissBox, {Invariant::kTokensInOrder}, {}},
      {Defect::kGhostWrite, {Invariant::kFence}, {}},
      {Defect::kDropSession, {Invariant::kNoFaultNoLoss}, {.faults = 0, .autopilot = false}},
      {Defect::kWrongActivations, {Invariant::kTokensInOrder}, {}},
      {Defect::kSilentLoad,
       {Invariant::kShardsArePlanned},
       {.faults = 1, .only = FaultKind::kPlan}},
      {Defect::kDropSession, {Invariant::kDecisionsKeepWorkers}, {.faults = 0, .autopilot = true}},
      {Defect::kFailRequest,
       {Invariant::kDecisionsFailNoRequest},
       {.faults = 0, .autopilot = true}},
      {Defect::kFalseClass,
       {Invariant::kOneClass, Invariant::kTokensInOrder},
       {.two_classes = true}},
  };
  std::set<Defect> planted_defects;
  for (const Planted& planted : all) planted_defects.insert(planted.defect);
  EXPECT_EQ(planted_defects.size() + 1, static_cast<size_t>(kDefects));
  for (const Planted& planted : all) {
    const CampaignResult result = Campaign({.first_seed = 1,
                                            .count = kSeeds,
                                            .scenario = planted.scenario,
                                            .lab = {.defect = planted.defect}});
    EXPECT_TRUE(result.broken_seed) << "defect " << static_cast<int>(planted.defect);
    if (!result.broken_seed) continue;
    EXPECT_TRUE(planted.found_by.contains(result.totals.violation->invariant))
        << "defect " << static_cast<int>(planted.defect) << ": " << Describe(result);
  }
}

}  // namespace
}  // namespace millrace::sim::fault
