#include "cluster/control/layout/layout_shape.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "cluster/control/layout/layout.h"

namespace millrace::cluster {
namespace {

constexpr int kLayers = 6;

std::map<StageRole, int> PipelinesOf(const LayoutShape& shape) {
  const Layout layout = MakeLayout(PlanFor(shape, "m", kLayers), {}).value();
  std::map<StageRole, int> found;
  for (const PlannedPipeline& pipeline : layout.pipelines) {
    EXPECT_EQ(pipeline.route.size(), static_cast<size_t>(shape.stages));
    EXPECT_EQ(pipeline.route.back().layers.end, kLayers);
    ++found[pipeline.role];
  }
  return found;
}

TEST(LayoutShape, APlanHasItsPipelines) {
  EXPECT_EQ(PipelinesOf({}), (std::map<StageRole, int>{{StageRole::kBoth, 1}}));
  EXPECT_EQ(PipelinesOf({.replicas = 3, .stages = 2}),
            (std::map<StageRole, int>{{StageRole::kBoth, 3}}));
  EXPECT_EQ(PipelinesOf({.prefill = 1, .decode = 2, .stages = 3, .tensor_parallel = 2}),
            (std::map<StageRole, int>{{StageRole::kPrefill, 1}, {StageRole::kDecode, 2}}));
}

TEST(LayoutShape, OnePipelineIsTheEvenPlan) {
  const Plan plan = PlanFor({.stages = 4, .tensor_parallel = 2}, "m", kLayers);
  const Plan even = EvenPlan("m", kLayers, 4, 2);
  EXPECT_TRUE(SameStages(plan, even));
  EXPECT_EQ(plan.edges.size(), even.edges.size());
  EXPECT_FALSE(SameStages(plan, EvenPlan("m", kLayers, 4, 1)));
  EXPECT_FALSE(SameStages(PlanFor({.prefill = 1, .decode = 1}, "m", kLayers),
                          PlanFor({.replicas = 2}, "m", kLayers)));
}

TEST(LayoutShape, FewerWorkersDropPipelinesFirst) {
  const LayoutShape apart{.prefill = 2, .decode = 4, .stages = 2};
  EXPECT_EQ(Fit(apart, 12, kLayers), apart);
  EXPECT_EQ(Fit(apart, 99, kLayers), apart);
  const auto roles = [&](int usable) {
    const LayoutShape fit = Fit(apart, usable, kLayers);
    return std::tuple(fit.prefill, fit.decode, fit.stages);
  };
  EXPECT_EQ(roles(11), std::tuple(2, 3, 2));
  EXPECT_EQ(roles(7), std::tuple(1, 2, 2));
  EXPECT_EQ(roles(4), std::tuple(1, 1, 2));
  EXPECT_EQ(Fit(apart, 3, kLayers), (LayoutShape{.stages = 2})) << "one pipeline does both";
  EXPECT_EQ(Fit(apart, 1, kLayers), LayoutShape{});
  const LayoutShape replicas{.replicas = 3, .stages = 2, .tensor_parallel = 2};
  EXPECT_EQ(Fit(replicas, 11, kLayers).replicas, 2);
  EXPECT_EQ(Fit(replicas, 7, kLayers).replicas, 1);
  EXPECT_EQ(Fit(replicas, 3, kLayers), (LayoutShape{.tensor_parallel = 2}));
}

TEST(LayoutShape, AnyNumberOfWorkersFits) {
  for (int prefill = 0; prefill <= 4; ++prefill) {
    for (int other = 1; other <= 4; ++other) {
      for (int stages = 1; stages <= 7; ++stages) {
        for (const int tp : {1, 2, 4}) {
          LayoutShape shape{.stages = stages, .tensor_parallel = tp};
          (prefill > 0 ? shape.decode : shape.replicas) = other;
          shape.prefill = prefill;
          for (int usable = 0; usable <= 40; ++usable) {
            const LayoutShape fit = Fit(shape, usable, kLayers);
            SCOPED_TRACE(Describe(shape) + " on " + std::to_string(usable));
            ASSERT_LE(fit.workers(), std::max(usable, tp));
            ASSERT_EQ(fit.prefill > 0, fit.decode > 0);
            ASSERT_LE(fit.prefill, shape.prefill);
            ASSERT_LE(fit.decode, shape.decode);
            ASSERT_EQ(fit, Fit(fit, usable, kLayers)) << "it is stable";
            const LayoutShape more = Fit(shape, usable + 1, kLayers);
            ASSERT_GE(more.workers(), fit.workers()) << "one more worker is no loss";
            // With this many workers, another pipeline of the full size would fit.
            if (fit.pipelines() < shape.pipelines() && fit.stages == std::min(stages, kLayers)) {
              const int each = fit.stages * tp;
              const int wasted = usable - fit.workers();
              const bool two_needed = shape.apart() && !fit.apart();
              ASSERT_LT(wasted, two_needed ? std::max(each, 2 * each - fit.workers()) : each);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cluster
