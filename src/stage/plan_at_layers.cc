#include "stage/plan_at_layers.h"

#include <cstddef>

namespace millrace::stage {
namespace {

void AppendTokens(const StepPlan& from, const SequenceStep& asked, StepPlan& to,
                  SequenceStep& step) {
  const auto tokens = from.TokensOf(asked);
  step.first_token = static_cast<int32_t>(to.tokens.size());
  to.tokens.insert(to.tokens.end(), tokens.begin(), tokens.end());
}

}  // namespace

StepPlan PlanAtHop(const StepPlan& plan, LayerRange hop) {
  StepPlan here = plan;
  here.tokens.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& asked = plan.sequences[i];
    SequenceStep& s = here.sequences[i];
    s.only_layers.reset();
    if (asked.RunsAt(hop) == hop) {
      AppendTokens(plan, asked, here, s);
    } else {
      s.first_token = static_cast<int32_t>(here.tokens.size());
      s.num_tokens = 0;
    }
  }
  return here;
}

StepPlan PlanAtLayers(const StepPlan& plan, LayerRange hop, LayerRange layers) {
  StepPlan here{.id = plan.id};
  for (const SequenceStep& asked : plan.sequences) {
    if (asked.RunsAt(hop) != layers) continue;
    SequenceStep& s = here.sequences.emplace_back(asked);
    s.only_layers.reset();
    s.keep_blocks = asked.keep_blocks + asked.num_new_blocks;
    s.first_new_block = s.num_new_blocks = 0;
    AppendTokens(plan, asked, here, s);
  }
  return here;
}

}  // namespace millrace::stage
