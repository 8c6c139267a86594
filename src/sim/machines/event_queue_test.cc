#include "sim/machines/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace millrace::sim {
namespace {

TEST(EventQueue, TiesGoByTheOrderOfPush) {
  EventQueue<int> queue;
  for (int i = 0; i < 100; ++i) queue.Push(Time{i % 3}, i);
  int64_t last_time = -1;
  int last = -1;
  while (!queue.empty()) {
    const int64_t at = queue.next_time().ns;
    const int event = queue.Pop();
    EXPECT_EQ(event % 3, at);
    if (at == last_time) {
      EXPECT_GT(event, last);
    }
    EXPECT_GE(at, last_time);
    last_time = at;
    last = event;
  }
}

// Compares random pushes and pops with a list that is searched from its front for the earliest.
TEST(EventQueue, AgreesWithANaiveList) {
  struct Entry {
    Time at;
    int event;
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    EventQueue<int> queue;
    std::vector<Entry> naive;
    for (int i = 0; i < 2000; ++i) {
      if (naive.empty() || rng.Between(0, 9) < (i < 1000 ? 6 : 4)) {
        const Time at{rng.Between(0, 50)};
        queue.Push(at, i);
        naive.push_back({at, i});
        continue;
      }
      const auto first = std::min_element(naive.begin(), naive.end(), [](auto& a, auto& b) {
        return a.at < b.at;  // the first of equal ones; naive keeps the order of pushes
      });
      ASSERT_EQ(queue.next_time(), first->at);
      ASSERT_EQ(queue.Pop(), first->event) << "seed " << seed << ", operation " << i;
      naive.erase(first);
      ASSERT_EQ(queue.size(), naive.size());
    }
  }
}

}  // namespace
}  // namespace millrace::sim
