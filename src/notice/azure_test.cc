// Azure's Scheduled Events, as they should come and as they should not.
#include "notice/azure.h"

#include <gtest/gtest.h>

#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

using testing::Code;
using testing::FakeAzure;
using testing::FakeRun;
using testing::Ok;
using testing::Rfc1123;

struct Azure : ::testing::Test {
  AzureSource source;
  FakeAzure fake;
  FakeRun run{source, fake};

  void Add(const std::string& type, double in_s, std::vector<std::string> resources = {"vm-1"}) {
    fake.events.push_back({.id = "E" + std::to_string(++added),
                           .type = type,
                           .not_before = Rfc1123(run.wall(in_s)),
                           .resources = std::move(resources)});
  }
  int added = 0;
};

TEST_F(Azure, TenQuietMinutesAreNoNotice) {
  run.For(Duration::Seconds(600));
  EXPECT_EQ(run.current(), std::nullopt);
  EXPECT_TRUE(run.complaints.empty());
  EXPECT_NEAR(fake.questions, 600, 10);
}

TEST_F(Azure, AnEventIsSeenWithinItsPeriod) {
  run.For(Duration::Seconds(3));
  Add("Preempt", 30);
  const auto seen = run.Until(true, Duration::Seconds(10));
  ASSERT_TRUE(seen);
  EXPECT_LE(*seen, Duration::Seconds(1.5));
  EXPECT_EQ(ToText(run.current()->what.origin), "azure: preempt");
  EXPECT_TRUE(run.current()->cancelable);
  EXPECT_NEAR(run.left_s(), 29 - seen->seconds(), 1.1);
  // Cancelled: it vanishes.
  fake.events.clear();
  const auto gone = run.Until(false, Duration::Seconds(10));
  ASSERT_TRUE(gone);
  EXPECT_LE(*gone, Duration::Seconds(2));
}

TEST_F(Azure, EventsOfOtherMachinesAreTheirs) {
  Add("Preempt", 30, {"vm-2", "vm-11"});
  Add("Terminate", 300, {});
  run.For(Duration::Seconds(20));
  EXPECT_EQ(run.current(), std::nullopt);
  Add("Terminate", 300, {"vm-2", "VM-1"});
  EXPECT_TRUE(run.Until(true, Duration::Seconds(2))) << "names do not depend on case";
}

TEST_F(Azure, Kinds) {
  struct Case {
    std::string type;
    NoticeKind kind;
    bool hard;
  };
  for (const Case& c : {Case{"Terminate", NoticeKind::kTerminate, true},
                        Case{"Reboot", NoticeKind::kMaintenance, true},
                        Case{"Redeploy", NoticeKind::kMaintenance, true},
                        Case{"Freeze", NoticeKind::kMaintenance, false},
                        Case{"Levitate", NoticeKind::kUnknown, false}}) {
    fake.events.clear();
    Add(c.type, 600);
    run.For(Duration::Seconds(2));
    ASSERT_TRUE(run.current()) << c.type;
    EXPECT_EQ(run.current()->what.origin.kind, c.kind) << c.type;
    EXPECT_EQ(run.current()->what.hard, c.hard) << c.type;
    EXPECT_NEAR(run.left_s(), 599, 3);
  }
}

TEST_F(Azure, AnEventThatHasStartedIsNow) {
  Add("Terminate", 300);
  run.For(Duration::Seconds(2));
  fake.events[0].status = "Started";
  fake.events[0].not_before = "";
  run.For(Duration::Seconds(1.5));
  EXPECT_LE(run.left_s(), 1);
  EXPECT_FALSE(run.current()->cancelable);
  EXPECT_TRUE(fake.started.empty());
}

TEST_F(Azure, TheFirstAnswerMayTakeTwoMinutes) {
  fake.enabling = Duration::Seconds(110);
  run.For(Duration::Seconds(115));
  EXPECT_TRUE(run.complaints.empty());
  Add("Preempt", 30);
  EXPECT_TRUE(run.Until(true, Duration::Seconds(2)));
}

TEST_F(Azure, AcknowledgesOnceItHasDrained) {
  Add("Terminate", 300);
  run.For(Duration::Seconds(10));
  EXPECT_TRUE(fake.started.empty());
  source.SetDrained(true);
  run.For(Duration::Seconds(10));
  EXPECT_EQ(fake.started, (std::vector<std::string>{"E1"}));
  EXPECT_FALSE(run.current()->cancelable);
}

// It would take the others with it, or nothing is gained.
TEST_F(Azure, AcknowledgesOnlyWhatTakesThisMachineAlone) {
  source.SetDrained(true);
  Add("Terminate", 300, {"vm-1", "vm-2"});
  Add("Preempt", 300, {"vm-2"});
  Add("Reboot", 300);
  Add("Freeze", 300);
  run.For(Duration::Seconds(10));
  EXPECT_TRUE(fake.started.empty());
}

TEST_F(Azure, AnAcknowledgementThatFailsIsGivenUp) {
  Add("Terminate", 300);
  fake.refuses_starts = true;
  source.SetDrained(true);
  run.For(Duration::Seconds(60));
  EXPECT_EQ(fake.starts_asked, AzureSource::kStartTriesMax);
  EXPECT_EQ(run.complaints.size(), 1u);
  EXPECT_TRUE(run.current()) << "the notice holds meanwhile";
  // Another event is another attempt.
  fake.events.clear();
  fake.refuses_starts = false;
  run.For(Duration::Seconds(3));
  Add("Terminate", 300);
  run.For(Duration::Seconds(3));
  EXPECT_EQ(fake.started, (std::vector<std::string>{"E2"}));
}

TEST_F(Azure, AClockThatIsOffDoesNotMatter) {
  for (const int skew : {-600, 600}) {
    fake.clock = run.wall(skew);
    fake.events.clear();
    Add("Terminate", skew + 200);
    run.For(Duration::Seconds(2));
    ASSERT_TRUE(run.current());
    EXPECT_NEAR(run.left_s(), 198, 4) << skew;
  }
}

TEST_F(Azure, DamagedAnswersChangeNothing) {
  const std::vector<Answer> damaged = {
      Ok("{"),
      Ok("[]"),
      Ok(R"({"Events":7})"),
      Ok(R"({"Events":[7]})"),
      Ok(R"({"Events":[{"EventId":"E","EventType":"Preempt","EventStatus":"Scheduled"}]})"),
      Ok(R"({"Events":[{"EventId":"E","EventType":"Preempt","EventStatus":"Scheduled",)"
         R"("Resources":["vm-1"],"NotBefore":"tomorrow"}]})"),
      Code(400),
      Code(503),
      Answer{.status = Unavailable("connection reset")}};
  for (const bool noticed : {false, true}) {
    fake.instead_of.clear();
    fake.events.clear();
    if (noticed) Add("Terminate", 600);
    run.For(Duration::Seconds(12));
    ASSERT_EQ(run.current().has_value(), noticed);
    for (const Answer& answer : damaged) {
      fake.instead_of["/metadata/scheduledevents"] = answer;
      run.For(Duration::Seconds(6));
      EXPECT_EQ(run.current().has_value(), noticed) << answer.body;
    }
  }
  EXPECT_LE(run.complaints.size(), damaged.size());
}

TEST_F(Azure, WithoutItsNameItAsksAgain) {
  fake.instead_of["/metadata/instance"] = Code(404);
  run.For(Duration::Seconds(100));
  EXPECT_EQ(run.complaints.size(), 1u);
  EXPECT_LT(fake.questions, 16);
  fake.instead_of.clear();
  Add("Preempt", 100);
  EXPECT_TRUE(run.Until(true, Duration::Seconds(12)));
}

}  // namespace
}  // namespace millrace::notice
