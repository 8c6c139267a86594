#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Counter {
 public:
  void Add() {
    const MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  int count() {
    const MutexLock lock(mutex_);
    return count_;
  }
  void WaitFor(int count) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() MR_REQUIRES(mutex_) { return count_ >= count; });
  }
  void WaitInALoop(int count) {
    MutexLock lock(mutex_);
    while (count_ < count) changed_.wait(lock);
  }
  bool WaitForAtMost(int count, milliseconds limit) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, limit, [&]() MR_REQUIRES(mutex_) { return count_ >= count; });
  }
  bool WaitUntil(int count, steady_clock::time_point end) {
    MutexLock lock(mutex_);
    return changed_.wait_until(lock, end, [&]() MR_REQUIRES(mutex_) { return count_ >= count; });
  }
  std::cv_status WaitOnce(milliseconds limit) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, limit);
  }
  std::cv_status WaitOnceUntil(steady_clock::time_point end) {
    MutexLock lock(mutex_);
    return changed_.wait_until(lock, end);
  }
  // Add from another thread while the lock is given back in between.
  int AddInBetween() {
    MutexLock lock(mutex_);
    const int before = count_;
    lock.unlock();
    std::thread([this] { Add(); }).join();
    lock.lock();
    return count_ - before;
  }
  bool TakenOnlyWhenFree() {
    if (!mutex_.try_lock()) return false;
    const MutexLock lock(mutex_, std::adopt_lock);
    bool taken = false;
    std::thread([&] {
      if (!mutex_.try_lock()) return;
      taken = true;
      mutex_.unlock();
    }).join();
    return ++count_ == 1 && !taken;
  }
  bool TakesADeferredLock() {
    MutexLock lock(mutex_, std::defer_lock);
    Add();  // would not return if the lock were held
    lock.lock();
    return count_ == 1;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ MR_GUARDED_BY(mutex_) = 0;
};

TEST(Mutex, ExcludesOtherThreads) {
  constexpr int kThreads = 4, kEach = 2000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) counter.Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.count(), kThreads * kEach);
}

TEST(Mutex, IsGivenBackAndTakenAgain) {
  EXPECT_EQ(Counter().AddInBetween(), 1);
  EXPECT_TRUE(Counter().TakesADeferredLock());
  Counter counter;
  EXPECT_TRUE(counter.TakenOnlyWhenFree());
  EXPECT_EQ(counter.count(), 1);  // the adopted lock has been given back
}

TEST(CondVar, WaitsUntilThePredicateHolds) {
  Counter counter;
  std::thread adds([&] {
    for (int i = 0; i < 4; ++i) counter.Add();
  });
  counter.WaitFor(2);
  counter.WaitInALoop(3);
  EXPECT_TRUE(counter.WaitForAtMost(4, milliseconds(60000)));
  EXPECT_TRUE(counter.WaitUntil(4, steady_clock::now()));
  adds.join();
}

TEST(CondVar, GivesUpAtItsLimit) {
  Counter counter;
  EXPECT_FALSE(counter.WaitForAtMost(1, milliseconds(5)));
  EXPECT_FALSE(counter.WaitUntil(1, steady_clock::now() + milliseconds(5)));
  // Either may also return early for no reason, with no_timeout.
  while (counter.WaitOnce(milliseconds(5)) != std::cv_status::timeout) {
  }
  while (counter.WaitOnceUntil(steady_clock::now()) != std::cv_status::timeout) {
  }
}

}  // namespace
}  // namespace millrace
