#include "core/time_account.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace millrace {
namespace {

Time At(int64_t ms) { return Time{} + Duration::Millis(ms); }

TEST(TimeAccount, TimeForTheSameInAnEpisodeIsOneEntry) {
  TimeAccount account(At(100));
  account.Spend(TimeUse::kQueue, TimeCause::kBlocks, At(150));
  account.NewEpisode();
  for (int64_t ms = 160; ms <= 200; ms += 10) {
    account.Spend(TimeUse::kWait, TimeCause::kTurn, At(ms - 8));
    account.Spend(TimeUse::kDecode, TimeCause::kNone, At(ms)).steps += 1;
  }
  ASSERT_EQ(account.entries().size(), 3u);
  EXPECT_EQ(account.entries()[0].took, Duration::Millis(50));
  EXPECT_EQ(account.entries()[1].took, Duration::Millis(10));
  EXPECT_EQ(account.entries()[2].took, Duration::Millis(40));
  EXPECT_EQ(account.entries()[2].steps, 5);
  EXPECT_EQ(account.entries()[1].begin, At(150));
  account.Enter(TimeCause::kPreemption);
  account.Spend(TimeUse::kDecode, TimeCause::kNone, At(201));
  EXPECT_EQ(account.entries().size(), 4u) << "another episode, another entry";
  account.CheckIntegrity();
}

TEST(TimeAccount, TimeThatGoesBackCountsAsNothing) {
  TimeAccount account(At(100));
  account.Spend(TimeUse::kQueue, TimeCause::kStep, At(90));
  account.Spend(TimeUse::kQueue, TimeCause::kStep, At(120));
  EXPECT_EQ(account.entries()[0].took, Duration::Millis(20));
  EXPECT_EQ(account.until(), At(120));
}

TEST(TimeAccount, IsBoundedAndStillAddsUp) {
  Rng rng(7);
  TimeAccount account(At(0));
  int64_t ms = 0;
  Duration decode;
  for (int i = 0; i < 5000; ++i) {
    const auto use = static_cast<TimeUse>(rng.Between(0, kTimeUses - 1));
    const auto cause = static_cast<TimeCause>(rng.Between(0, 5));
    const int64_t took = rng.Between(0, 9);
    ms += took;
    if (use == TimeUse::kDecode) decode = decode + Duration::Millis(took);
    if (rng.Between(0, 2) == 0) account.Enter(cause);
    account.Spend(use, cause, At(ms));
    ASSERT_LE(account.entries().size(), kAccountEntriesMax);
    account.CheckIntegrity();
  }
  EXPECT_EQ(account.entries().size(), kAccountEntriesMax);
  Duration kept;
  for (const TimeEntry& entry : account.entries()) {
    if (entry.use == TimeUse::kDecode) kept = kept + entry.took;
  }
  EXPECT_EQ(kept, decode) << "merging keeps what the time was for";
  EXPECT_EQ(account.until() - account.begin(), Duration::Millis(ms));
}

TEST(TimeAccount, KeepsTheLongestGapsWithWhatTookMostOfThem) {
  TimeAccount account(At(0));
  int64_t ms = 0;
  const AccountIds ids = {RequestId(17)};
  const int gaps_ms[] = {10, 80, 10, 300, 20, 90};
  for (int i = 0; i < 6; ++i) {
    const bool beside = gaps_ms[i] == 300;
    account.Spend(TimeUse::kWait, TimeCause::kNone, At(ms + 1));
    ms += gaps_ms[i];
    account.Spend(TimeUse::kDecode, beside ? TimeCause::kPrompts : TimeCause::kNone, At(ms),
                  {beside ? 512 : 0, 1, beside ? &ids : nullptr});
    account.Token(Duration::Millis(gaps_ms[i]), i + 1);
  }
  account.Token(Duration{}, 7);  // of another sequence in the same step
  ASSERT_EQ(account.gaps().size(), kAccountGapsMax);
  EXPECT_EQ(account.gaps()[0].took, Duration::Millis(300));
  EXPECT_EQ(account.gaps()[0].after_tokens, 4);
  EXPECT_EQ(account.gaps()[0].cause, TimeCause::kPrompts);
  EXPECT_EQ(account.gaps()[0].others_tokens, 512);
  EXPECT_EQ(account.gaps()[0].ids.front(), RequestId(17));
  EXPECT_EQ(account.gaps()[1].took, Duration::Millis(90));
  EXPECT_EQ(account.gaps()[1].cause, TimeCause::kNone);
  EXPECT_EQ(account.gaps()[2].took, Duration::Millis(80));
  EXPECT_EQ(account.gaps_counted(), 6);
  EXPECT_EQ(account.gaps_sum(), Duration::Millis(510));
}

}  // namespace
}  // namespace millrace
