// The collective over memory that all ranks share: processes of one host (same_host_collective.h),
// or in tests threads of one process. Owned and used like any Collective.
//
// Every rank has two slots. A sum is cut into chunks; chunk c, counted over the group's lifetime,
// uses slot c mod 2. A rank writes its values there, announces it (`arrived`), and adds when all
// have arrived. It may overwrite the slot with chunk c + 2 once all have arrived at chunk c + 1,
// because every rank reads all of chunk c before that. So there is one wait per chunk and no lock.
// For many values on many ranks, each rank adds one part and then waits once more for the parts of
// the others (`reduced`).
//
// A waiting rank spins for a moment, then sleeps in a futex, one slice at a time. After each slice
// it checks for peers that are gone, a failure of any rank, and the deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "net/collective/collective.h"

namespace millrace::net {

inline constexpr size_t kSlotFloats = size_t{64} << 10;  // 256 KB: two of two ranks fit in L2

// The start of the shared memory; the slots follow. All zero means an unused group.
struct SlotHeader {
  struct alignas(64) Rank {
    std::atomic<uint32_t> arrived;   // chunks whose values are in the slot
    std::atomic<uint32_t> reduced;   // chunks whose part is in the result
    std::atomic<uint32_t> sleepers;  // peers that sleep on one of these counters
    std::atomic<uint64_t>
        left[2];  // values from this chunk to the end of the call; compared between ranks
  };
  alignas(64) std::atomic<uint64_t> magic;
  uint32_t version, size;
  uint64_t slot_floats, incarnation;
  alignas(64) std::atomic<uint32_t> failed;  // 1 + the rank that failed; 0: none
  Rank ranks[kCollectiveRanksMax];
};

// Bytes of memory for `size` ranks.
size_t SlotBytes(int size, size_t slot_floats);

class SlotCollective : public Collective {
 public:
  struct Options {
    int rank = 0, size = 1;
    size_t slot_floats = kSlotFloats;
    Duration deadline = kCollectiveDeadline;
  };
  // `memory`: SlotBytes of it, aligned to 64, shared by the ranks and kept as long as this object.
  SlotCollective(const Options& options, std::shared_ptr<void> memory);
  // Peers that wait for this rank afterwards get an error.
  ~SlotCollective() override;
  SlotCollective(const SlotCollective&) = delete;
  SlotCollective& operator=(const SlotCollective&) = delete;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status AllReduceSum(std::span<float> values) override;
  bool Waits() const override { return waits_.load(std::memory_order_relaxed); }
  void Abort(std::string_view why) override;

 protected:
  // Called while this rank waits: checks whether a peer is known to be gone.
  virtual Status CheckPeers() { return OkStatus(); }

 private:
  using Counter = std::atomic<uint32_t> SlotHeader::Rank::*;

  Status ReduceChunk(std::span<float> values, uint64_t left, Time end);
  void AddParts(std::span<float> values, size_t first, size_t count, float* out) const;
  Status Await(Counter counter, Time end);
  Status AwaitRank(int rank, Counter counter, Time end);
  Status SleepUntilReached(int rank, Counter counter, Time end);
  bool Reached(int rank, Counter counter) const;
  void Publish(Counter counter);
  Status Fail(Status why);
  Status FailedElsewhere() const;
  void GiveUp();
  float* Slot(int rank) const;  // for this chunk
  float* ResultSlot() const { return Slot(options_.size); }

  const Options options_;
  const std::shared_ptr<void> memory_;
  SlotHeader& header_;
  const int64_t spin_ns_;
  uint32_t chunk_ = 0;               // being reduced; counts from 1 and wraps
  std::atomic<bool> waits_ = false;  // longer than it spins
  Status status_;                    // of the first call that failed
  mutable Mutex abort_mutex_;
  std::string abort_reason_ MR_GUARDED_BY(abort_mutex_);
};

}  // namespace millrace::net
