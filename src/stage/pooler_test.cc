#include "stage/pooler.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace::stage {
namespace {

std::vector<float> StateOf(int position) {
  return {0.1f * static_cast<float>(position + 1), 1e8f / static_cast<float>(3 * position + 1),
          position % 2 == 0 ? -3e-7f : 5.0f};
}

void AddAll(Pooler& pooler, int from, int end, int prompt_tokens) {
  for (int p = from; p < end; ++p) {
    if (pooler.Wants(p, prompt_tokens)) pooler.Add(p, StateOf(p));
  }
}

TEST(Pooler, TheLastStateHasItsOwnBits) {
  Pooler pooler(Pooling::kLast);
  AddAll(pooler, 0, 5, 5);
  EXPECT_EQ(*pooler.Vector(5), StateOf(4));
  AddAll(pooler, 3, 5, 5);  // a replay
  EXPECT_EQ(*pooler.Vector(5), StateOf(4));
}

TEST(Pooler, AMeanIsNearTheExactOne) {
  Pooler pooler(Pooling::kMean);
  AddAll(pooler, 0, 40, 40);
  const std::vector<float> mean = *pooler.Vector(40);
  for (size_t i = 0; i < mean.size(); ++i) {
    long double sum = 0;
    for (int p = 0; p < 40; ++p) sum += static_cast<long double>(StateOf(p)[i]);
    EXPECT_FLOAT_EQ(mean[i], static_cast<float>(sum / 40));
  }
}

TEST(Pooler, AReplayAddsNothingAgain) {
  Pooler once(Pooling::kMean), again(Pooling::kMean);
  AddAll(once, 0, 17, 17);
  AddAll(again, 0, 9, 17);
  AddAll(again, 0, 3, 17);
  AddAll(again, 3, 12, 17);
  AddAll(again, 12, 17, 17);
  EXPECT_EQ(*again.Vector(17), *once.Vector(17));
}

TEST(Pooler, AMissingStateIsAnError) {
  Pooler gap(Pooling::kMean);
  AddAll(gap, 0, 4, 8);
  AddAll(gap, 5, 8, 8);
  EXPECT_EQ(gap.Vector(8).status().code(), StatusCode::kInternal);
  Pooler late(Pooling::kMean);
  AddAll(late, 1, 8, 8);
  EXPECT_EQ(late.Vector(8).status().code(), StatusCode::kInternal);
  EXPECT_EQ(Pooler(Pooling::kLast).Vector(8).status().code(), StatusCode::kInternal);
}

TEST(Pooler, WhatIsNoNumberIsAnError) {
  Pooler pooler(Pooling::kLast);
  pooler.Add(0, std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_EQ(pooler.Vector(1).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace::stage
