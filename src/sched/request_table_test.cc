#include "sched/request_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace millrace::sched {
namespace {

class RequestTableTest : public ::testing::Test {
 protected:
  Request& Add(uint64_t number, int sequences = 1) {
    auto request = std::make_unique<Request>();
    request->spec.id = RequestId(number);
    request->key.number = number;
    request->sequences.resize(static_cast<size_t>(sequences));
    Request& added = *request;
    table_.Add(std::move(request));
    table_.CheckIntegrity();
    return added;
  }

  RequestTable table_;
};

TEST_F(RequestTableTest, EachRequestIsInOneQueueInOrder) {
  Request& third = Add(3);
  Request& first = Add(1, 2);
  Request& second = Add(2);
  EXPECT_EQ(table_.waiting().begin()->second, &first);
  table_.Run(third);
  table_.Pull(second);
  table_.Run(first);
  EXPECT_TRUE(table_.waiting().empty());
  EXPECT_EQ(table_.running(), (std::vector<Request*>{&first, &third}));
  EXPECT_EQ(table_.running_sequences(), 3);
  EXPECT_EQ(table_.pulling_sequences(), 1);
  table_.Run(second);
  EXPECT_EQ(table_.running(), (std::vector<Request*>{&first, &second, &third}));
  EXPECT_EQ(table_.pulling_sequences(), 0);
  table_.WaitAgain(third, RequestState::kSwapped);
  EXPECT_EQ(third.state, RequestState::kSwapped);
  EXPECT_EQ(table_.waiting().size(), 1u);
  table_.CheckIntegrity();
}

TEST_F(RequestTableTest, AnEndedRequestIsKnownUntilItIsForgotten) {
  Request& one = Add(1);
  table_.Run(one);
  one.sequences.front().finish = FinishReason::kStop;
  table_.NoteEnded(one);
  EXPECT_EQ(table_.running_sequences(), 0);
  table_.Finish(one);
  EXPECT_TRUE(table_.empty());
  EXPECT_EQ(table_.Find(RequestId(1)), &one) << "a step in flight may still hold it";
  table_.Bury(one);
  EXPECT_EQ(table_.Find(RequestId(1)), nullptr);
  EXPECT_EQ(table_.FindEvenEnded(RequestId(1)), &one);
  table_.ForgetEnded();
  EXPECT_EQ(table_.FindEvenEnded(RequestId(1)), nullptr);
}

TEST_F(RequestTableTest, TheIdOfARequestThatLeftMayReturnAtOnce) {
  Request& left = Add(1);
  table_.Finish(left);
  left.detached = true;
  table_.Leave(left);
  EXPECT_EQ(table_.leaving().size(), 1u);
  Request& again = Add(1);
  EXPECT_EQ(table_.Find(RequestId(1)), &again);
  table_.Bury(left);
  EXPECT_TRUE(table_.leaving().empty());
  EXPECT_EQ(table_.Find(RequestId(1)), &again);
}

}  // namespace
}  // namespace millrace::sched
