#include "cluster/control/lifecycle/request_lifecycle.h"

#include "cluster/control/testing/two_pipelines_test_base.h"

namespace millrace::cluster {
namespace {

class RequestLifecycleTest : public TwoPipelinesTest {};

TEST_F(RequestLifecycleTest, ARequestRunsAtOnceAndEndsWithItsLastOutput) {
  const PipelineId pipeline = Open();
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(PipelineOf(1), pipeline);
  Step(pipeline);
  const std::vector<RequestOutput> outputs = TakeOutputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish, FinishReason::kLength);
  EXPECT_TRUE(Ended(1));
  EXPECT_EQ(pipelines_.at(pipeline).requests.size(), 0u);
  EXPECT_TRUE(TakeOutputs().empty());
}

TEST_F(RequestLifecycleTest, WaitsForAPipelineAndIsSentOnceOneIsOpen) {
  ASSERT_TRUE(Submit(1).ok());
  lifecycle_.Dispatch(now_);
  EXPECT_EQ(PipelineOf(1), std::nullopt);
  const PipelineId pipeline = Open();
  lifecycle_.Dispatch(now_);
  EXPECT_EQ(PipelineOf(1), pipeline);
}

TEST_F(RequestLifecycleTest, DispatchDoesNothingIfNothingHasChanged) {
  ASSERT_TRUE(Submit(1).ok());
  (void)Open();
  (void)requests_.TakeTryQueue();
  lifecycle_.Dispatch(now_);
  EXPECT_EQ(PipelineOf(1), std::nullopt);
}

TEST_F(RequestLifecycleTest, OneThatHasWaitedTooLongEndsAndSaysWhy) {
  ASSERT_TRUE(Submit(1).ok());
  lifecycle_.Expire(now_ + Duration::Seconds(59));
  EXPECT_FALSE(Ended(1));
  lifecycle_.Expire(now_ + Duration::Seconds(61));
  EXPECT_TRUE(Ended(1));
  EXPECT_EQ(counters_.expired, 1u);
  const std::vector<RequestOutput> outputs = TakeOutputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish, FinishReason::kError);
  EXPECT_TRUE(outputs[0].error.message().starts_with("waited 60 s for a pipeline. "));
}

TEST_F(RequestLifecycleTest, AnAbortEndsItWhereItIs) {
  ASSERT_TRUE(Submit(1).ok());
  lifecycle_.Abort(RequestId(1), std::nullopt, now_);
  EXPECT_TRUE(Ended(1));
  const PipelineId pipeline = Open();
  ASSERT_TRUE(Submit(2).ok());
  EXPECT_EQ(PipelineOf(2), pipeline);
  lifecycle_.Abort(RequestId(2), std::nullopt, now_);
  EXPECT_TRUE(Ended(2));
  EXPECT_EQ(TakeOutputs().size(), 2u);
  lifecycle_.Abort(RequestId(3), std::nullopt, now_);  // unknown
  EXPECT_TRUE(TakeOutputs().empty());
}

}  // namespace
}  // namespace millrace::cluster
