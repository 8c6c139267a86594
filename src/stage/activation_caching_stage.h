// ActivationCachingStage: a stage that can skip sequences whose KV it has, run only some of a
// pipeline's layers for sequences that lack just these, and resend the activations that have left
// it. So when a worker is lost only its layers are recomputed, however the next pipeline cuts the
// layers (StepPlan's only_layers): the stage before the lost layers provides their input, and other
// stages do nothing.
//
// Activations that enter certain layers (StagePipeline's cache_activations_at: the next hop's first
// layer, and the cuts of pipelines that may receive this pipeline's KV) are cached by block, like
// KV, in host memory (activation_cache.h). So are activations imported from a lost pipeline with
// other cuts, until they are used. Activations beyond `bytes_max` (twice that for imported ones)
// are missing, and so are those whose KV came without them; HoldsActivations tells.
//
// Hops send each other the activations of the sequences that run at the next hop's first layer.
//
// Shares ownership of the wrapped stage; threads as for a stage.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "stage/activation_cache.h"
#include "stage/wrapped_stage.h"

namespace millrace::stage {

// Small per token: a model's hidden state, compared with its KV in all the layers of a stage.
inline constexpr size_t kActivationCacheBytesMax = size_t{1} << 30;

class ActivationCachingStage : public WrappedStage {
 public:
  explicit ActivationCachingStage(std::shared_ptr<Stage> inner,
                                  size_t bytes_max = kActivationCacheBytesMax)
      : WrappedStage(std::move(inner)), budget_{bytes_max} {}

  Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) override;
  void ClosePipeline(PipelineId pipeline) override;
  Status Run(std::span<StagePart> parts) override;
  Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;
  Status ReadActivations(PipelineId pipeline, const ActivationRange& range,
                         std::span<const BlockIndex> blocks,
                         std::span<std::byte> out) const override;
  Status WriteActivations(PipelineId pipeline, const ActivationRange& range,
                          std::span<const BlockIndex> blocks,
                          std::span<const std::byte> in) override;
  bool HoldsActivations(PipelineId pipeline, const ActivationRange& range,
                        std::span<const BlockIndex> blocks) const override;

  // Run in steps, for a caller that runs the wrapped stage itself: Enter returns what to run first,
  // Next what to run after that (nothing: done), and the last one handles the outputs. `parts` as
  // passed to Enter.
  std::span<StagePart> Enter(std::span<StagePart> parts);
  std::span<StagePart> Next();
  void Leave(std::span<StagePart> parts);

  size_t kept_bytes() const { return budget_.bytes; }

 private:
  struct Pipeline {
    Pipeline(const StagePipeline& options, size_t row_bytes, ActivationBudget& budget);
    // For activations that enter `layer`; null if they are not cached.
    std::shared_ptr<ActivationCache> ActivationsAt(int layer) const;
    std::shared_ptr<ActivationCache> MakeActivationsAt(int layer);
    std::shared_ptr<ActivationCache> MakeActivationCache();

    const StagePipeline options;
    const size_t row_bytes;
    ActivationBudget& budget;
    mutable Mutex mutex;
    // By layer, within the pipeline's: used once. Transfers run in between.
    std::map<int, std::shared_ptr<ActivationCache>> inner MR_GUARDED_BY(mutex);
    std::map<int, std::shared_ptr<ActivationCache>> kept;  // at cache_activations_at; never changes
  };
  // Sequences of a part that run at the same layers.
  struct Pass {
    LayerRange layers;
    std::vector<SequenceView> sequences = {};
    std::vector<std::byte> input = {}, output = {};
    std::vector<EnteringActivations> inner_activations = {};
  };
  // A part that needs several passes: first all the pipeline's layers, then some of them.
  struct Split {
    size_t part = 0;
    std::shared_ptr<Pipeline> pipeline;
    std::vector<Pass> passes;
    Status error;
  };

  std::shared_ptr<Pipeline> Find(PipelineId pipeline) const;
  static void MoveActivations(Pipeline& pipeline, const StagePart& part);
  static Split SplitPart(size_t index, const StagePart& part, std::shared_ptr<Pipeline> pipeline);
  static void TakeInputs(const StagePart& part, Split& split);
  static Status TakeInner(const SequenceView& sequence, int layer, const Pipeline& pipeline,
                          std::span<std::byte> out);
  static void Keep(const Pipeline& pipeline, std::span<const SequenceView> sequences, int layer,
                   std::span<const std::byte> rows);
  static void KeepAll(const Pipeline& pipeline, std::span<const SequenceView> sequences, int end,
                      std::span<const std::byte> output,
                      std::span<const EnteringActivations> inner);
  static Status Compose(const Split& split, StagePart& part);

  ActivationBudget budget_;
  mutable Mutex mutex_;
  std::unordered_map<PipelineId, std::shared_ptr<Pipeline>> pipelines_ MR_GUARDED_BY(mutex_);
  // Of the current batch.
  std::span<StagePart> parts_;
  std::vector<StagePart> given_;
  std::vector<size_t> given_of_;  // index in splits_ of each entry of given_, in later passes
  std::vector<Split> splits_;
  size_t pass_ = 0;
};

}  // namespace millrace::stage
