#include "base/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace {
namespace {

TEST(ProgressLine, TellsAmountRateAndTimeLeft) {
  EXPECT_EQ(ProgressLine("Loading", ProgressUnit::kBytes, 1 << 30, int64_t{4} << 30, 2, true),
            "Loading [======                  ]  25% 1.00 GiB of 4.00 GiB, 536.9 MB/s, 6s left");
  EXPECT_EQ(ProgressLine("Loading", ProgressUnit::kBytes, 1 << 30, 1 << 30, 2, false),
            "Loading 100% 1.00 GiB of 1.00 GiB, 536.9 MB/s in 2s");
  EXPECT_EQ(
      ProgressLine("Loading", ProgressUnit::kBytes, int64_t{3} << 30, int64_t{3} << 30, 1, false),
      "Loading 100% 3.00 GiB of 3.00 GiB, 3.22 GB/s in 1s");
  EXPECT_EQ(ProgressLine("Prompts", ProgressUnit::kRequests, 0, 1000, 0, false),
            "Prompts   0% 0 of 1,000");
  EXPECT_EQ(ProgressLine("Prompts", ProgressUnit::kRequests, 0, 0, 0, false),
            "Prompts 100% 0 of 0 in 0s");
}

std::string Painted(ProgressStyle style, int updates, Duration step) {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  ManualClock clock;
  {
    Progress progress("P", ProgressUnit::kRequests, 100, out, style, clock);
    for (int i = 1; i <= updates; ++i) {
      clock.Advance(step);
      progress.SetNote("n");
      progress.Update(i);
    }
  }
  fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Progress, TerminalRepaintsOneLineAtMostTenTimesASecond) {
  const std::string out = Painted({.bar = true}, 100, Duration::Millis(20));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\r'), 21);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_NE(out.find("(n)\x1b[K\n"), std::string::npos);
}

TEST(Progress, PlainOutputIsOneLineEveryFiveSeconds) {
  const std::string out = Painted({.bar = false}, 11, Duration::Seconds(1));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3);  // 5 s, 10 s, the end
  EXPECT_EQ(out.find_first_of("\r\x1b"), std::string::npos);
}

TEST(ProgressStyle, HonoursNoColorAndPipes) {
  FILE* file = tmpfile();
  EXPECT_FALSE(ProgressStyle::ForStream(file).bar);
  fclose(file);
}

}  // namespace
}  // namespace millrace
