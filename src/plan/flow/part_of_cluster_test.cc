#include "plan/flow/part_of_cluster.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

TEST(PartOfCluster, KeepsTheNodesAndWhatIsBetweenThem) {
  ClusterSpec cluster;
  cluster.name = "here";
  for (const char* name : {"a", "b", "c"}) cluster.nodes.push_back({.name = name});
  cluster.trunks.push_back({"sea", 1e9});
  for (int i = 0; i <= 3; ++i) {
    for (int j = 0; j <= 3; ++j) {
      if (i != j) cluster.links.push_back({i, j, 1e9 + 10 * i + j, {}, 0});
    }
  }
  cluster.kv_affinity = {{0, 1}, {2}};
  cluster.server.max_num_seqs = 7;

  const ClusterSpec part =
      PartOfCluster(cluster, [](const NodeSpec& node) { return node.name != "b"; });
  ASSERT_EQ(part.nodes.size(), 2u);
  EXPECT_EQ(part.nodes[1].name, "c");
  EXPECT_EQ(part.server, cluster.server);
  EXPECT_EQ(part.trunks.size(), 1u);
  EXPECT_EQ(part.links.size(), 6u);
  for (const LinkSpec& link : part.links) {
    const auto before = [](int end) { return end == 0 ? 0 : end + 1; };
    EXPECT_EQ(link.bytes_per_s, 1e9 + 10 * before(link.from) + before(link.to));
  }
  ASSERT_EQ(part.kv_affinity.size(), 2u);
  EXPECT_EQ(part.kv_affinity[0], std::vector<NodeIndex>{0});
  EXPECT_EQ(part.kv_affinity[1], std::vector<NodeIndex>{1});
}

}  // namespace
}  // namespace millrace::plan
