// KV in transit between this scheduler's blocks and other stages (DistServe section 4.3: the decode
// side pulls when it has room, so the prefill side's memory is the queue).
//
// IncomingPulls: the pulls into this scheduler's blocks, from the time they are asked for until
// they have ended. The blocks that a pull writes are pinned, so that an abort cannot free them.
// Steps run in order, so a block may be given to a later step while an earlier one still has to
// copy out of it. A pull is not ordered with steps, so it waits here until that step has ended.
//
// KvHolds: blocks that are kept for other stages to read, until a given time.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/step_plan.h"
#include "kv/block_pool.h"
#include "kv/kv_cache.h"
#include "sched/scheduler.h"

namespace millrace::sched {

class IncomingPulls {
 public:
  // Not owned; outlives this object.
  IncomingPulls(kv::BlockPool& pool, int block_size);

  // `step` copies out of these blocks.
  void NoteReads(std::span<const BlockCopy> copies, StepId step);
  // These copies of `step` are not made after all, and no other copies of it are.
  void DropReads(std::span<const BlockCopy> copies, StepId step);
  // Whether the block is read by a step from `first_in_flight` on.
  bool IsRead(BlockIndex block, StepId first_in_flight) const {
    return read_by_[static_cast<size_t>(block)] >= first_in_flight;
  }

  // Asks for tokens [first_token, end_token) of sequence `index` into its table.
  void Ask(RequestId id, int index, int first_token, int end_token, const kv::BlockTable& table);
  // Appends the pulls that may start now. Every step before `first_in_flight` has ended.
  void TakeReady(StepId first_in_flight, std::vector<KvPull>& pulls);
  // Whether a pull waits for `step`.
  bool AnyWaitsFor(StepId step) const;
  // One of the request's pulls has ended. False: none was under way.
  bool End(RequestId id);
  // Whether a pull for the request has not ended, be it still here or gone.
  bool due(RequestId id) const { return due_.contains(id); }

 private:
  struct Asked {
    KvPull pull;
    StepId after;  // the last step that copies out of its blocks
  };

  kv::BlockPool& pool_;
  const int block_size_;
  std::vector<StepId> read_by_;             // by block: the last step that copies out of it
  std::vector<Asked> waiting_;              // in the order they were asked for
  std::unordered_map<RequestId, int> due_;  // pulls that have not ended
};

class KvHolds {
 public:
  // Not owned; outlives this object.
  explicit KvHolds(kv::BlockPool& pool) : pool_(pool) {}

  // Holds all of the blocks of a sequence, or those beyond what is already held. False when other
  // blocks are held, because a transfer may be reading them.
  bool Hold(RequestId id, std::span<const kv::BlockHandle> blocks, Time until);
  // The same for what a request's sequences have computed. With several sequences, other blocks may
  // be held as well.
  bool Hold(RequestId id, std::span<const SequenceKv> kv, Time until);
  // Each once, in the order they were held.
  std::vector<BlockIndex> BlocksOf(RequestId id) const;
  // False: nothing is held any more. Blocks whose hold has expired may have been promised to other
  // requests, so it is not renewed.
  bool Extend(RequestId id, Time now, Duration hold);
  void Release(RequestId id);

 private:
  kv::BlockPool& pool_;
};

}  // namespace millrace::sched
