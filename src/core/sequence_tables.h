// SequenceTables: the sequences of a pipeline as its step plans describe them. Plans are deltas;
// this applies them in order and gives each sequence of a step its whole block table. Stages read
// these views and keep no tables of their own.
//
// Owned by what runs a pipeline's steps: one for each pipeline of a worker (WorkerCore), advanced
// when a step begins. One thread at a time; the views may be read by any thread until the next
// step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/step_plan.h"

namespace millrace {

// One sequence's share of a step. It points into the tables and into the plan.
struct SequenceView {
  SequenceId id;
  const SequenceStart* started = nullptr;  // the entry that started it; never null
  std::span<const BlockIndex> blocks;      // the whole table; it holds the tokens [0, end())
  int32_t kept_blocks = 0;                 // how many of them it had before this step
  int32_t start = 0;                       // position of the first token computed
  std::span<const TokenId> tokens;         // computed in this step
  LogitsWanted logits = LogitsWanted::kNone;
  std::optional<LayerRange> only_layers = std::nullopt;  // as in SequenceStep

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int end() const { return start + num_tokens(); }
  std::span<const BlockIndex> new_blocks() const {
    return blocks.subspan(static_cast<size_t>(kept_blocks));
  }
  // The layers of a hop that compute; [0, 0) if there are none.
  LayerRange RunsAt(LayerRange hop) const { return only_layers ? hop.Overlap(*only_layers) : hop; }
  // Whether activations enter that layer.
  bool Enters(int layer) const { return !only_layers || only_layers->Contains(layer); }
};

class SequenceTables {
 public:
  // Applies a plan that follows those before it. The views are in the order of plan.sequences, and
  // valid until the next call and as long as the plan exists. REQUIRES: a StepChecker has passed
  // the plan, or it comes from a scheduler in this process.
  std::span<const SequenceView> Advance(const StepPlan& plan);

  size_t num_sequences() const { return sequences_.size(); }

 private:
  struct Sequence {
    SequenceStart start;
    std::vector<BlockIndex> blocks;
  };

  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<SequenceView> views_;  // of the last plan
};

}  // namespace millrace
