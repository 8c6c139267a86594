// Shared by tests of requests that change their scheduler.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {

inline constexpr Duration kHold = Duration::Seconds(30);

inline SchedulerOptions Roomy() {
  SchedulerOptions o = Small();
  o.num_blocks = 64;
  return o;
}

inline std::vector<TokenId> Joined(std::vector<TokenId> first, const std::vector<TokenId>& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

// A moment is a call of Schedule or Commit.
inline void Moments(Harness& h, int moments) {
  for (int i = 0; i < moments; ++i) {
    if (!h.Schedule() && h.in_flight() > 0) h.Commit();
  }
}

inline void ExpectEmpty(Harness& h, int blocks) {
  h.scheduler().CheckIntegrity();
  EXPECT_FALSE(h.scheduler().HasWork());
  EXPECT_EQ(h.scheduler().Stats().blocks_free, blocks);
  EXPECT_EQ(h.scheduler().Stats().host_blocks_used, 0);
}

}  // namespace millrace::sched
