#include "sched/step_ledger.h"

#include <gtest/gtest.h>

namespace millrace::sched {
namespace {

void Hold(StepLedger& ledger, Sequence& sequence) {
  StepLedger::Entry& entry = ledger.Add();
  entry.sequence = &sequence;
  entry.id = sequence.id;
  entry.incarnation = sequence.incarnation;
  entry.samples = true;
}

TEST(StepLedger, StepsEndInAnyOrder) {
  StepLedger ledger(2);
  Sequence a, b;
  Hold(ledger, a);
  EXPECT_EQ(ledger.Send(Time{}), StepId(1));
  Hold(ledger, b);
  EXPECT_EQ(ledger.first_in_flight(), StepId(1));
  EXPECT_EQ(ledger.next(), StepId(2));
  EXPECT_EQ(ledger.Send(Time{}), StepId(2));
  EXPECT_EQ(ledger.size(), 2);

  EXPECT_FALSE(ledger.Take(StepId(3)).has_value());
  auto second = ledger.Take(StepId(2));
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->entries.front().sequence, &b);
  EXPECT_EQ(ledger.first_in_flight(), StepId(1));
  EXPECT_FALSE(ledger.Take(StepId(2)).has_value()) << "it has ended";
  EXPECT_TRUE(ledger.Take(StepId(1)).has_value());
  EXPECT_TRUE(ledger.empty());
  EXPECT_EQ(ledger.first_in_flight(), StepId(3)) << "every step before it has ended";
}

TEST(StepLedger, AReusedStepIsEmpty) {
  StepLedger ledger(1);
  Sequence a;
  for (int step = 0; step < 3; ++step) {
    Hold(ledger, a);
    auto ended = ledger.Take(ledger.Send(Time{}));
    EXPECT_EQ(ended->entries.size(), 1u);
    ledger.Reuse(std::move(*ended));
  }
}

TEST(StepLedger, TheTokenOfAnEntryThatIsHandedOverDoesNotCount) {
  StepLedger ledger(1);
  Sequence leader, next;
  next.incarnation = 5;
  Hold(ledger, leader);
  const StepId step = ledger.Send(Time{});
  ledger.HandOver(step, leader, next);
  const StepLedger::Entry& entry = ledger.steps().front().entries.front();
  EXPECT_EQ(entry.sequence, &next);
  EXPECT_EQ(entry.incarnation, next.incarnation) << "its KV counts";
  EXPECT_FALSE(entry.samples);

  ++next.incarnation;  // its KV was dropped
  ledger.HandOver(step, next, leader);
  EXPECT_NE(ledger.steps().front().entries.front().incarnation, leader.incarnation);
}

}  // namespace
}  // namespace millrace::sched
