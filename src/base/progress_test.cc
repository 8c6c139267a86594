#include "base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

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

// What is written to the file that `write` gets.
std::string Written(const std::function<void(FILE*)>& write) {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  write(out);
  fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

std::string Painted(ProgressStyle style, int updates, Duration step) {
  return Written([&](FILE* out) {
    ManualClock clock;
    Progress progress("P", ProgressUnit::kRequests, 100, out, style, clock);
    for (int i = 1; i <= updates; ++i) {
      clock.Advance(step);
      progress.SetNote("n");
      progress.Update(i);
    }
  });
}

TEST(Progress, TerminalRepaintsOneLineAtMostTenTimesASecond) {
  const std::string out = Painted({.bar = true}, 100, Duration::Millis(20));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\r'), 21);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_NE(out.find("(n)\x1b[K\n"), std::string::npos);
}

TEST(Progress, PlainOutputBeginsAfterTwoSecondsAndIsOneLineEveryFive) {
  const std::string out = Painted({.bar = false}, 13, Duration::Seconds(1));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4);  // 2 s, 7 s, 12 s, the end
  EXPECT_EQ(out.find_first_of("\r\x1b"), std::string::npos);
}

TEST(Progress, AShortOperationMayShowNothing) {
  EXPECT_EQ(Painted({.only_long = true}, 10, Duration::Millis(190)), "");
  EXPECT_EQ(Painted({.bar = true, .only_long = true}, 10, Duration::Millis(190)), "");
  EXPECT_NE(Painted({.only_long = true}, 10, Duration::Millis(210)), "");
}

// Nobody calls Show while one step of a search takes long.
TEST(ProgressText, APlainLineComesWithoutAnUpdate) {
  EXPECT_EQ(Written([](FILE* out) {
              ProgressText progress(out, {.beats = true});
              progress.Show("first");
              progress.Show("second");
              std::this_thread::sleep_for(std::chrono::milliseconds(2'300));
            }),
            "second\n");
}

TEST(ProgressText, ATerminalsLineIsErased) {
  EXPECT_EQ(Written([](FILE* out) {
              ProgressText progress(out, {.bar = true},
                                    [](const std::string& text) { return "line: " + text; });
              progress.Show("first");
            }),
            "\r\x1b[Kline: first\r\x1b[K");
}

TEST(ProgressStyle, HonoursNoColorAndPipes) {
  FILE* file = tmpfile();
  EXPECT_FALSE(ProgressStyle::ForStream(file).bar);
  fclose(file);
}

}  // namespace
}  // namespace millrace
