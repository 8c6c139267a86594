#include "notice/notice_board.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace millrace::notice {
namespace {

Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

Notice Make(std::string id, bool hard, std::optional<double> at) {
  Notice notice{.what = {.hard = hard}, .id = std::move(id)};
  if (at) notice.what.deadline = At(*at);
  return notice;
}

TEST(NoticeBoard, TheHardNoticeThatIsDueFirstHolds) {
  NoticeBoard board;
  EXPECT_EQ(board.current(), std::nullopt);
  board.Put(1, {Make("soft", false, 5)});
  EXPECT_EQ(board.current()->id, "soft");
  board.Put(2, {Make("late", true, 100), Make("unknown", true, {})});
  EXPECT_EQ(board.current()->id, "late");
  board.Put(3, {Make("early", true, 50)});
  EXPECT_EQ(board.current()->id, "early");
  board.Put(3, {});
  EXPECT_EQ(board.current()->id, "late");
  board.Put(2, {Make("unknown", true, {})});
  EXPECT_EQ(board.current()->id, "unknown");
  board.Put(2, {});
  EXPECT_EQ(board.current()->id, "soft");
}

TEST(NoticeBoard, ANoticeKeepsItsFirstDeadline) {
  NoticeBoard board;
  board.Put(1, {Make("a", true, 30)});
  board.Put(1, {Make("a", true, 35)});
  EXPECT_EQ(board.current()->what.deadline, At(30)) << "the wall clock has jumped";
  board.Put(1, {Make("a, postponed", true, 90)});
  EXPECT_EQ(board.current()->what.deadline, At(90));
  // Withdrawn and given again.
  board.Put(1, {});
  board.Put(1, {Make("a", true, 200)});
  EXPECT_EQ(board.current()->what.deadline, At(200));
}

// Against a model that searches all that was said.
TEST(NoticeBoard, AgreesWithASearch) {
  Rng rng(7);
  NoticeBoard board;
  std::vector<std::vector<Notice>> said(4);
  for (int round = 0; round < 2000; ++round) {
    const auto source = static_cast<size_t>(rng.Between(0, 3));
    std::vector<Notice> notices;
    for (int64_t i = rng.Between(0, 3); i > 0; --i) {
      const auto at = static_cast<double>(rng.Between(1, 50));
      notices.push_back(Make(std::to_string(rng.Between(0, 4)), rng.Between(0, 1) == 0,
                             rng.Between(0, 4) == 0 ? std::nullopt : std::optional(at)));
    }
    board.Put(source, notices);
    for (Notice& notice : notices) {
      for (const Notice& before : said[source]) {
        if (before.id != notice.id) continue;
        notice.what.deadline = before.what.deadline;
        break;
      }
    }
    said[source] = notices;
    bool any = false, any_hard = false;
    for (const auto& each : said) {
      for (const Notice& notice : each) any = true, any_hard = any_hard || notice.what.hard;
    }
    ASSERT_EQ(board.current().has_value(), any);
    if (!any) continue;
    ASSERT_EQ(board.current()->what.hard, any_hard);
    for (const auto& each : said) {
      for (const Notice& notice : each) {
        if (notice.what.hard != any_hard || !notice.what.deadline) continue;
        ASSERT_LE(board.current()->what.deadline.value_or(At(1e6)), *notice.what.deadline);
      }
    }
  }
}

TEST(DeadlineFor, KeepsBothBounds) {
  const Moment now{At(1000), {1'800'000'000}};
  const auto left = [&](std::optional<int64_t> in_s, double cap_s) {
    const auto when = in_s ? std::optional(WallTime{now.wall.s + *in_s}) : std::nullopt;
    return (DeadlineFor(when, Duration::Seconds(cap_s), now) - now.time).seconds();
  };
  EXPECT_DOUBLE_EQ(left(60, 120), 59);
  EXPECT_DOUBLE_EQ(left(600, 120), 119) << "the clocks disagree";
  EXPECT_DOUBLE_EQ(left({}, 30), 29);
  EXPECT_DOUBLE_EQ(left(-600, 120), 1) << "a time that has passed means now and a little";
  EXPECT_DOUBLE_EQ(left(1, 120), 1);
  EXPECT_DOUBLE_EQ(left(60, 0), 1);
  EXPECT_DOUBLE_EQ(left(200'000'000'000, 30), 29);
}

}  // namespace
}  // namespace millrace::notice
