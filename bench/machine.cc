#include "bench/machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine.cc"
#include <hwy/foreach_target.h>
// Include after foreach_target.
#include <hwy/highway.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "bench/tiles.h"
#include "tensor/cpu/amx.h"
#include "tensor/cpu/memory.h"
#include "tensor/cpu/thread_pool.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

// Floating-point operations done. 12 chains cover two units' latency of up to 6 cycles.
double MultiplyAdd(int64_t rounds, float* sink) {
  const hn::CappedTag<float, 16> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  auto s0 = hn::Set(d, 0.0f), s1 = hn::Set(d, 0.1f), s2 = hn::Set(d, 0.2f), s3 = hn::Set(d, 0.3f);
  auto s4 = hn::Set(d, 0.4f), s5 = hn::Set(d, 0.5f), s6 = hn::Set(d, 0.6f), s7 = hn::Set(d, 0.7f);
  auto s8 = hn::Set(d, 0.8f), s9 = hn::Set(d, 0.9f), sa = hn::Set(d, 1.0f), sb = hn::Set(d, 1.1f);
  for (int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, b), s1 = hn::MulAdd(s1, a, b), s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b), s4 = hn::MulAdd(s4, a, b), s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b), s7 = hn::MulAdd(s7, a, b), s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b), sa = hn::MulAdd(sa, a, b), sb = hn::MulAdd(sb, a, b);
  }
  const auto sum0 = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(s4, s5));
  const auto sum1 = hn::Add(hn::Add(hn::Add(s6, s7), hn::Add(s8, s9)), hn::Add(sa, sb));
  *sink = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d) * rounds);
}

void ReadAll(const uint8_t* from, size_t bytes, uint32_t* sink) {
  const hn::CappedTag<uint32_t, 16> d;
  const size_t step = hn::Lanes(d) * sizeof(uint32_t);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  for (size_t i = 0; i + 4 * step <= bytes; i += 4 * step) {
    const auto load = [&](size_t v) {
      return hn::Load(d, reinterpret_cast<const uint32_t*>(from + i + v * step));
    };
    s0 = hn::Xor(s0, load(0)), s1 = hn::Xor(s1, load(1));
    s2 = hn::Xor(s2, load(2)), s3 = hn::Xor(s3, load(3));
  }
  *sink = hn::GetLane(hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::bench {

HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(ReadAll);

namespace {

constexpr int64_t kFmaRounds = 1'000'000;          // about 2 ms
constexpr int64_t kTileRounds = 100'000;           // about 2 ms
constexpr size_t kSampleBytes = size_t{64} << 20;  // about 5 ms

}  // namespace

double Now(Clock clock) {
  timespec now{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Machine::State {
  const Clock clock;
  std::map<int, std::unique_ptr<tensor::ThreadPool>> pools;
  std::vector<tensor::HostMemory> memory;  // per thread
  size_t next = 0;                         // where the next sample reads

  tensor::ThreadPool& Pool(int threads) {
    auto& pool = pools[threads];
    if (pool == nullptr) pool = std::make_unique<tensor::ThreadPool>(threads);
    while (static_cast<int>(memory.size()) < threads) {
      auto allocated = tensor::HostMemory::Allocate(kReadBytes, "the memory to read");
      MR_CHECK(allocated.ok()) << allocated.status().message();
      std::fill_n(static_cast<uint8_t*>(allocated->data()), kReadBytes, uint8_t{1});
      memory.push_back(std::move(allocated).value());
    }
    return *pool;
  }
};

Machine::Machine(Clock clock) : state_(new State{.clock = clock}) {}
Machine::~Machine() { delete state_; }

template <typename Task>
double Machine::SampleGflops(int threads, Task operations_of) {
  std::vector<double> operations(threads * 16);  // each on a cache line of its own
  tensor::ThreadPool& pool = state_->Pool(threads);
  const double begin = Now(state_->clock);
  pool.Run([&](int thread) { operations[thread * 16] = operations_of(); });
  const double seconds = Now(state_->clock) - begin;
  return std::accumulate(operations.begin(), operations.end(), 0.0) / seconds / 1e9;
}

double Machine::SampleFmaGflops(int threads) {
  return SampleGflops(threads, [] {
    float sink;
    const double operations = HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kFmaRounds, &sink);
    asm volatile("" ::"r"(&sink) : "memory");  // the result is used
    return operations;
  });
}

double Machine::SampleTileGflops(int threads) {
  if (!tensor::AmxIsThere()) return 0;
  return SampleGflops(threads, [] { return MultiplyTiles(kTileRounds); });
}

double Machine::SampleReadGbps(int threads) {
  tensor::ThreadPool& pool = state_->Pool(threads);
  std::vector<uint32_t> sinks(threads * 16);
  const size_t bytes = kSampleBytes;
  if (state_->next + bytes > kReadBytes) state_->next = 0;
  const double begin = Now(state_->clock);
  pool.Run([&](int thread) {
    const auto* from = static_cast<const uint8_t*>(state_->memory[thread].data()) + state_->next;
    HWY_DYNAMIC_DISPATCH(ReadAll)(from, bytes, &sinks[thread * 16]);
  });
  const double seconds = Now(state_->clock) - begin;
  state_->next += bytes;
  return static_cast<double>(bytes) * threads / seconds / 1e9;
}

}  // namespace millrace::bench
#endif
