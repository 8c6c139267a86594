#include <gtest/gtest.h>

#include <string>

#include "plan/io/helix_files.h"

namespace millrace::plan {
namespace {

// Two nodes; the second cannot send to the first.
constexpr std::string_view kSmall = R"(# a comment
cluster two
model toy
layers 4
nodes 2
activation_bytes 16
token_bytes 2
node 0 A100 0 3 9.5 8 7
node 1 T4 west 1 2

# capacity
capacity
0 10 100
0 0 1e2
50 60 0
)";

std::string CapacityError(std::string text) {
  return ParseHelixCapacity(text, "x.txt").status().message();
}
std::string SmallWith(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const size_t at = text.find(from);
  return at == std::string::npos ? "" : text.replace(at, from.size(), to);
}

TEST(HelixCapacityTest, ReadsEveryField) {
  const auto capacity = ParseHelixCapacity(kSmall, "x.txt");
  ASSERT_TRUE(capacity.ok()) << capacity.status().ToString();
  EXPECT_EQ(capacity->cluster, "two");
  EXPECT_EQ(capacity->model, "toy");
  EXPECT_EQ(capacity->num_layers, 4);
  EXPECT_EQ(capacity->activation_bytes, 16);
  EXPECT_EQ(capacity->token_bytes, 2);
  ASSERT_EQ(capacity->nodes.size(), 2u);
  EXPECT_EQ(capacity->nodes[0].gpu, "A100");
  EXPECT_EQ(capacity->nodes[1].region, "west");
  EXPECT_EQ(capacity->nodes[0].max_layers(), 3);
  EXPECT_EQ(capacity->nodes[0].TokensPerSecond(1), 9.5);
  EXPECT_EQ(capacity->nodes[1].TokensPerSecond(1), 2);
  EXPECT_EQ(capacity->coordinator(), 2);
  EXPECT_EQ(capacity->LinkTokensPerSecond(0, 1), 10);
  EXPECT_EQ(capacity->LinkTokensPerSecond(1, 0), 0);
  EXPECT_EQ(capacity->LinkTokensPerSecond(1, 2), 100);
  EXPECT_EQ(capacity->LinkTokensPerSecond(2, 1), 60);
}

TEST(HelixCapacityTest, ErrorsNameThePlace) {
  EXPECT_EQ(CapacityError(SmallWith("layers 4", "layers four")),
            "x.txt:4:8: layers must be an integer in [1, 1024], got 'four'");
  EXPECT_EQ(CapacityError(SmallWith("model toy\n", "")),
            "x.txt:3:1: expected a line 'model' here, got 'layers'");
  EXPECT_EQ(CapacityError(SmallWith("node 1 T4", "node 2 T4")),
            "x.txt:9:6: the node's id must be an integer in [1, 1], got '2'");
  EXPECT_EQ(CapacityError(SmallWith("9.5 8 7", "9.5 8")),
            "x.txt:8:15: node 0 must have a T(k) for each of 3 layers, got 2");
  EXPECT_EQ(CapacityError(SmallWith("9.5 8 7", "-9.5 8 7")),
            "x.txt:8:17: tokens per second must be a number in [0, 1e+15], got '-9.5'");
  EXPECT_EQ(CapacityError(SmallWith("0 0 1e2", "0 1e2")),
            "x.txt:14:1: row 1 of the matrix must hold 3 numbers, got 2");
  EXPECT_EQ(CapacityError(SmallWith("50 60 0\n", "")),
            "x.txt:15:1: the file ends before row 2 of the matrix");
  EXPECT_EQ(CapacityError(std::string(kSmall) + "1 2 3\n"),
            "x.txt:16:1: the file continues after the 3 rows of the matrix");
}

TEST(HelixCapacityTest, EveryTruncationIsAnError) {
  // Cuts inside or before the last number of the last row: a truncated file is never accepted.
  for (size_t size = 0; size + 2 < kSmall.size(); ++size) {
    EXPECT_FALSE(ParseHelixCapacity(kSmall.substr(0, size), "x.txt").ok()) << size;
  }
}

}  // namespace
}  // namespace millrace::plan
