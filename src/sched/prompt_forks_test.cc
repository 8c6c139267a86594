#include "sched/prompt_forks.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace millrace::sched {
namespace {

constexpr int kForkBlockSize = 4;
constexpr int kForkPrompt = 10;  // two blocks are shared by all, the third is not

class PromptForksTest : public ::testing::Test {
 protected:
  PromptForksTest() {
    request_.spec.prompt = std::make_shared<const std::vector<TokenId>>(kForkPrompt, 1);
    request_.prompt_tokens = kForkPrompt;
    request_.output_limit = 8;
    request_.state = RequestState::kRunning;
    request_.sharing_prompt = true;
    request_.sequences.resize(3);
    for (int i = 0; i < 3; ++i) {
      request_.sequences[static_cast<size_t>(i)].index = i;
      request_.sequences[static_cast<size_t>(i)].request = &request_;
    }
    Leader().started = true;
  }
  Sequence& Leader() { return request_.sequences.front(); }

  kv::KvCache kv_{{.block_size = kForkBlockSize, .num_blocks = 16}};
  PromptForks forks_{kv_};
  Request request_;
};

TEST_F(PromptForksTest, TheOthersStartAtTheLastTokenOfThePrompt) {
  ASSERT_TRUE(kv_.Grow(Leader().table, kForkPrompt));
  forks_.UpdatePromise(request_);
  EXPECT_EQ(forks_.promised_blocks(), 2) << "each of the two others copies the last block";
  Leader().computed = kForkPrompt - 1;
  forks_.MaybeStart(request_);
  EXPECT_TRUE(request_.sharing_prompt) << "the prompt is not complete";
  Leader().computed = kForkPrompt;
  forks_.MaybeStart(request_);
  EXPECT_FALSE(request_.sharing_prompt);
  for (const Sequence& s : request_.sequences) {
    EXPECT_TRUE(s.started);
    EXPECT_EQ(s.table, Leader().table);
  }
  EXPECT_EQ(request_.sequences[1].computed, kForkPrompt - 1);
  EXPECT_EQ(forks_.promised_blocks(), 0);
}

TEST_F(PromptForksTest, ImportedTablesShareWhatNoSequenceWrites) {
  request_.spec.imported_tokens = {12, 7, 11};
  EXPECT_FALSE(forks_.ImportsForked(request_)) << "less than the shared blocks";
  request_.spec.imported_tokens = {12, 8, 11};
  ASSERT_TRUE(forks_.ImportsForked(request_));
  Leader().lacking_until = 12;
  forks_.TakeTables(request_);
  EXPECT_EQ(Leader().table.size(), 3u);
  EXPECT_EQ(request_.sequences[1].table.size(), 2u);
  EXPECT_EQ(request_.sequences[2].table.size(), 3u);
  EXPECT_EQ(request_.sequences[2].table[1], Leader().table[1]);
  EXPECT_NE(request_.sequences[2].table[2], Leader().table[2]);
  forks_.DropTables(request_);
  EXPECT_TRUE(request_.sequences[2].table.empty());
  EXPECT_EQ(kv_.device().in_use(), 3);
}

TEST_F(PromptForksTest, TheNextSequenceTakesOverThePrompt) {
  ASSERT_TRUE(kv_.Grow(Leader().table, kForkPrompt));
  const kv::BlockTable table = Leader().table;
  Leader().computed = 6;
  Leader().in_flight = StepId(4);
  Leader().finish = FinishReason::kAbort;
  Sequence& next = forks_.HandOver(Leader());
  EXPECT_EQ(next.index, 1);
  EXPECT_EQ(request_.leader, 1);
  EXPECT_TRUE(next.started);
  EXPECT_EQ(next.table, table);
  EXPECT_EQ(next.computed, 6);
  EXPECT_EQ(next.in_flight, StepId(4));
  EXPECT_FALSE(request_.sequences.front().in_flight.has_value());
  EXPECT_TRUE(request_.sharing_prompt) << "one more waits";
}

}  // namespace
}  // namespace millrace::sched
