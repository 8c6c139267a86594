#include "tensor/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

namespace millrace::tensor {
namespace {

TEST(ThreadPoolTest, RunsOnceOnEveryThread) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> runs(threads, 0);
    for (int i = 0; i < 50; ++i) pool.Run([&](int thread) { ++runs[thread]; });
    EXPECT_EQ(runs, std::vector<int>(threads, 50));
  }
}

TEST(ThreadPoolTest, CoversARangeOnce) {
  ThreadPool pool(4);
  for (int count : {0, 1, 5, 64, 1000}) {
    for (int piece : {1, 3, 100}) {
      std::vector<int> hits(count, 0);
      pool.ParallelFor(count, piece, [&](int begin, int end, int thread) {
        EXPECT_LE(end, count);
        EXPECT_TRUE(thread >= 0 && thread < 4);
        for (int i = begin; i < end; ++i) ++hits[i];
      });
      EXPECT_EQ(hits, std::vector<int>(count, 1)) << count << " in pieces of " << piece;
    }
  }
}

// A thread that is done takes over what is left of a slow one's share.
TEST(ThreadPoolTest, NoPieceWaitsForASlowThread) {
  ThreadPool pool(3, /*pin=*/false);
  for (const int slow : {0, 1, 2}) {
    constexpr int kPieces = 60;
    std::vector<int> done_by(kPieces, -1);
    std::atomic<int> done = 0;
    pool.ParallelFor(kPieces, 1, [&](int begin, int, int thread) {
      done_by[static_cast<size_t>(begin)] = thread;
      ++done;
      // The slow thread stays in its first piece until the others have done all the rest.
      while (thread == slow && done < kPieces) std::this_thread::yield();
    });
    EXPECT_EQ(std::ranges::count(done_by, -1), 0);
    EXPECT_LE(std::ranges::count(done_by, slow), 1) << "thread " << slow;
  }
}

// What one Run wrote, the next sees on every thread, without further locks: that is the barrier's
// contract. ThreadSanitizer proves it. Occasional gaps let threads fall asleep.
TEST(ThreadPoolTest, IsABarrierUnderStress) {
  for (int threads : {2, 4}) {
    ThreadPool pool(threads, /*pin=*/false);
    std::vector<int64_t> cells(threads, 1);
    int64_t want = 1;
    for (int i = 0; i < 3000; ++i) {
      std::vector<int64_t> next(threads);
      pool.Run([&](int thread) { next[thread] = cells[(thread + 1) % threads] + 1; });
      cells = next;
      ++want;
      for (int64_t cell : cells) ASSERT_EQ(cell, want);
      if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

TEST(ThreadPoolTest, PinnedThreadsLeaveTheCallersCpu) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  if (CPU_COUNT(&all) < 2) return;  // with one CPU nothing is pinned
  ThreadPool pool(2);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    int ran_on[2] = {-1, -1};
    for (int i = 0; i < 2; ++i) pool.Run([&](int thread) { ran_on[thread] = sched_getcpu(); });
    EXPECT_EQ(ran_on[0], cpu);
    EXPECT_NE(ran_on[1], cpu);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(ThreadPoolTest, StopsWhileWorkersSleepOrSpin) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace millrace::tensor
