#include "cluster/control/lifecycle/pipeline_closer.h"

#include "cluster/control/testing/two_pipelines_test_base.h"

namespace millrace::cluster {
namespace {

class PipelineCloserTest : public TwoPipelinesTest {};

TEST_F(PipelineCloserTest, TheRequestsOfALostPipelineContinueInAnother) {
  const PipelineId lost = Open();
  ASSERT_TRUE(Submit(1, 5, 2).ok());
  Step(lost);
  const PipelineId other = Open();
  closer_.Lose(lost, Unavailable("gone"), {}, now_);
  EXPECT_FALSE(pipelines_.contains(lost));
  EXPECT_EQ(PipelineOf(1), std::nullopt);
  EXPECT_EQ(counters_.pipelines_lost, 1u);
  EXPECT_EQ(counters_.replays, 1u);
  lifecycle_.Dispatch(now_);
  EXPECT_EQ(PipelineOf(1), other);
  EXPECT_EQ(TakeOutputs().size(), 1u);  // its first token, once
}

TEST_F(PipelineCloserTest, ARetiringPipelineIsEmptiedAndClosed) {
  const PipelineId retiring = Open();
  ASSERT_TRUE(Submit(1).ok());
  (void)Open();
  pipelines_.at(retiring).retiring = true;
  closer_.Retire(now_);  // nothing has called for it
  EXPECT_EQ(PipelineOf(1), retiring);
  closer_.LookAgain();
  EXPECT_TRUE(closer_.due());
  closer_.Retire(now_);
  EXPECT_FALSE(closer_.due());
  EXPECT_FALSE(pipelines_.contains(retiring));
  EXPECT_EQ(PipelineOf(1), std::nullopt);
  EXPECT_EQ(counters_.pipelines_lost, 0u);
}

TEST_F(PipelineCloserTest, WithoutAnythingToEndNobodyGivesWay) {
  const PipelineId starved = Open();
  ASSERT_TRUE(Submit(1).ok());
  closer_.MakeRoom({starved}, now_);
  EXPECT_TRUE(pipelines_.contains(starved));
  EXPECT_EQ(PipelineOf(1), starved);
  EXPECT_EQ(counters_.evictions, 0u);
}

}  // namespace
}  // namespace millrace::cluster
