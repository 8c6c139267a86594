// KvPopulator: has the memory of KV pools ready before a prompt needs it. The kernel finds and
// clears a page when it is first written, and a prompt that waits for that takes up to twice as
// long. With prefix caching every prompt is given blocks that were never used, until the whole pool
// was used once.
//
// Its thread keeps the blocks after the last one in use ready, as many as `ahead_bytes` hold. It
// works while no batch runs and no KV is transferred, a huge page at a time, so that these wait for
// no more than that; on a busy host pages come when they are first written, as without it. Its
// priority is that of every thread: one of low priority would hold the kernel's lock of this
// process's memory for long. It stops while less than a tenth of the memory that was free at its
// start is left.
//
// Owned by a stage. Any thread may call it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/mutex.h"
#include "base/status.h"
#include "core/ids.h"
#include "tensor/objects.h"

namespace millrace::stage {

// How far a pool is ready, and what comes next. Blocks are first used in ascending order
// (kv/block_pool.h). Pure; one thread at a time.
class PoolGrowth {
 public:
  // Of one step: as large as a huge page in each layer, if blocks are smaller.
  static constexpr size_t kStepBytes = size_t{2} << 20;

  PoolGrowth(const tensor::KvShape& shape, size_t ahead_bytes);

  struct Step {
    int layer = 0;
    BlockIndex first = 0, end = 0;
  };
  // `used`: the blocks before it are in use, or were. nullopt: enough is ready.
  std::optional<Step> Next(BlockIndex used) const;
  void Done(const Step& step);
  // When Next returns none: the use that makes it worth while to ask again.
  BlockIndex NextUse() const;
  size_t BytesOf(const Step& step) const {
    return static_cast<size_t>(step.end - step.first) * block_bytes_;
  }

 private:
  int num_layers_;
  BlockIndex num_blocks_;
  size_t block_bytes_;  // of one layer
  BlockIndex step_blocks_, ahead_;
  BlockIndex ready_ = 0;  // the blocks before it, in all layers
  int layer_ = 0;         // the layers before it have the step that begins at ready_
};

class KvPopulator {
 public:
  using MemoryLeft = std::function<MemoryAvailable()>;
  // `ahead_bytes`: at least 1.
  KvPopulator(size_t ahead_bytes, MemoryLeft memory_left);
  ~KvPopulator();

  // What a pool's users tell. Any thread may call it.
  class Pool {
   public:
    explicit Pool(KvPopulator& populator) : populator_(populator) {}
    // The block is about to be written.
    void Uses(BlockIndex block) {
      if (block >= used_.load(std::memory_order_relaxed)) Grow(block + 1);
    }

   private:
    friend class KvPopulator;
    void Grow(BlockIndex used);

    KvPopulator& populator_;
    std::atomic<BlockIndex> used_ = 0;
    std::atomic<BlockIndex> wakes_at_ = 0;  // with that many in use, more is to be made ready
  };
  // From now on the pool is kept ready, as long as somebody else holds it.
  std::shared_ptr<Pool> Add(const std::shared_ptr<tensor::KvPool>& pool);

  // As long as one exists, a batch runs or KV is transferred.
  class Use {
   public:
    explicit Use(KvPopulator* populator) : populator_(populator) {  // null: none is told
      if (populator_ != nullptr) ++populator_->uses_;
    }
    ~Use() {
      if (populator_ != nullptr) populator_->UseEnded();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    KvPopulator* const populator_;
  };

  // Bytes that were made ready.
  size_t populated_bytes() const { return populated_bytes_; }

 private:
  struct Entry {
    std::weak_ptr<tensor::KvPool> pool;
    std::shared_ptr<Pool> user;
    PoolGrowth growth;
  };

  void Run();
  // Works until there is nothing to do or it must not. When to try again; nullopt: when woken.
  std::optional<Duration> RunSteps();
  // The next step of some pool; nullptr: all are ready.
  Entry* NextEntry();
  bool Busy() const;
  bool MemoryIsShort(size_t bytes);
  void UseEnded();
  void Wake();
  // Until Wake, or for `limit`. False: the end has come.
  bool Wait(std::optional<Duration> limit);

  const size_t ahead_bytes_;
  const MemoryLeft memory_left_;
  const int64_t kept_free_;
  SteadyClock clock_;
  std::atomic<size_t> populated_bytes_ = 0;
  std::atomic<int> uses_ = 0;  // now
  std::atomic<int64_t> use_ended_ns_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool wake_ MR_GUARDED_BY(mutex_) = false;
  bool ends_ MR_GUARDED_BY(mutex_) = false;
  std::vector<Entry> added_ MR_GUARDED_BY(mutex_);
  // Of the thread:
  std::vector<Entry> pools_;
  int64_t granted_ = 0;  // bytes that may be populated before memory is looked at again
  std::thread thread_;   // last
};

}  // namespace millrace::stage
