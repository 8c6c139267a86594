#include "plan/explain.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

// A slow node of two layers behind a fast one.
FlowProblem FastAndSlow() {
  FlowProblem problem;
  problem.num_layers = 4;
  problem.nodes = {{"a", "fast", "", {300, 200}}, {"b", "slow", "", {30, 20}}};
  problem.link_tokens_per_s.assign(9, 1000);
  return problem;
}

TEST(Explain, NamesTheBindingNodeAndWhatHelps) {
  const Explanation e = ExplainPlacement(FastAndSlow(), {{0, 2}, {2, 4}}, {});
  EXPECT_DOUBLE_EQ(e.tokens_per_s, 20);
  ASSERT_EQ(e.cut.size(), 1u);
  EXPECT_EQ(e.cut[0], "1 x slow with layers [2, 4): 20 tokens/s together");
  EXPECT_EQ(e.bottleneck, "nodes bind: slow with layers [2, 4)");
  ASSERT_EQ(e.one_more.size(), 2u);
  EXPECT_EQ(e.one_more[0].kind, "fast");
  // Two fast nodes carry 200 without the slow one, and 220 is out of reach.
  EXPECT_NEAR(e.one_more[0].gain, 180, 1);
  EXPECT_NEAR(e.one_more[1].tokens_per_s, 40, 1e-6);
}

TEST(Explain, NamesTheBindingLink) {
  FlowProblem problem = FastAndSlow();
  problem.link_tokens_per_s[0 * 3 + 1] = 5;
  const Explanation e = ExplainPlacement(problem, {{0, 2}, {2, 4}}, {.iterations_per_kind = 0});
  EXPECT_EQ(e.bottleneck, "links bind: link fast -> slow");
  EXPECT_TRUE(e.one_more.empty());
}

}  // namespace
}  // namespace millrace::plan
