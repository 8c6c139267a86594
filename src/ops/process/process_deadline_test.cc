#include "ops/process/process_deadline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace millrace::ops {
namespace {

TEST(ProcessDeadlineDeathTest, EndsAProcessWhoseThreadsStandStill) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const SteadyClock clock;
        ProcessDeadline deadline(clock);
        deadline.EndBy(clock.Now() + Duration::Seconds(3600), 5, "a later one");
        deadline.EndBy(clock.Now() + Duration::Millis(20), 3, "a load of weights");
        deadline.EndBy(clock.Now() + Duration::Seconds(60), 4, "one more");
        std::this_thread::sleep_for(std::chrono::minutes(5));
      },
      testing::ExitedWithCode(3), "");
}

TEST(ProcessDeadline, IsTakenBackWhenItIsDestroyed) {
  const SteadyClock clock;
  {
    ProcessDeadline deadline(clock);
    deadline.EndBy(clock.Now() + Duration::Seconds(0.2), 3, "nothing");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

}  // namespace
}  // namespace millrace::ops
