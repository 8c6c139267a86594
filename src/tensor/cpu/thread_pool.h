// ThreadPool: the device's own threads. A decode step is hundreds of parallel pieces of a few tens
// of microseconds, so a thread waits for the next piece by spinning for a moment and then sleeping
// in a futex. On a machine shared with others, a barrier that only spins would burn a whole time
// slice whenever a peer is descheduled.
//
// Tasks run with denormals flushed (flush.h).
//
// Used by one thread at a time, the caller, which takes part as thread 0. Results do not depend on
// which thread does which piece, which differs from run to run.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include "tensor/cpu/flush.h"

namespace millrace::tensor {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 256;

  // `threads` in [1, kMaxThreads], including the caller. With `pin`, each thread except the
  // caller's is pinned to its own CPU, if there are enough CPUs. The caller's thread is not pinned;
  // a worker that shares its CPU is moved.
  explicit ThreadPool(int threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(thread) once on every thread; returns when all have returned.
  template <typename Task>
  void Run(Task&& task) {
    RunErased(
        [](void* t, int thread) { (*static_cast<std::remove_reference_t<Task>*>(t))(thread); },
        &task);
  }

  // Runs task(begin, end, thread) over pieces of [0, count) of at most `piece`. Each thread has a
  // share of adjacent pieces, the same in every call, because neighbours share cache lines and
  // pages. It goes through them from the first; when it is done, it takes the last one of whoever
  // has most left.
  template <typename Task>
  void ParallelFor(int count, int piece, Task&& task) {
    if (count <= 0) return;
    if (workers_.empty() || count <= piece) {
      const FlushDenormals flush;
      return task(0, count, 0);
    }
    ShareOut(count / piece + (count % piece != 0));
    Run([&](int thread) {
      while (const std::optional<int> taken = NextPiece(thread)) {
        const int begin = *taken * piece, left = count - begin;
        task(begin, begin + (piece < left ? piece : left), thread);
      }
    });
  }

 private:
  using Function = void (*)(void* task, int thread);
  // Pieces [begin, end) that are left: begin in the upper half.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  void ShareOut(int pieces);
  std::optional<int> NextPiece(int thread);

  void RunErased(Function function, void* task);
  void Work(int thread);
  void AwaitEpoch(uint32_t seen);
  void AwaitWorkers();
  void Pin(int worker, int cpu);
  void StayOutOfTheCallersWay();
  template <typename Done>
  bool Spin(Done done) const;

  int64_t spin_ns_ = 0;
  Function function_ = nullptr;  // null: stop
  void* task_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // incremented by each Run; workers wait on it
  alignas(64) std::atomic<uint32_t> pending_{
      0};  // workers still in the task; the caller waits on it
  alignas(64) std::atomic<uint32_t> sleeping_workers_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  std::vector<Share> shares_;  // by thread
  std::vector<std::thread> workers_;
  std::vector<int> worker_cpus_;  // the CPUs they are pinned to; empty: not pinned
  int free_cpu_ = 0;              // the CPU left for the caller
};

}  // namespace millrace::tensor
