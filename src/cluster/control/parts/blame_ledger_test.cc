#include "cluster/control/parts/blame_ledger.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace millrace::cluster {
namespace {

constexpr RequestId kRequest{1}, kOther{2}, kThird{3};
constexpr WorkerId kWorker{10}, kElse{11};
constexpr int64_t kStepTokens = 100;

// A pipeline gets the request and ends with it.
void Die(BlameLedger& ledger, RequestId id, const std::string& worker, int64_t from = 0) {
  ledger.Started(id);
  ledger.PipelineEnded(id, {.end = PipelineEnd::kDeath, .worker = worker}, from);
}
void Suspect(BlameLedger& ledger, RequestId id, WorkerId worker) {
  ledger.Started(id);
  ledger.PipelineEnded(id, {.end = PipelineEnd::kSuspicion, .suspect = worker}, 0);
}

TEST(BlameLedger, TheSameWorkThatEndsWorkersByItselfFails) {
  BlameLedger ledger(2, kStepTokens);
  Die(ledger, kRequest, "w1");
  Die(ledger, kRequest, "w2");
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt) << "others ran beside it";
  Die(ledger, kRequest, "w3");
  EXPECT_EQ(ledger.MustFail(kRequest), 3);
  EXPECT_EQ(ledger.MustFail(kOther), std::nullopt);
}

TEST(BlameLedger, SuspectsAreTriedOneAtATime) {
  BlameLedger ledger(2, kStepTokens);
  for (const char* worker : {"w1", "w2"}) {
    for (const RequestId id : {kRequest, kOther}) Die(ledger, id, worker);
  }
  EXPECT_TRUE(ledger.MayStart(kRequest));
  ledger.Started(kRequest);
  EXPECT_TRUE(ledger.MayStart(kRequest));
  EXPECT_FALSE(ledger.MayStart(kOther));
  EXPECT_TRUE(ledger.MayStart(kThird)) << "no suspect";
  ledger.Cleared(kRequest);  // a token
  EXPECT_TRUE(ledger.MayStart(kOther));
  Die(ledger, kOther, "w3");
  EXPECT_EQ(ledger.MustFail(kOther), 3);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_TRUE(ledger.MayStart(kThird));
}

// Its workers are lost one after the other, each while it is somewhere else.
TEST(BlameLedger, ALongPromptThatAdvancesIsNotBlamed) {
  BlameLedger ledger(2, kStepTokens);
  for (int i = 0; i < 10; ++i) {
    Die(ledger, kRequest, i % 2 == 0 ? "w1" : "w2", 1000 + 700 * (i % 3));
    EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt) << i;
  }
}

TEST(BlameLedger, WorkOfTheSameStepIsTheSame) {
  BlameLedger ledger(2, kStepTokens);
  Die(ledger, kRequest, "w1", 400);
  Die(ledger, kRequest, "w2", 350);  // this time the chunks were others
  Die(ledger, kRequest, "w3", 420);
  EXPECT_EQ(ledger.MustFail(kRequest), 3);
}

TEST(BlameLedger, ATokenClears) {
  BlameLedger ledger(2, kStepTokens);
  for (int i = 0; i < 10; ++i) {
    Die(ledger, kRequest, i % 2 == 0 ? "w1" : "w2");
    ledger.Cleared(kRequest);
    EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt) << i;
  }
  EXPECT_EQ(ledger.size(), 0U);
}

// One worker that dies again and again may be what is broken, but not for ever.
TEST(BlameLedger, OneWorkerAloneIsBlamedForAWhile) {
  BlameLedger ledger(2, kStepTokens);
  for (int i = 0; i < 2 + BlameLedger::kDeathsAloneMax; ++i) {
    EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt) << i;
    Die(ledger, kRequest, "w1");
  }
  EXPECT_EQ(ledger.MustFail(kRequest), 2 + BlameLedger::kDeathsAloneMax);
}

TEST(BlameLedger, OnlyRequestsThatRanAreBlamed) {
  BlameLedger ledger(1, kStepTokens);
  ledger.PipelineEnded(kRequest, {.end = PipelineEnd::kDeath, .worker = "w1"}, std::nullopt);
  ledger.PipelineEnded(kOther, {.end = PipelineEnd::kNoFault}, 0);
  EXPECT_EQ(ledger.size(), 0U) << "neither needs an entry";
}

TEST(BlameLedger, ASuspicionCountsOnceTheLossIsCertain) {
  BlameLedger ledger(2, kStepTokens);
  Die(ledger, kRequest, "w1");
  Die(ledger, kRequest, "w2");
  Suspect(ledger, kRequest, kWorker);
  Suspect(ledger, kThird, kWorker);
  Suspect(ledger, kOther, kElse);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_EQ(ledger.CountSuspectedOf(kWorker, "w3"), (std::vector{kRequest, kThird}));
  EXPECT_TRUE(ledger.CountSuspectedOf(kWorker, "w3").empty()) << "counted once";
  EXPECT_EQ(ledger.MustFail(kRequest), 3);
  EXPECT_EQ(ledger.MustFail(kThird), std::nullopt);
  EXPECT_EQ(ledger.CountSuspectedOf(kElse, "w4"), std::vector{kOther});
}

TEST(BlameLedger, TheNextPipelinesEndReplacesASuspicion) {
  BlameLedger ledger(2, kStepTokens);
  Suspect(ledger, kRequest, kWorker);
  ledger.PipelineEnded(kRequest, {.end = PipelineEnd::kNoFault}, 0);
  EXPECT_TRUE(ledger.CountSuspectedOf(kWorker, "w1").empty());
  Suspect(ledger, kRequest, kWorker);
  Suspect(ledger, kRequest, kElse);
  EXPECT_TRUE(ledger.CountSuspectedOf(kWorker, "w1").empty());
  EXPECT_EQ(ledger.CountSuspectedOf(kElse, "w2"), std::vector{kRequest});
}

TEST(BlameLedger, AnEndedRequestIsForgotten) {
  BlameLedger ledger(1, kStepTokens);
  Die(ledger, kRequest, "w1");
  Suspect(ledger, kOther, kWorker);
  ledger.Started(kRequest);
  for (const RequestId id : {kRequest, kOther, kThird}) ledger.Cleared(id);
  EXPECT_EQ(ledger.size(), 0U);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_TRUE(ledger.CountSuspectedOf(kWorker, "w1").empty());
}

}  // namespace
}  // namespace millrace::cluster
