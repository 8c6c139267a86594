#include "cluster/control/parts/cache_hints.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

TEST(CacheHints, TheLastCountsAndTheOldestIsForgotten) {
  CacheHints hints;
  EXPECT_FALSE(hints.Find("a"));
  hints.Note("a", PipelineId(1));
  hints.Note("a", PipelineId(2));
  EXPECT_EQ(hints.Find("a"), PipelineId(2));
  for (size_t i = 0; i < kCacheHintsMax; ++i) hints.Note(std::to_string(i), PipelineId(3));
  EXPECT_EQ(hints.size(), kCacheHintsMax);
  EXPECT_FALSE(hints.Find("a"));
  EXPECT_TRUE(hints.Find("0"));
}

}  // namespace
}  // namespace millrace::cluster
