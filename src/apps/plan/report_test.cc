#include "apps/plan/report.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

TEST(LayerBar, ShowsTheLayersAmongAll) {
  EXPECT_EQ(LayerBar({0, 4}, 4, 8), "########");
  EXPECT_EQ(LayerBar({1, 3}, 4, 8), "..####..");
  EXPECT_EQ(LayerBar({79, 80}, 80, 8), ".......#") << "at least one column";
}

TEST(LayerBar, KeepsItsWidthForLayersOutOfRange) {
  EXPECT_EQ(LayerBar({4, 4}, 4, 8), ".......#");
  EXPECT_EQ(LayerBar({-5, 100}, 4, 8), "########");
  EXPECT_EQ(LayerBar({50, 60}, 4, 8), ".......#");
  EXPECT_EQ(LayerBar({3, 1}, 4, 8), "......#.");
  EXPECT_EQ(LayerBar({0, 1}, 0, 8), "########");
}

}  // namespace
}  // namespace millrace::apps
