#include "cluster/control/pipelines/pipeline_requests.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

TEST(PipelineRequests, CountsThePrefillThatIsAhead) {
  PipelineRequests requests;
  requests.Add(RequestId(2), 100);
  requests.Add(RequestId(1), 30);
  requests.Add(RequestId(3), 0);
  EXPECT_EQ(requests.prefill_tokens_ahead(), 130);
  requests.PrefillEnded(RequestId(2));
  requests.PrefillEnded(RequestId(2));  // every later token
  EXPECT_EQ(requests.prefill_tokens_ahead(), 30);
  requests.Remove(RequestId(2));
  EXPECT_EQ(requests.prefill_tokens_ahead(), 30);
  requests.Remove(RequestId(1));  // before its first token
  requests.Remove(RequestId(1));
  EXPECT_EQ(requests.prefill_tokens_ahead(), 0);
  EXPECT_EQ(requests.size(), 1u);
  EXPECT_TRUE(requests.contains(RequestId(3)));
  EXPECT_FALSE(requests.contains(RequestId(1)));
}

TEST(PipelineRequests, TheLoadIsATime) {
  PipelineRequests requests;
  requests.Add(RequestId(1), 100);
  requests.Add(RequestId(2), 300);
  EXPECT_EQ(requests.Load(2000).requests, 2);
  EXPECT_EQ(requests.Load(2000).prefill_ahead, Duration::Seconds(0.2));
}

TEST(PipelineRequests, IdsAreInOrder) {
  PipelineRequests requests;
  for (RequestId id : {RequestId(3), RequestId(1), RequestId(2)}) requests.Add(id, 1);
  EXPECT_EQ(requests.Ids(), (std::vector<RequestId>{RequestId(1), RequestId(2), RequestId(3)}));
}

}  // namespace
}  // namespace millrace::cluster
