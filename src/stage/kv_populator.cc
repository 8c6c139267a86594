#include "stage/kv_populator.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/log.h"

namespace millrace::stage {
namespace {

constexpr double kKeptFree = 0.1;                      // of the memory that is free at the start
constexpr int64_t kGrantBytes = int64_t{64} << 20;     // between two looks at the memory
constexpr Duration kLookAgain = Duration::Seconds(1);  // while memory is short
// Batches, and parts of a transfer, that follow each other leave gaps of less than this.
constexpr Duration kIdleAfter = Duration::Millis(10);
constexpr Duration kBusyPoll = Duration::Millis(5);
constexpr int kWakesPerAhead = 8;  // as `ahead` is used up
constexpr BlockIndex kNever = std::numeric_limits<BlockIndex>::max();
constexpr char kThreadName[] = "kv-populate";

}  // namespace

PoolGrowth::PoolGrowth(const tensor::KvShape& shape, size_t ahead_bytes)
    : num_layers_(shape.num_layers),
      num_blocks_(shape.num_blocks),
      block_bytes_(
          tensor::PoolKvBox{0, 1, 0, shape.num_kv_heads, 0, shape.block_size}.Bytes(shape)) {
  const size_t of_all_layers = block_bytes_ * static_cast<size_t>(num_layers_);
  step_blocks_ = static_cast<BlockIndex>(std::max<size_t>(1, kStepBytes / block_bytes_));
  ahead_ = static_cast<BlockIndex>(
      std::clamp<size_t>(ahead_bytes / of_all_layers, 1, static_cast<size_t>(num_blocks_)));
}

std::optional<PoolGrowth::Step> PoolGrowth::Next(BlockIndex used) const {
  if (ready_ >= num_blocks_ || ready_ >= int64_t{used} + ahead_) return std::nullopt;
  return Step{layer_, ready_, std::min(ready_ + step_blocks_, num_blocks_)};
}

void PoolGrowth::Done(const Step& step) {
  if (++layer_ < num_layers_) return;
  layer_ = 0;
  ready_ = step.end;
}

BlockIndex PoolGrowth::NextUse() const {
  if (ready_ >= num_blocks_) return kNever;
  return ready_ - ahead_ + std::max(1, ahead_ / kWakesPerAhead);
}

void KvPopulator::Pool::Grow(BlockIndex used) {
  BlockIndex before = used_.load(std::memory_order_relaxed);
  while (before < used && !used_.compare_exchange_weak(before, used)) {
  }
  if (used < wakes_at_.load()) return;
  wakes_at_ = kNever;
  populator_.Wake();
}

KvPopulator::KvPopulator(size_t ahead_bytes, MemoryLeft memory_left)
    : ahead_bytes_(ahead_bytes),
      memory_left_(std::move(memory_left)),
      kept_free_(static_cast<int64_t>(kKeptFree * static_cast<double>(memory_left_().bytes))),
      thread_([this] { Run(); }) {}

KvPopulator::~KvPopulator() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<KvPopulator::Pool> KvPopulator::Add(const std::shared_ptr<tensor::KvPool>& pool) {
  auto user = std::make_shared<Pool>(*this);
  {
    const MutexLock lock(mutex_);
    added_.push_back({pool, user, PoolGrowth(pool->shape(), ahead_bytes_)});
  }
  Wake();
  return user;
}

void KvPopulator::Wake() {
  {
    const MutexLock lock(mutex_);
    wake_ = true;
  }
  changed_.notify_one();
}

bool KvPopulator::Wait(std::optional<Duration> limit) {
  const auto woken = [this]() MR_REQUIRES(mutex_) { return wake_ || ends_; };
  MutexLock lock(mutex_);
  if (limit) {
    changed_.wait_for(lock, std::chrono::nanoseconds(limit->ns), woken);
  } else {
    changed_.wait(lock, woken);
  }
  wake_ = false;
  std::ranges::move(added_, std::back_inserter(pools_));
  added_.clear();
  return !ends_;
}

void KvPopulator::UseEnded() {
  use_ended_ns_ = clock_.Now().ns;
  --uses_;
}

bool KvPopulator::Busy() const {
  return uses_ > 0 || clock_.Now().ns - use_ended_ns_ < kIdleAfter.ns;
}

bool KvPopulator::MemoryIsShort(size_t bytes) {
  if (granted_ < static_cast<int64_t>(bytes)) {
    granted_ = std::min(kGrantBytes, memory_left_().bytes - kept_free_);
  }
  return granted_ < static_cast<int64_t>(bytes);
}

void KvPopulator::Run() {
  pthread_setname_np(pthread_self(), kThreadName);
  std::optional<Duration> again;
  while (Wait(again)) again = RunSteps();
}

KvPopulator::Entry* KvPopulator::NextEntry() {
  std::erase_if(pools_, [](const Entry& entry) { return entry.pool.expired(); });
  for (Entry& entry : pools_) {
    if (entry.growth.Next(entry.user->used_)) return &entry;
    entry.user->wakes_at_ = entry.growth.NextUse();
    // A block may have been used since `used_` was read.
    if (entry.growth.Next(entry.user->used_)) return &entry;
  }
  return nullptr;
}

std::optional<Duration> KvPopulator::RunSteps() {
  while (Entry* entry = NextEntry()) {
    {
      const MutexLock lock(mutex_);
      if (ends_) return std::nullopt;
    }
    if (Busy()) return kBusyPoll;
    const std::optional<PoolGrowth::Step> step = entry->growth.Next(entry->user->used_);
    const std::shared_ptr<tensor::KvPool> pool = entry->pool.lock();
    if (pool == nullptr || !step) continue;
    const size_t bytes = entry->growth.BytesOf(*step);
    if (MemoryIsShort(bytes)) return kLookAgain;
    if (const Status done = pool->Populate(step->layer, step->first, step->end); !done.ok()) {
      MR_LOG(info, "KV memory is not made ready ahead of prompts: {}", done.message());
      pools_.clear();
      return std::nullopt;
    }
    entry->growth.Done(*step);
    granted_ -= static_cast<int64_t>(bytes);
    populated_bytes_ += bytes;
  }
  return std::nullopt;
}

}  // namespace millrace::stage
