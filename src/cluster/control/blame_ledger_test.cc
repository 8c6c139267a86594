#include "cluster/control/blame_ledger.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace millrace::cluster {
namespace {

constexpr RequestId kRequest{1}, kOther{2}, kThird{3};
constexpr WorkerId kWorker{10}, kElse{11};

void Die(BlameLedger& ledger, RequestId id, int64_t delivered, bool ran = true) {
  ledger.PipelineEnded(id, PipelineEnd::kDeath, ran, delivered, {});
}
void Suspect(BlameLedger& ledger, RequestId id, WorkerId worker) {
  ledger.PipelineEnded(id, PipelineEnd::kSuspicion, true, 0, worker);
}

TEST(BlameLedger, ARequestFailsAfterDeathsWithoutAToken) {
  BlameLedger ledger(2);
  Die(ledger, kRequest, 0);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  Die(ledger, kRequest, 0);
  EXPECT_EQ(ledger.MustFail(kRequest), 2);
  EXPECT_EQ(ledger.MustFail(kOther), std::nullopt);
}

TEST(BlameLedger, ATokenBetweenDeathsStartsTheCountAgain) {
  BlameLedger ledger(2);
  for (int64_t delivered = 0; delivered < 10; ++delivered) {
    Die(ledger, kRequest, delivered);
    EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt) << delivered;
  }
  Die(ledger, kRequest, 9);
  EXPECT_EQ(ledger.MustFail(kRequest), 2);
}

TEST(BlameLedger, OnlyRequestsThatRanAreBlamed) {
  BlameLedger ledger(1);
  Die(ledger, kRequest, 0, /*ran=*/false);
  ledger.PipelineEnded(kOther, PipelineEnd::kNoFault, true, 0, {});
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_EQ(ledger.MustFail(kOther), std::nullopt);
  EXPECT_EQ(ledger.size(), 0U) << "neither needs an entry";
}

TEST(BlameLedger, ASuspicionCountsOnceTheLossIsCertain) {
  BlameLedger ledger(1);
  Suspect(ledger, kThird, kWorker);
  Suspect(ledger, kRequest, kWorker);
  Suspect(ledger, kOther, kElse);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_EQ(ledger.TakeSuspectedOf(kWorker), (std::vector{kRequest, kThird}));
  EXPECT_TRUE(ledger.TakeSuspectedOf(kWorker).empty()) << "counted once";
  ledger.CountDeath(kRequest, 0);
  EXPECT_EQ(ledger.MustFail(kRequest), 1);
  EXPECT_EQ(ledger.TakeSuspectedOf(kElse), std::vector{kOther});
}

TEST(BlameLedger, TheNextPipelinesEndReplacesASuspicion) {
  BlameLedger ledger(2);
  Suspect(ledger, kRequest, kWorker);
  ledger.PipelineEnded(kRequest, PipelineEnd::kNoFault, true, 0, {});
  EXPECT_TRUE(ledger.TakeSuspectedOf(kWorker).empty());
  Suspect(ledger, kRequest, kWorker);
  Suspect(ledger, kRequest, kElse);
  EXPECT_TRUE(ledger.TakeSuspectedOf(kWorker).empty());
  EXPECT_EQ(ledger.TakeSuspectedOf(kElse), std::vector{kRequest});
}

TEST(BlameLedger, AnEndedRequestIsForgotten) {
  BlameLedger ledger(1);
  Die(ledger, kRequest, 0);
  Suspect(ledger, kOther, kWorker);
  ledger.Forget(kRequest);
  ledger.Forget(kOther);
  ledger.Forget(kThird);
  EXPECT_EQ(ledger.size(), 0U);
  EXPECT_EQ(ledger.MustFail(kRequest), std::nullopt);
  EXPECT_TRUE(ledger.TakeSuspectedOf(kWorker).empty());
}

}  // namespace
}  // namespace millrace::cluster
