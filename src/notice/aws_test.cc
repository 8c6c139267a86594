// EC2's metadata service, as it should answer and as it should not.
#include "notice/aws.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

using testing::Code;
using testing::FakeAws;
using testing::FakeRun;
using testing::Ok;
using testing::Rfc1123;
using testing::Rfc3339;

struct Aws : ::testing::Test {
  AwsSource source;
  FakeAws fake;
  FakeRun run{source, fake};

  std::string Action(const std::string& action, double in_s) const {
    return fmt::format(R"({{"action":"{}","time":"{}"}})", action, Rfc3339(run.wall(in_s)));
  }
  std::string Event(const std::string& code, double in_s, const std::string& state = "active") {
    return fmt::format(
        R"([{{"NotBefore":"{}","Code":"{}","Description":"x","EventId":"instance-event-1","NotAfter":"","State":"{}"}}])",
        Rfc1123(run.wall(in_s)).substr(5), code, state);
  }
};

TEST_F(Aws, TenQuietMinutesAreNoNotice) {
  run.For(Duration::Seconds(600));
  EXPECT_EQ(run.current(), std::nullopt);
  EXPECT_TRUE(run.complaints.empty());
  EXPECT_EQ(fake.tokens, 1);
  // Two topics every 5 s, the third every minute.
  EXPECT_NEAR(fake.questions, 120 * 2 + 10, 10);
}

TEST_F(Aws, AnInterruptionIsSeenWithinItsPeriod) {
  run.For(Duration::Seconds(12));
  fake.action = Action("terminate", 120);
  const auto seen = run.Until(true, Duration::Seconds(60));
  ASSERT_TRUE(seen);
  EXPECT_LE(*seen, Duration::Seconds(5.5));
  EXPECT_EQ(ToText(run.current()->what.origin), "aws: terminate");
  EXPECT_TRUE(run.current()->what.hard);
  EXPECT_FALSE(run.current()->cancelable);
  EXPECT_NEAR(run.left_s(), 119 - seen->seconds(), 1.1);
  // The same notice keeps its deadline.
  const Notice first = *run.current();
  run.For(Duration::Seconds(60));
  EXPECT_EQ(*run.current(), first);
}

TEST_F(Aws, KindsAndTimes) {
  fake.action = Action("stop", 60);
  run.For(Duration::Seconds(6));
  EXPECT_EQ(run.current()->what.origin.kind, NoticeKind::kPreempt);
  // Hibernation begins at once.
  fake.action = Action("hibernate", 100);
  run.For(Duration::Seconds(6));
  EXPECT_LE(run.left_s(), 1);
  // A time that has passed means now and a little; one far ahead, the two minutes that AWS gives.
  fake.action = Action("terminate", -600);
  run.For(Duration::Seconds(6));
  EXPECT_LE(run.left_s(), 1);
  fake.action = Action("terminate", 1e6);
  run.For(Duration::Seconds(6));
  EXPECT_GT(run.left_s(), 110);
  EXPECT_LT(run.left_s(), 120);
  // And no notice any more means that it is withdrawn.
  fake.action.clear();
  run.For(Duration::Seconds(6));
  EXPECT_EQ(run.current(), std::nullopt);
}

// This machine's clock is ten minutes ahead or behind. The provider's is in its answers.
TEST_F(Aws, AClockThatIsOffDoesNotMatter) {
  for (const int skew : {-600, 600}) {
    fake.clock = run.wall(skew);
    fake.action =
        fmt::format(R"({{"action":"terminate","time":"{}"}})", Rfc3339(run.wall(skew + 90)));
    run.For(Duration::Seconds(6));
    ASSERT_TRUE(run.current());
    EXPECT_GT(run.left_s(), 80) << skew;
    EXPECT_LT(run.left_s(), 90) << skew;
  }
}

TEST_F(Aws, ARecommendationIsSoft) {
  fake.rebalance = fmt::format(R"({{"noticeTime":"{}"}})", Rfc3339(run.wall(0)));
  run.For(Duration::Seconds(6));
  ASSERT_TRUE(run.current());
  EXPECT_FALSE(run.current()->what.hard);
  EXPECT_EQ(ToText(run.current()->what.origin), "aws: rebalance");
  // The interruption that may follow counts more.
  fake.action = Action("terminate", 120);
  run.For(Duration::Seconds(6));
  EXPECT_TRUE(run.current()->what.hard);
}

TEST_F(Aws, MaintenanceIsHardWhenItIsNear) {
  fake.maintenance = Event("instance-retirement", 1500);
  run.For(Duration::Seconds(5));
  ASSERT_TRUE(run.current());
  EXPECT_FALSE(run.current()->what.hard);
  run.For(Duration::Seconds(670));
  EXPECT_TRUE(run.current()->what.hard);
  EXPECT_TRUE(run.current()->cancelable);
  EXPECT_NEAR(run.left_s(), 1500 - 676, 70);
  fake.maintenance = Event("instance-retirement", 500, "canceled");
  run.For(Duration::Seconds(65));
  EXPECT_EQ(run.current(), std::nullopt);
  fake.maintenance = Event("system-maintenance", 500);
  run.For(Duration::Seconds(65));
  EXPECT_FALSE(run.current()->what.hard) << "it only disturbs";
}

TEST_F(Aws, ATokenIsRenewedBeforeItExpires) {
  fake.token_seconds = 100;
  run.For(Duration::Seconds(600));
  EXPECT_EQ(fake.tokens, 7);
  EXPECT_TRUE(run.complaints.empty());
}

// The service has forgotten it, or its life was other than said.
TEST_F(Aws, AnExpiredTokenIsFetchedAgainOnce) {
  fake.token_seconds = 7;
  fake.tells_token_seconds = false;
  run.For(Duration::Seconds(60));
  EXPECT_GE(fake.tokens, 6);
  EXPECT_TRUE(run.complaints.empty());
  fake.action = Action("terminate", 120);
  EXPECT_TRUE(run.Until(true, Duration::Seconds(6)));
}

TEST_F(Aws, ARefusedTokenIsNotAskedForWithoutEnd) {
  fake.token_seconds = 0;  // every token has expired when it arrives
  run.For(Duration::Seconds(120));
  EXPECT_EQ(run.complaints.size(), 3u) << "one for each topic";
  EXPECT_LT(fake.questions, 120);
}

TEST_F(Aws, AServiceWithoutTokensIsComplainedOfOnce) {
  for (const int code : {403, 404, 503}) {
    FakeAws broken;
    broken.instead_of["/latest/api/token"] = Code(code);
    AwsSource asks;
    FakeRun long_run(asks, broken);
    long_run.For(Duration::Seconds(600));
    ASSERT_EQ(long_run.complaints.size(), 1u);
    EXPECT_NE(long_run.complaints[0].find(fmt::format("HTTP {}", code)), std::string::npos);
    EXPECT_NE(long_run.complaints[0].find("HttpPutResponseHopLimit"), std::string::npos);
    EXPECT_LT(broken.questions, 70) << "every ten seconds at last";
    // It works as soon as the service does.
    broken.instead_of.clear();
    broken.action = Action("terminate", 700);
    EXPECT_TRUE(long_run.Until(true, Duration::Seconds(16)));
  }
}

TEST_F(Aws, AnEmptyTokenIsNone) {
  fake.instead_of["/latest/api/token"] = Ok("");
  run.For(Duration::Seconds(60));
  ASSERT_EQ(run.complaints.size(), 1u);
  EXPECT_NE(run.complaints[0].find("empty"), std::string::npos);
}

TEST_F(Aws, AHangingServiceIsAskedAgain) {
  fake.hangs = true;
  run.For(Duration::Seconds(100));
  EXPECT_EQ(run.complaints.size(), 1u);
  fake.hangs = false;
  fake.action = Action("terminate", 60);
  const auto seen = run.Until(true, Duration::Seconds(60));
  ASSERT_TRUE(seen);
  EXPECT_LE(*seen, Duration::Seconds(13));
}

// What cannot be read changes nothing, in either direction.
TEST_F(Aws, DamagedAnswersChangeNothing) {
  const std::vector<Answer> damaged = {
      Ok("{"),
      Ok("[]"),
      Ok(""),
      Ok("null"),
      Ok(R"({"action":"terminate"})"),
      Ok(R"({"action":"dance","time":"2027-09-18T08:22:00Z"})"),
      Ok(R"({"action":7,"time":"2027-09-18T08:22:00Z"})"),
      Ok(R"({"action":"terminate","time":"soon"})"),
      Ok(std::string(300, '[')),
      Code(500),
      Code(503),
      Answer{.status = Internal("the body is larger than the limit of 262144 bytes")},
      Answer{.status = Unavailable("lost the connection")}};
  const std::string path = "/latest/meta-data/spot/instance-action";
  for (const bool noticed : {false, true}) {
    fake.action = noticed ? Action("terminate", 3000) : "";
    fake.instead_of.clear();
    run.For(Duration::Seconds(12));
    ASSERT_EQ(run.current().has_value(), noticed);
    for (const Answer& answer : damaged) {
      fake.instead_of[path] = answer;
      run.For(Duration::Seconds(6));
      EXPECT_EQ(run.current().has_value(), noticed) << answer.body;
    }
  }
  EXPECT_LE(run.complaints.size(), damaged.size());
  EXPECT_GE(run.complaints.size(), 6u);
}

// One topic that never answers does not hide the others.
TEST_F(Aws, ABrokenTopicDoesNotHideAnother) {
  fake.instead_of["/latest/meta-data/events/"] = Code(500);
  run.For(Duration::Seconds(60));
  fake.action = Action("terminate", 120);
  const auto seen = run.Until(true, Duration::Seconds(60));
  ASSERT_TRUE(seen);
  EXPECT_LE(*seen, Duration::Seconds(6));
}

}  // namespace
}  // namespace millrace::notice
