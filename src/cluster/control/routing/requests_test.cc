// The queue of requests, what was delivered, and who may be what kills pipelines.
#include "cluster/control/routing/requests.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <utility>

#include "base/testing/test_time.h"

namespace millrace::cluster {
namespace {

class RequestsTest : public ::testing::Test {
 protected:
  static constexpr PipelineId kPipeline{1}, kOther{2};
  using Ids = std::vector<RequestId>;

  ~RequestsTest() override { requests_.CheckIntegrity(); }
  static sched::NewRequest New(uint64_t id, int n = 1, int prompt_tokens = 4) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt_tokens, 5);
    SamplingParams params;
    params.n = n;
    request.params = std::make_shared<const SamplingParams>(params);
    return request;
  }
  void Add(uint64_t id, Time now, int n = 1) { ASSERT_TRUE(requests_.Add(New(id, n), now).ok()); }
  static RequestOutput Token(uint64_t id, bool last = false) {
    RequestOutput output;
    output.request = RequestId(id);
    output.tokens.push_back(9);
    if (last) output.times.emplace();
    return output;
  }

  Ids Queue(std::span<const WaitsFor> queues = kAllQueues) const {
    Ids ids;
    std::optional<Requests::QueueKey> at;
    while ((at = requests_.NextWaiting(at, queues))) ids.push_back(at->second);
    return ids;
  }

  Requests requests_{{.max_model_len = 16,
                      .waiting_max = 3,
                      .waiting_limit = Duration::Seconds(60),
                      .deaths_max = 2}};
  std::vector<RequestOutput> outputs_;
};

TEST_F(RequestsTest, TheQueueIsInOrderOfArrival) {
  Add(1, At(2));
  Add(2, At(1));
  sched::NewRequest resumed = New(3);
  resumed.times = RequestTimes{.arrived = At(0)};
  ASSERT_TRUE(requests_.Add(std::move(resumed), At(3)).ok());
  EXPECT_EQ(Queue(), (Ids{RequestId(3), RequestId(2), RequestId(1)}));
  EXPECT_EQ(requests_.Add(New(4), At(3)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(requests_.Find(RequestId(4)), nullptr);
  requests_.Enter(RequestId(2), kPipeline);
  EXPECT_EQ(Queue(), (Ids{RequestId(3), RequestId(1)}));
  EXPECT_EQ(requests_.waiting(), 2u);
  EXPECT_EQ(requests_.size(), 3u);
}

TEST_F(RequestsTest, ThoseThatDecodeHaveAQueueOfTheirOwn) {
  constexpr std::array kPrompts = {WaitsFor::kPrefill}, kDecodes = {WaitsFor::kDecode};
  Add(1, At(0));
  Add(2, At(1));
  requests_.Enter(RequestId(1), kPipeline);
  sched::NewRequest resumed = New(1, /*n=*/2);
  resumed.resumed = {{{TokenId{7}}, false}, {}};
  requests_.at(RequestId(1)).delivered = 1;
  requests_.Wait(RequestId(1), std::move(resumed), At(2));
  EXPECT_EQ(Queue(kPrompts), Ids{RequestId(2)});
  EXPECT_EQ(Queue(kDecodes), Ids{RequestId(1)});
  EXPECT_EQ(Queue(), (Ids{RequestId(1), RequestId(2)}));
  EXPECT_EQ(requests_.waiting(WaitsFor::kDecode), 1u);
  EXPECT_EQ(requests_.waiting_prefill_tokens(), 4) << "of the one without a token";
  // What is left of it has no token, so it begins with its prompt.
  requests_.at(RequestId(1)).spec.params = New(1, 2).params;
  EXPECT_FALSE(
      requests_.EndWaiting(RequestId(1), FinishReason::kAbort, OkStatus(), 0, At(3), outputs_));
  EXPECT_EQ(Queue(kPrompts), (Ids{RequestId(1), RequestId(2)}));
  requests_.Erase(RequestId(2));
  EXPECT_EQ(requests_.waiting_prefill_tokens(), 0);
}

TEST_F(RequestsTest, APromptMustLeaveRoomForAToken) {
  EXPECT_EQ(requests_.Add(New(1, 1, 16), At(0)).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(requests_.Add(New(1, 1, 15), At(0)).ok());
}

// A request that has left its pipeline returns to its place in the queue.
TEST_F(RequestsTest, ArrivalStaysAndTheWaitBeginsAnew) {
  Add(1, At(0));
  requests_.Enter(RequestId(1), kPipeline);
  Add(2, At(10));
  requests_.Wait(RequestId(1), New(1), At(30));
  EXPECT_EQ(Queue(), (Ids{RequestId(1), RequestId(2)}));
  EXPECT_FALSE(requests_.at(RequestId(1)).pipeline);
  EXPECT_TRUE(requests_.Expired(At(70)).empty());
  EXPECT_EQ(requests_.Expired(At(71)), Ids{RequestId(2)});
  EXPECT_EQ(requests_.Expired(At(91)), (Ids{RequestId(1), RequestId(2)}));
}

// The limit is for a cluster without room, not for a controller that could not look.
TEST_F(RequestsTest, ItsOwnPauseIsNoWait) {
  Add(1, At(0));
  requests_.StoodStill(Duration::Seconds(50));
  Add(2, At(80));  // after the pause, which it did not see
  EXPECT_TRUE(requests_.Expired(At(110)).empty());
  EXPECT_EQ(requests_.Expired(At(111)), Ids{RequestId(1)});
  EXPECT_EQ(requests_.Expired(At(140)), Ids{RequestId(1)});
  EXPECT_EQ(requests_.Expired(At(141)), (Ids{RequestId(1), RequestId(2)}));
}

TEST_F(RequestsTest, TheQueueIsTriedAgainAfterAChange) {
  EXPECT_FALSE(requests_.TakeTryQueue());
  Add(1, At(0));
  EXPECT_TRUE(requests_.TakeTryQueue());
  EXPECT_FALSE(requests_.TakeTryQueue());
  Add(2, At(0));
  requests_.Enter(RequestId(1), kPipeline);
  (void)requests_.TakeTryQueue();
  requests_.Erase(RequestId(1));
  EXPECT_TRUE(requests_.TakeTryQueue()) << "its place is free";
  requests_.Erase(RequestId(2));
  EXPECT_FALSE(requests_.TakeTryQueue()) << "nobody waits";
}

TEST_F(RequestsTest, OnlyThePipelineThatHasARequestProducesItsOutputs) {
  Add(1, At(0));
  Add(2, At(0));
  Add(3, At(0));
  requests_.Enter(RequestId(1), kPipeline);
  requests_.Enter(RequestId(2), kOther);
  outputs_ = {Token(1), Token(2), Token(3), Token(4), Token(1, true)};
  outputs_.insert(outputs_.begin(), Token(2));  // of an earlier call
  std::vector<size_t> notable;
  requests_.Filter(kPipeline, outputs_, 1, notable);
  ASSERT_EQ(outputs_.size(), 3u);
  EXPECT_EQ(outputs_[1].request, RequestId(1));
  EXPECT_EQ(notable, (std::vector<size_t>{1, 2})) << "its first token there, and its last";
  EXPECT_TRUE(outputs_[2].times.has_value());
  EXPECT_EQ(requests_.at(RequestId(1)).delivered, 2);
  EXPECT_EQ(requests_.at(RequestId(1)).known_tokens(), 6);
  EXPECT_EQ(requests_.at(RequestId(2)).delivered, 0);
  // In another pipeline there is another first token.
  requests_.Enter(RequestId(1), kOther);
  outputs_ = {Token(1), Token(1), Token(1)};
  notable.clear();
  requests_.Filter(kOther, outputs_, 0, notable);
  EXPECT_EQ(notable, std::vector<size_t>{0});
}

TEST_F(RequestsTest, SequencesThatWaitEndOneByOne) {
  Add(1, At(5), /*n=*/3);
  requests_.at(RequestId(1)).waiting->resumed = {{{}, true}, {}, {}};
  EXPECT_FALSE(
      requests_.EndWaiting(RequestId(1), FinishReason::kAbort, OkStatus(), 0, At(6), outputs_));
  EXPECT_TRUE(outputs_.empty()) << "it had ended before";
  EXPECT_FALSE(
      requests_.EndWaiting(RequestId(1), FinishReason::kAbort, OkStatus(), 2, At(6), outputs_));
  ASSERT_EQ(outputs_.size(), 1u);
  EXPECT_FALSE(outputs_[0].times);
  EXPECT_TRUE(requests_.EndWaiting(RequestId(1), FinishReason::kError, Internal("why"),
                                   std::nullopt, At(6), outputs_));
  ASSERT_EQ(outputs_.size(), 2u);
  EXPECT_EQ(outputs_[1].index, 1);
  EXPECT_EQ(outputs_[1].finish, FinishReason::kError);
  EXPECT_EQ(outputs_[1].error.message(), "why");
  EXPECT_EQ(outputs_[1].times.value().arrived, At(5));
  requests_.Erase(RequestId(1));
}

TEST_F(RequestsTest, OutputsAreLimitedByTheRequestAndTheModel) {
  Add(1, At(0), /*n=*/2);
  EXPECT_EQ(requests_.OutputLimit(requests_.at(RequestId(1))), 2 * (16 - 4));
  SamplingParams params;
  params.max_tokens = 3;
  requests_.at(RequestId(1)).spec.params = std::make_shared<const SamplingParams>(params);
  EXPECT_EQ(requests_.OutputLimit(requests_.at(RequestId(1))), 3);
}

// What ends one pipeline after the other is tried apart from others like it, until it gets a token.
TEST_F(RequestsTest, ATokenClearsASuspect) {
  for (int id : {1, 2}) Add(id, At(0));
  const auto die = [&](int number, const char* worker) {
    const RequestId id(number);
    requests_.Enter(id, kPipeline);
    requests_.blame().PipelineEnded(id, {.end = PipelineEnd::kDeath, .worker = worker}, 0);
    requests_.Wait(id, New(number), At(0));
  };
  for (const char* worker : {"w1", "w2"}) {
    for (int id : {1, 2}) die(id, worker);
  }
  requests_.Enter(RequestId(1), kPipeline);
  EXPECT_FALSE(requests_.blame().MayStart(RequestId(2)));
  (void)requests_.TakeTryQueue();
  std::vector<RequestOutput> outputs(1);
  outputs[0].request = RequestId(1);
  outputs[0].tokens.push_back(TokenId{5});
  std::vector<size_t> notable;
  requests_.Filter(kPipeline, outputs, 0, notable);
  EXPECT_TRUE(requests_.blame().MayStart(RequestId(2)));
  EXPECT_TRUE(requests_.TakeTryQueue());
}

}  // namespace
}  // namespace millrace::cluster
