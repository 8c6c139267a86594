#include "tensor/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "base/check.h"
#include "base/control_groups.h"

namespace millrace::tensor {
namespace {

// Longer than the gap between two operations of a decode step, shorter than a time slice.
constexpr int64_t kSpinNs = 50'000;

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

void FutexWait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::vector<int> AvailableCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin) : shares_(static_cast<size_t>(threads)) {
  MR_CHECK(threads >= 1 && threads <= kMaxThreads) << threads << " threads";
  const std::vector<int> cpus = AvailableCpus();
  const double usable = std::min(ReadCpuQuota().value_or(kMaxThreads), double(cpus.size()));
  const bool enough_cpus = threads <= usable;
  // With fewer CPUs than threads, a spinning thread would keep the one that it waits for from
  // running.
  spin_ns_ = enough_cpus ? kSpinNs : 0;
  workers_.reserve(threads - 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
  if (!pin || !enough_cpus) return;
  free_cpu_ = cpus[0];
  worker_cpus_.resize(threads - 1);
  for (int worker = 0; worker < threads - 1; ++worker) Pin(worker, cpus[worker + 1]);
}

void ThreadPool::Pin(int worker, int cpu) {
  worker_cpus_[worker] = cpu;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Best effort: a container may forbid it; only speed depends on it.
  pthread_setaffinity_np(workers_[worker].native_handle(), sizeof(set), &set);
}

void ThreadPool::StayOutOfTheCallersWay() {
  const int cpu = sched_getcpu();
  if (cpu == free_cpu_) return;
  for (size_t worker = 0; worker < worker_cpus_.size(); ++worker) {
    if (worker_cpus_[worker] != cpu) continue;
    Pin(static_cast<int>(worker), free_cpu_);
    free_cpu_ = cpu;
  }
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;
  epoch_.fetch_add(1);
  FutexWake(epoch_);
  for (std::thread& worker : workers_) worker.join();
}

template <typename Done>
bool ThreadPool::Spin(Done done) const {
  if (done()) return true;
  if (spin_ns_ == 0) return false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(spin_ns_);
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// Both waits are Dekker's pattern: the sleeper announces that it sleeps and then checks the word,
// the waker changes the word and then checks for sleepers, all sequentially consistent.
void ThreadPool::AwaitEpoch(uint32_t seen) {
  if (Spin([&] { return epoch_.load(std::memory_order_acquire) != seen; })) return;
  sleeping_workers_.fetch_add(1);
  while (epoch_.load() == seen) FutexWait(epoch_, seen);
  sleeping_workers_.fetch_sub(1);
}

void ThreadPool::AwaitWorkers() {
  if (Spin([&] { return pending_.load(std::memory_order_acquire) == 0; })) return;
  caller_sleeps_.store(1);
  for (uint32_t left = pending_.load(); left != 0; left = pending_.load()) {
    FutexWait(pending_, left);
  }
  caller_sleeps_.store(0);
}

void ThreadPool::ShareOut(int pieces) {
  const int64_t shares = threads();
  for (int64_t i = 0; i < shares; ++i) {
    const auto begin = static_cast<uint64_t>(pieces * i / shares);
    const auto end = static_cast<uint64_t>(pieces * (i + 1) / shares);
    shares_[static_cast<size_t>(i)].left.store(begin << 32 | end, std::memory_order_relaxed);
  }
}

std::optional<int> ThreadPool::NextPiece(int thread) {
  const auto begin_of = [](uint64_t left) { return left >> 32; };
  const auto end_of = [](uint64_t left) { return left & 0xffffffff; };
  std::atomic<uint64_t>& own = shares_[static_cast<size_t>(thread)].left;
  uint64_t left = own.load(std::memory_order_relaxed);
  while (begin_of(left) < end_of(left)) {
    if (own.compare_exchange_weak(left, left + (uint64_t{1} << 32), std::memory_order_relaxed)) {
      return static_cast<int>(begin_of(left));
    }
  }
  for (;;) {
    std::atomic<uint64_t>* most = nullptr;
    uint64_t of_most = 0;
    for (Share& share : shares_) {
      left = share.left.load(std::memory_order_relaxed);
      if (end_of(left) - begin_of(left) <= end_of(of_most) - begin_of(of_most)) continue;
      most = &share.left;
      of_most = left;
    }
    if (most == nullptr) return std::nullopt;
    if (most->compare_exchange_weak(of_most, of_most - 1, std::memory_order_relaxed)) {
      return static_cast<int>(end_of(of_most) - 1);
    }
  }
}

void ThreadPool::RunErased(Function function, void* task) {
  const FlushDenormals flush;
  if (workers_.empty()) return function(task, 0);
  if (!worker_cpus_.empty()) StayOutOfTheCallersWay();
  function_ = function;
  task_ = task;
  pending_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1);
  if (sleeping_workers_.load() != 0) FutexWake(epoch_);
  function(task, 0);
  AwaitWorkers();
}

void ThreadPool::Work(int thread) {
  const FlushDenormals flush;
  for (uint32_t seen = 0;; ++seen) {
    AwaitEpoch(seen);
    if (function_ == nullptr) return;
    function_(task_, thread);
    if (pending_.fetch_sub(1) == 1 && caller_sleeps_.load() != 0) FutexWake(pending_);
  }
}

}  // namespace millrace::tensor
