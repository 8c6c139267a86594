#include "core/token_run.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(TokenRun, KeepsOrderAcrossTheInlineLimit) {
  TokenRun run;
  std::vector<TokenId> expected;
  for (TokenId t = 0; t < 3 * static_cast<TokenId>(TokenRun::kInline); ++t) {
    EXPECT_EQ(run, expected);
    run.push_back(t);
    expected.push_back(t);
    EXPECT_EQ(run.back(), t);
    EXPECT_EQ(run.front(), 0);
  }
  EXPECT_EQ(run.size(), expected.size());
  const TokenRun copy = run;
  run.clear();
  EXPECT_TRUE(run.empty());
  EXPECT_EQ(copy, expected);
  EXPECT_NE(run, copy);
}

}  // namespace
}  // namespace millrace
