#include "plan/flow/incremental_flow.h"

#include <gtest/gtest.h>

#include "base/testing/test_scale.h"
#include "plan/flow/placement_flow.h"
#include "plan/flow/testing_problems.h"

namespace millrace::plan {
namespace {

// After any sequence of moves, some of them undone, the value equals a newly computed maximum flow.
TEST(IncrementalFlow, FollowsMovesAndUndo) {
  const int rounds = 300 * TestScale();
  for (int round = 0; round < rounds; ++round) {
    FlowProblem problem = RandomProblem(round, {.nodes_max = round % 50 == 0 ? 70 : 12,
                                                .layers_max = 10,
                                                .link_tokens_per_s = round % 3 ? 300.0 : 0.0});
    Rng rng(round + 7);
    IncrementalFlow flow(problem);
    Placement placement = RandomPlacement(problem, rng);
    flow.Reset(placement);
    for (int step = 0; step < 40; ++step) {
      const Placement other = RandomPlacement(problem, rng);
      std::vector<NodeMove> moves;
      for (int i = 0; i < problem.num_nodes(); ++i) {
        if (rng.Between(0, 3) == 0) moves.push_back({i, other[i]});
      }
      flow.Apply(moves, kTokenRateMax);
      if (rng.Between(0, 1) == 0) {
        flow.Undo();
      } else {
        for (const NodeMove& move : moves) placement[move.node] = move.range;
      }
      ASSERT_EQ(flow.placement(), placement);
      const double fresh = SolvePlacementFlow(problem, placement).tokens_per_s;
      ASSERT_NEAR(flow.value(), fresh, 1e-3) << "round " << round << " step " << step;
    }
  }
}

}  // namespace
}  // namespace millrace::plan
