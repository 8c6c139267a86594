// Mutex, MutexLock and CondVar: std::mutex, std::unique_lock and std::condition_variable with the
// attributes of clang's thread-safety analysis, and no cost beyond theirs. A member that a mutex
// guards says so with MR_GUARDED_BY(mutex_), and a function that is called with the lock held says
// MR_REQUIRES(mutex_). Clang builds refuse code that breaks either; for g++ the attributes are
// empty. The analysis looks at one function at a time: a lambda states what it requires, also
// inside a function that holds the lock.
//
// Any thread may call a Mutex and a CondVar. One thread at a time uses a MutexLock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define MR_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MR_THREAD_ATTRIBUTE(x)
#endif

#define MR_CAPABILITY(name) MR_THREAD_ATTRIBUTE(capability(name))
#define MR_SCOPED_CAPABILITY MR_THREAD_ATTRIBUTE(scoped_lockable)
// Of a member: read and written with the lock held. PT: what the pointer points to.
#define MR_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(guarded_by(mutex))
#define MR_PT_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Of a function: called with the lock held, or without it.
#define MR_REQUIRES(...) MR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MR_EXCLUDES(...) MR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Of a function: takes the lock and keeps it, or gives it back.
#define MR_ACQUIRE(...) MR_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MR_TRY_ACQUIRE(...) MR_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define MR_RELEASE(...) MR_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// Of a mutex: taken before the others when a thread holds both.
#define MR_ACQUIRED_BEFORE(...) MR_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
// Of a function that the analysis cannot follow; a comment beside it says why.
#define MR_NO_THREAD_SAFETY_ANALYSIS MR_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace millrace {

class MR_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MR_ACQUIRE() { mutex_.lock(); }
  void unlock() MR_RELEASE() { mutex_.unlock(); }
  bool try_lock() MR_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until the end of its scope; it can be given back and taken again in between.
class MR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MR_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  MutexLock(Mutex& mutex, std::defer_lock_t deferred) MR_EXCLUDES(mutex)
      : lock_(mutex.mutex_, deferred) {}
  // Takes over a mutex that this thread holds already, after try_lock for instance.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopted) MR_REQUIRES(mutex)
      : lock_(mutex.mutex_, adopted) {}
  ~MutexLock() MR_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() MR_ACQUIRE() { lock_.lock(); }
  void unlock() MR_RELEASE() { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// The waits of std::condition_variable. A predicate that reads guarded members is written
// [this]() MR_REQUIRES(mutex_) { return ...; }; the waits call it with the lock held.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  template <class Done>
  void wait(MutexLock& lock, Done done) {
    condition_.wait(lock.lock_, std::move(done));
  }
  template <class Rep, class Period>
  std::cv_status wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& limit) {
    return condition_.wait_for(lock.lock_, limit);
  }
  template <class Rep, class Period, class Done>
  bool wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& limit, Done done) {
    return condition_.wait_for(lock.lock_, limit, std::move(done));
  }
  template <class Clock, class Duration>
  std::cv_status wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& end) {
    return condition_.wait_until(lock.lock_, end);
  }
  template <class Clock, class Duration, class Done>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& end, Done done) {
    return condition_.wait_until(lock.lock_, end, std::move(done));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace millrace
