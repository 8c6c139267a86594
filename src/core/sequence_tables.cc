#include "core/sequence_tables.h"

#include "base/check.h"

namespace millrace {

std::span<const SequenceView> SequenceTables::Advance(const StepPlan& plan) {
  for (const SequenceId id : plan.released) {
    MR_CHECK(sequences_.erase(id) == 1) << "sequence " << id << " released but never started";
  }
  for (const SequenceStart& start : plan.started) {
    MR_CHECK(sequences_.try_emplace(start.id, Sequence{start, {}}).second)
        << "sequence " << start.id << " started twice";
  }
  views_.clear();
  for (const SequenceStep& step : plan.sequences) {
    const auto found = sequences_.find(step.id);
    MR_CHECK(found != sequences_.end()) << "sequence " << step.id << " was never started";
    auto& [start, blocks] = found->second;
    MR_CHECK(step.keep_blocks <= std::ssize(blocks)) << "sequence " << step.id << " keeps too much";
    blocks.resize(static_cast<size_t>(step.keep_blocks));
    for (const BlockIndex block : plan.NewBlocksOf(step)) blocks.push_back(block);
    views_.push_back({.id = step.id,
                      .started = &start,
                      .blocks = blocks,
                      .kept_blocks = step.keep_blocks,
                      .start = step.start,
                      .tokens = plan.TokensOf(step),
                      .logits = step.logits,
                      .only_layers = step.only_layers});
  }
  return views_;
}

}  // namespace millrace
