// Google's metadata server, as it should answer and as it should not.
#include "notice/gcp.h"

#include <gtest/gtest.h>

#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

using testing::Code;
using testing::FakeGcp;
using testing::FakeRun;
using testing::Ok;

struct Gcp : ::testing::Test {
  GcpSource source{GcpSource::Value::kPreempted};
  FakeGcp fake;
  FakeRun run{source, fake};
};

TEST_F(Gcp, WaitsForTheChange) {
  run.For(Duration::Seconds(600));
  EXPECT_EQ(run.current(), std::nullopt);
  EXPECT_TRUE(run.complaints.empty());
  EXPECT_LE(fake.questions, 12) << "one a minute";
  EXPECT_EQ(fake.waiting_questions, fake.questions - 1) << "the first does not wait";
  fake.preempted = "TRUE";
  const auto seen = run.Until(true, Duration::Seconds(30));
  ASSERT_TRUE(seen);
  EXPECT_LE(*seen, Duration::Seconds(0.5) + GcpSource::kPause);
  EXPECT_EQ(ToText(run.current()->what.origin), "gcp: preempt");
  EXPECT_TRUE(run.current()->what.hard);
  EXPECT_NEAR(run.left_s(), 29, 0.1);
  run.For(Duration::Seconds(70));
  EXPECT_LT(run.left_s(), -40) << "the deadline stays";
}

// The watcher may have been started after the notice.
TEST_F(Gcp, ReadsFirstWithoutWaiting) {
  fake.preempted = "TRUE";
  EXPECT_LT(run.Until(true, Duration::Seconds(1)), Duration::Seconds(0.1));
}

TEST_F(Gcp, AServerThatDoesNotWaitIsAskedOnceASecond) {
  fake.waits = false;
  run.For(Duration::Seconds(60));
  EXPECT_LE(fake.questions, 61);
  fake.preempted = "TRUE";
  EXPECT_TRUE(run.Until(true, Duration::Seconds(1.5)));
}

TEST_F(Gcp, WithoutAnEtagItPolls) {
  fake.has_etag = false;
  run.For(Duration::Seconds(60));
  EXPECT_EQ(fake.waiting_questions, 0);
  EXPECT_LE(fake.questions, 61);
  EXPECT_EQ(run.complaints.size(), 1u);
  fake.preempted = "TRUE";
  EXPECT_TRUE(run.Until(true, Duration::Seconds(1.5)));
}

TEST_F(Gcp, OnlyTheMetadataServerCounts) {
  fake.has_flavor = false;
  fake.preempted = "TRUE";
  run.For(Duration::Seconds(60));
  EXPECT_EQ(run.current(), std::nullopt) << "a proxy, or another machine";
  ASSERT_EQ(run.complaints.size(), 1u);
  EXPECT_NE(run.complaints[0].find("Metadata-Flavor"), std::string::npos);
}

TEST_F(Gcp, FailuresAreAskedForAgain) {
  const std::vector<Answer> failures = {Code(503), Code(404), Ok("TRUE"), Ok("MAYBE"),
                                        Answer{.status = Unavailable("connection reset")}};
  for (const Answer& failure : failures) {
    fake.instead = failure;
    const int before = fake.questions;
    run.For(Duration::Seconds(120));
    EXPECT_EQ(run.current(), std::nullopt);
    EXPECT_LT(fake.questions - before, 20);
    fake.instead.reset();
    run.For(Duration::Seconds(11));
  }
  EXPECT_GE(run.complaints.size(), 4u);
  fake.hangs = true;
  run.For(Duration::Seconds(300));
  fake.hangs = false;
  fake.preempted = "TRUE";
  EXPECT_TRUE(run.Until(true, Duration::Seconds(75)));
}

TEST_F(Gcp, AChangeDuringAFailureIsNotMissed) {
  run.For(Duration::Seconds(5));
  fake.instead = Code(503);
  run.For(Duration::Seconds(70));
  fake.preempted = "TRUE";
  fake.instead.reset();
  EXPECT_TRUE(run.Until(true, Duration::Seconds(11)));
}

TEST(GcpMaintenance, MayEndTheMachineOrMoveIt) {
  GcpSource source(GcpSource::Value::kMaintenance);
  FakeGcp fake;
  FakeRun run(source, fake);
  run.For(Duration::Seconds(5));
  EXPECT_EQ(run.current(), std::nullopt);
  fake.maintenance_event = "MIGRATE_ON_HOST_MAINTENANCE";
  ASSERT_TRUE(run.Until(true, Duration::Seconds(2)));
  EXPECT_FALSE(run.current()->what.hard);
  fake.maintenance_event = "TERMINATE_ON_HOST_MAINTENANCE";
  run.For(Duration::Seconds(2));
  EXPECT_TRUE(run.current()->what.hard);
  EXPECT_TRUE(run.current()->cancelable);
  EXPECT_GT(run.left_s(), 56);
  fake.maintenance_event = "NONE";
  EXPECT_TRUE(run.Until(false, Duration::Seconds(2)));
  // The next one is another notice, with its own deadline.
  run.For(Duration::Seconds(100));
  fake.maintenance_event = "TERMINATE_ON_HOST_MAINTENANCE";
  run.For(Duration::Seconds(2));
  EXPECT_GT(run.left_s(), 56);
}

}  // namespace
}  // namespace millrace::notice
