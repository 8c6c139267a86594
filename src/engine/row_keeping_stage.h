// RowKeepingStage: a stage that can leave out sequences whose KV it has, and send again the rows it
// has sent before. With it, when a worker is lost its layers alone are computed again: the hop
// before them sends what it had sent the lost one, those further off do nothing (StepPlan's
// only_hops).
//
// The rows that left a lane's last layer here lie by block, as KV does, in host memory: with the
// lane's tables they are shared, copied and swapped like it. They are a help, not a promise: beyond
// `bytes_max` (twice that while they go from a lost lane to the next), or where KV came from
// elsewhere without its rows, they are missing, and HoldsRows says so.
//
// Between hops travel the rows of the sequences that run at the next one.
//
// Shares the stage it wraps; threads as a stage.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/wrapped_stage.h"

namespace millrace::engine {

// Of a model's hidden state per token: little beside its KV in all the layers of a stage.
inline constexpr size_t kKeptRowsBytesMax = size_t{1} << 30;

// What `plan` asks of one hop: sequences that do not run there keep their tables and no token.
StepPlan PlanAtHop(const StepPlan& plan, int hop);

class RowKeepingStage : public WrappedStage {
 public:
  explicit RowKeepingStage(std::shared_ptr<Stage> inner, size_t bytes_max = kKeptRowsBytesMax)
      : WrappedStage(std::move(inner)), bytes_max_(bytes_max) {}

  Status OpenLane(LaneId lane, const StageLane& options) override;
  void CloseLane(LaneId lane) override;
  Status Run(std::span<StagePart> parts) override;
  size_t KvBytes(const KvBox& box) const override;
  // Boxes without layers: kFailedPrecondition where the rows are not kept.
  Status ReadKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;
  bool HoldsRows(LaneId lane, std::span<const BlockIndex> blocks, int tokens) const override;

  // Run in two halves, for who runs the wrapped stage itself: what it is to be given, and what
  // becomes of its outputs. `parts` as at Enter.
  std::span<StagePart> Enter(std::span<StagePart> parts);
  void Leave(std::span<StagePart> parts);

  size_t kept_bytes() const { return bytes_; }

 private:
  // Rows of one block: the first `count` of its tokens.
  struct Block {
    std::unique_ptr<std::byte[]> rows;
    std::atomic<int> count = 0;
  };
  struct Lane {
    Lane(const StageLane& options, size_t row_bytes);
    StageLane options;
    size_t row_bytes = 0;
    std::vector<Block> device, host;                                 // empty: keeps no rows
    std::unordered_map<SequenceId, std::vector<BlockIndex>> tables;  // where rows are kept
  };
  // A part that is not run as it came.
  struct Filtered {
    size_t part = 0;
    StepPlan plan;
  };

  std::shared_ptr<Lane> Find(LaneId lane) const;
  void FollowTables(Lane& lane, const StepPlan& plan);
  void Copy(const Lane& lane, std::vector<Block>& to, BlockIndex to_block,
            const std::vector<Block>& from, BlockIndex from_block);
  void Put(const Lane& lane, Block& block, int offset, const std::byte* row, size_t bytes_max);
  bool Allocate(const Lane& lane, Block& block, size_t bytes_max);
  void Keep(Lane& lane, const StepPlan& plan, std::span<const std::byte> rows);
  Status Compose(const Lane& lane, const StepPlan& asked, const StepPlan& ran, StagePart& part);

  const size_t bytes_max_;
  std::atomic<size_t> bytes_ = 0;
  mutable std::mutex mutex_;  // of the map
  std::unordered_map<LaneId, std::shared_ptr<Lane>> lanes_;
  // Of the batch being run.
  std::vector<StagePart> given_;
  std::vector<Filtered> filtered_;
};

}  // namespace millrace::engine
