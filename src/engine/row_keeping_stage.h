// RowKeepingStage: a stage that can leave out sequences whose KV it has, run some of a lane's
// layers alone for those that lack only these, and give again the rows that have left it before.
// With it, when a worker is lost its layers alone are computed again, however the lane that goes on
// cuts the layers (StepPlan's only_layers): who held the layers before them gives the rows that
// entered them, those further off do nothing.
//
// The rows that enter some layers (StageLane's keep_rows_at: the next hop's first one, those at
// which others cut who will be given this lane's KV) lie by block, as KV does, in host memory
// (kept_rows.h). So do rows that come from a lost lane which was cut elsewhere, until they are
// used. They are missing beyond `bytes_max` (twice that for those that come from elsewhere), or
// where KV came without them; HoldsRows says so.
//
// Between hops travel the rows of the sequences that run at the next one's first layer.
//
// Shares the stage it wraps; threads as a stage.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/kept_rows.h"
#include "engine/wrapped_stage.h"

namespace millrace::engine {

// Of a model's hidden state per token: little beside its KV in all the layers of a stage.
inline constexpr size_t kKeptRowsBytesMax = size_t{1} << 30;

class RowKeepingStage : public WrappedStage {
 public:
  explicit RowKeepingStage(std::shared_ptr<Stage> inner, size_t bytes_max = kKeptRowsBytesMax)
      : WrappedStage(std::move(inner)), budget_{bytes_max} {}

  Status OpenLane(LaneId lane, const StageLane& options) override;
  void CloseLane(LaneId lane) override;
  Status Run(std::span<StagePart> parts) override;
  size_t KvBytes(const KvBox& box) const override;
  // Boxes without layers: kFailedPrecondition where the rows are not kept.
  Status ReadKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;
  bool HoldsRows(LaneId lane, int layer, std::span<const BlockIndex> blocks, int first_token,
                 int end_token) const override;

  // Run in parts, for who runs the wrapped stage itself: what it is to be given first, what next
  // after it has run that (nothing: that was all), and what becomes of its outputs. `parts` as at
  // Enter.
  std::span<StagePart> Enter(std::span<StagePart> parts);
  std::span<StagePart> Next();
  void Leave(std::span<StagePart> parts);

  size_t kept_bytes() const { return budget_.bytes; }

 private:
  struct Lane {
    Lane(const StageLane& options, size_t row_bytes, RowBudget& budget);
    // Of rows that enter `layer`; null where none are kept.
    std::shared_ptr<KeptRows> RowsAt(int layer) const;
    std::shared_ptr<KeptRows> MakeRowsAt(int layer);
    std::shared_ptr<KeptRows> MakeRows();

    const StageLane options;
    const size_t row_bytes;
    RowBudget& budget;
    // Where rows are kept, of all; elsewhere of sequences that lack some layers.
    std::unordered_map<SequenceId, std::vector<BlockIndex>> tables;
    mutable std::mutex mutex;                        // of the map: transfers come in between
    std::map<int, std::shared_ptr<KeptRows>> inner;  // by layer, within the lane's: used once
    std::map<int, std::shared_ptr<KeptRows>> kept;   // at keep_rows_at; never changes
  };
  // Sequences of a part that run at the same layers.
  struct Pass {
    LayerRange layers;
    StepPlan plan;
    std::vector<std::byte> input, output;
    std::vector<EnteringRows> inner_rows;
  };
  // A part that is not run as it came: first the lane's layers, then some of them.
  struct Split {
    size_t part = 0;
    std::shared_ptr<Lane> lane;
    std::vector<Pass> passes;
    Status error;
  };

  std::shared_ptr<Lane> Find(LaneId lane) const;
  static void FollowTables(Lane& lane, const StepPlan& plan);
  static Split SplitPart(size_t index, const StagePart& part, std::shared_ptr<Lane> lane);
  static void TakeInputs(const StagePart& part, Split& split);
  static Status TakeInner(const SequenceStep& step, int layer, const Lane& lane,
                          std::span<std::byte> out);
  static void Keep(const Lane& lane, const StepPlan& plan, int layer,
                   std::span<const std::byte> rows);
  static void KeepAll(const Lane& lane, const StepPlan& plan, int end,
                      std::span<const std::byte> output, std::span<const EnteringRows> inner);
  static Status Compose(const Split& split, StagePart& part);

  RowBudget budget_;
  mutable std::mutex mutex_;  // of the map
  std::unordered_map<LaneId, std::shared_ptr<Lane>> lanes_;
  // Of the batch being run.
  std::span<StagePart> parts_;
  std::vector<StagePart> given_;
  std::vector<size_t> given_of_;  // given_'s place in splits_, in later passes
  std::vector<Split> splits_;
  size_t pass_ = 0;
};

}  // namespace millrace::engine
