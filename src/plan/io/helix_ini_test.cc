#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/io/helix_files.h"

namespace millrace::plan {
namespace {

// A small cluster in the form of the artifact's generated ones.
constexpr std::string_view kCluster = R"(# seed: 0
[NodeNames]
total_compute_nodes=2

[SourceNode]
connected_nodes=[0, 1]

[ComputeNode-0]
type=A100
connected_nodes=['source', 1, 'sink']

[ComputeNode-1]
type=T4x2

[Link-source-0]
bandwidth=1250 * mbps
latency=1 * MilliSec

[Link-0-1]
bandwidth=12.5 * mbps
latency=50.0 * MilliSec

[Link-1-sink]
bandwidth=1 * gbps
latency=0 * MilliSec

[Link-0-sink]
bandwidth=1 * gbps
latency=1 * MilliSec
)";
constexpr std::string_view kPlacement =
    "[Settings]\noffset=2\n\n[Solution]\ncompute_node_2=[3, 4, 5]\ncompute_node_4=[0]\n";

std::string With(std::string_view text, std::string_view from, std::string_view to) {
  std::string out(text);
  const size_t at = out.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? "" : out.replace(at, from.size(), to);
}
std::string ClusterError(std::string_view from, std::string_view to) {
  return ParseHelixCluster(With(kCluster, from, to), "d/c.ini").status().message();
}
std::string PlacementError(std::string_view from, std::string_view to) {
  return ParseHelixPlacement(With(kPlacement, from, to), "p.ini").status().message();
}

TEST(HelixIniTest, ImportsACluster) {
  const auto cluster = ParseHelixCluster(kCluster, "some/folder/two.ini");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->name, "two");
  ASSERT_EQ(cluster->nodes.size(), 2u);
  EXPECT_EQ(cluster->nodes[0].device, "a100-40gb");
  EXPECT_EQ(cluster->nodes[1].device, "t4");
  EXPECT_EQ(cluster->nodes[1].device_count, 2);
  EXPECT_EQ(cluster->nodes[1].memory_bytes, 32'000'000'000);
  ASSERT_EQ(cluster->links.size(), 5u);
  EXPECT_EQ(cluster->links[0].from, 0);
  EXPECT_EQ(cluster->links[0].to, 1);
  EXPECT_EQ(cluster->links[0].bytes_per_s, 12.5e6) << "mbps is 10^6 bytes per second there";
  EXPECT_EQ(cluster->links[0].latency, Duration::Millis(50));
  EXPECT_EQ(cluster->links[1].to, cluster->coordinator());
  EXPECT_EQ(cluster->links[2].from, 1);
  EXPECT_EQ(cluster->links[2].bytes_per_s, 12.5e6) << "the other direction";
  EXPECT_EQ(cluster->links[4].from, cluster->coordinator());
  EXPECT_EQ(cluster->links[4].bytes_per_s, 1.25e9);
}

TEST(HelixIniTest, ErrorsOfClustersNameThePlace) {
  EXPECT_EQ(ClusterError("type=A100", "type=H900"),
            "d/c.ini:9:6: unknown GPU type 'H900'; known: A100, V100, L4, L4x2, T4, T4x2, T4x4");
  EXPECT_EQ(ClusterError("12.5 * mbps", "12.5"),
            "d/c.ini:20:11: must be a number with its unit, such as '1 * mbps' or '1 * gbps', got "
            "'12.5'");
  EXPECT_EQ(ClusterError("12.5 * mbps", "0 * mbps"),
            "d/c.ini:20:11: must be in [0.000125, 1.25e+07] mbps, got '0 * mbps'");
  EXPECT_EQ(ClusterError("50.0 * MilliSec", "-1 * MilliSec"),
            "d/c.ini:21:9: must be in [0, 10000] MilliSec, got '-1 * MilliSec'");
  EXPECT_EQ(ClusterError("Link-0-1]", "Link-0-7]"),
            "d/c.ini:19:2: '7' is not a node; nodes are 0 to 1, source and sink");
  EXPECT_EQ(ClusterError("Link-1-sink]", "Link-0-1]"),
            "d/c.ini:23:2: this link is already given on line 19");
  EXPECT_EQ(ClusterError("ComputeNode-1]", "ComputeNode-2]"),
            "d/c.ini:12:2: nodes must be in order: [ComputeNode-1] comes next");
  EXPECT_EQ(ClusterError("latency=50.0 * MilliSec\n", ""),
            "d/c.ini:19:2: a link needs a bandwidth and a latency");
  EXPECT_EQ(ClusterError("[NodeNames]\n", ""), "d/c.ini:2:1: comes before the first [Section]");
  EXPECT_EQ(ClusterError("[Link-0-1]", "[Link-1-0]").find("d/c.ini"), std::string::npos);
  EXPECT_EQ(ClusterError("[Link-0-1]\nbandwidth=12.5 * mbps\nlatency=50.0 * MilliSec\n", ""),
            "d/c.ini:1:1: no links lead from source to ComputeNode-1 and on to sink");
}

TEST(HelixIniTest, ReadsAPlacement) {
  const auto placement = ParseHelixPlacement(kPlacement, "p.ini");
  ASSERT_TRUE(placement.ok()) << placement.status().ToString();
  ASSERT_EQ(placement->size(), 3u);
  EXPECT_EQ((*placement)[0], (LayerRange{3, 6}));
  EXPECT_EQ((*placement)[1], (LayerRange{0, 0})) << "not in the file, so it holds none";
  EXPECT_EQ((*placement)[2], (LayerRange{0, 1}));
}

TEST(HelixIniTest, ErrorsOfPlacementsNameThePlace) {
  EXPECT_EQ(PlacementError("[3, 4, 5]", "[3, 5]"),
            "p.ini:5:16: must be a list of consecutive layers below 1024, such as [4, 5, 6], got "
            "'[3, 5]'");
  EXPECT_FALSE(PlacementError("[3, 4, 5]", "[3, 4,]").empty());
  EXPECT_FALSE(PlacementError("[3, 4, 5]", "[3 4]").empty());
  EXPECT_FALSE(PlacementError("[3, 4, 5]", "[1023, 1024]").empty());
  EXPECT_FALSE(PlacementError("[3, 4, 5]", "3").empty());
  EXPECT_EQ(PlacementError("[3, 4, 5]", "[]"), "");
  EXPECT_EQ(PlacementError("compute_node_4", "compute_node_1"),
            "p.ini:6:1: must be compute_node_N with N at least the offset of [Settings], got "
            "'compute_node_1'");
  EXPECT_EQ(PlacementError("compute_node_4", "compute_node_2"),
            "p.ini:6:1: compute_node_2 is given twice");
  EXPECT_EQ(PlacementError("[Solution]", "[Other]"),
            "p.ini:1:1: there is no compute_node_N in a [Solution]");
}

}  // namespace
}  // namespace millrace::plan
