// Costs and a plan for tests with values computed by hand. Pure; any thread.
#pragma once

#include "core/plan.h"
#include "cost/step_cost.h"

namespace millrace::sim {

// 1 ms per layer and batch, and 10 us per token.
class PerLayer : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& b) const override {
    return b.empty() ? 0 : 1e-3 + 1e-5 * static_cast<double>(b.tokens());
  }
};
inline const PerLayer kPerLayer;

// 100 ms for a step with a prompt, 10 ms for one without.
class TwoSpeeds : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& b) const override {
    return b.prefill_sequences > 0 ? 0.1 : 0.01;
  }
};

// 10 layers on two nodes, [0, 4) and [4, 10).
inline Plan Chain() {
  Plan plan;
  plan.num_layers = 10;
  plan.stages = {{{0}, 1, {0, 4}, StageRole::kBoth}, {{1}, 1, {4, 10}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 100}, {0, 1, 100}, {1, {}, 100}};
  return plan;
}

}  // namespace millrace::sim
