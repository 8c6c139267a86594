#include "plan/io/cluster_yaml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "base/testing/source_path.h"

namespace millrace::plan {
namespace {

constexpr std::string_view kThreeRooms = R"(name: rooms
regions: [hall, attic]
nodes:
  - name: big
    count: 2
    region: hall
    device: a100-40gb
    devices: 4
    memory: 40 GB
    price: 3.9 USD/h
    numeric_class: sm80
    nic: 100 Gbit/s
  - {name: old, region: attic, device: t4, memory: 16 GiB, spot: true, profile: '{"it''s": 1}'}
links:
  within_region: {bandwidth: 10 Gbit/s, latency: 0.1 ms}
  between_regions:
    - {regions: [hall, attic], bandwidth: 1 Gbit/s, latency: 20 ms, trunk: 200 Mbit/s}
  pairs:
    - {nodes: [big-0, old], bandwidth: 50 MB/s, latency: 5 ms, one_way: true}
coordinator:
  region: hall
kv_affinity:
  - [big]
)";

const LinkSpec* Link(const ClusterSpec& cluster, int from, int to) {
  const auto at = std::find_if(cluster.links.begin(), cluster.links.end(),
                               [&](const LinkSpec& l) { return l.from == from && l.to == to; });
  return at == cluster.links.end() ? nullptr : &*at;
}

std::string Error(const std::string& text) {
  return ParseClusterYaml(text, "c.yaml").status().message();
}
std::string With(std::string_view from, std::string_view to) {
  std::string text(kThreeRooms);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? "" : text.replace(at, from.size(), to);
}

TEST(ClusterYamlTest, ReadsTheSizesOfTheServer) {
  EXPECT_EQ(ParseClusterYaml(kThreeRooms, "c.yaml")->server, ServerSizes());
  const std::string with = std::string(kThreeRooms) + "server: ";
  const auto some = ParseClusterYaml(with + "{max_num_seqs: 64, max_num_batched_tokens: 192}", "c");
  ASSERT_TRUE(some.ok()) << some.status().ToString();
  EXPECT_EQ(some->server, (ServerSizes{.max_num_seqs = 64, .max_num_batched_tokens = 192}));
  const auto all = ParseClusterYaml(
      with + "{block_size: 32, max_model_len: 512, enable_prefix_caching: false}", "c");
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(all->server,
            (ServerSizes{.block_size = 32, .max_model_len = 512, .enable_prefix_caching = false}));
  EXPECT_EQ(Error(with + "{block_size: 20}"), "c.yaml:24:22: block_size must be a multiple of 16");
  EXPECT_EQ(Error(with + "{max_num_seqs: 0}"),
            "c.yaml:24:24: max_num_seqs must be an integer in [1, 65536], got '0'");
  EXPECT_NE(Error(with + "{max_num_seq: 1}").find("did you mean max_num_seqs?"), std::string::npos);
}

TEST(ClusterYamlTest, ReadsEveryField) {
  const auto cluster = ParseClusterYaml(kThreeRooms, "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->name, "rooms");
  ASSERT_EQ(cluster->nodes.size(), 3u);
  const NodeSpec& big = cluster->nodes[1];
  EXPECT_EQ(big.name, "big-1");
  EXPECT_EQ(big.region, "hall");
  EXPECT_EQ(big.device, "a100-40gb");
  EXPECT_EQ(big.device_count, 4);
  EXPECT_EQ(big.memory_bytes, 160'000'000'000);
  EXPECT_EQ(big.price_usd_per_hour, 3.9);
  EXPECT_EQ(big.numeric_class, "sm80");
  EXPECT_EQ(big.profile, "");
  EXPECT_EQ(big.nic_bytes_per_s, 12.5e9);
  EXPECT_FALSE(big.spot);
  const NodeSpec& old = cluster->nodes[2];
  EXPECT_EQ(old.name, "old");
  EXPECT_EQ(old.memory_bytes, int64_t{16} << 30);
  EXPECT_TRUE(old.spot);
  EXPECT_EQ(old.profile, R"({"it's": 1})") << "its content is for those who use it";
  EXPECT_FALSE(old.nic_bytes_per_s.has_value());

  ASSERT_EQ(cluster->trunks.size(), 1u);
  EXPECT_EQ(cluster->trunks[0].name, "hall - attic");
  EXPECT_EQ(cluster->trunks[0].bytes_per_s, 25e6);
  ASSERT_EQ(cluster->kv_affinity.size(), 1u);
  EXPECT_EQ(cluster->kv_affinity[0], (std::vector<NodeIndex>{0, 1}));
}

TEST(ClusterYamlTest, TheMostSpecificLineOfAPairCounts) {
  const auto cluster = ParseClusterYaml(kThreeRooms, "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->links.size(), 12u) << "3 nodes and the coordinator, each way";
  const int coordinator = cluster->coordinator();
  ASSERT_NE(Link(*cluster, 0, 1), nullptr);
  EXPECT_EQ(Link(*cluster, 0, 1)->bytes_per_s, 1.25e9);
  EXPECT_EQ(Link(*cluster, 0, 1)->latency, Duration::Micros(100));
  EXPECT_EQ(Link(*cluster, 0, 2)->bytes_per_s, 50e6) << "the pair";
  EXPECT_FALSE(Link(*cluster, 0, 2)->trunk.has_value());
  EXPECT_EQ(Link(*cluster, 2, 0)->bytes_per_s, 125e6)
      << "one_way does not change the other direction";
  EXPECT_EQ(Link(*cluster, 2, 0)->trunk, 0);
  EXPECT_EQ(Link(*cluster, coordinator, 1)->bytes_per_s, 1.25e9);
  EXPECT_EQ(Link(*cluster, 2, coordinator)->latency, Duration::Millis(20));
}

TEST(ClusterYamlTest, TheCoordinatorMayHaveItsOwnLine) {
  const auto cluster = ParseClusterYaml(
      With("  region: hall\nkv", "  bandwidth: 1 Gbit/s\n  latency: 1 ms\nkv"), "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(Link(*cluster, cluster->coordinator(), node)->bytes_per_s, 125e6);
    EXPECT_EQ(Link(*cluster, node, cluster->coordinator())->latency, Duration::Millis(1));
  }
}

TEST(ClusterYamlTest, OneMachineNeedsNoLinks) {
  const auto cluster =
      ParseClusterYaml("name: one\nnodes:\n  - {name: a, device: cpu, memory: 8 GB}\n", "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->links.size(), 2u);
}

TEST(ClusterYamlTest, SeveralLinesShareANamedTrunk) {
  std::string text = With("trunk: 200 Mbit/s", "trunk: sea");
  text += "trunks:\n  - {name: sea, bandwidth: 100 Mbit/s}\n";
  const auto cluster = ParseClusterYaml(text, "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  ASSERT_EQ(cluster->trunks.size(), 1u);
  EXPECT_EQ(cluster->trunks[0].bytes_per_s, 12.5e6);
  EXPECT_EQ(Link(*cluster, 1, 2)->trunk, 0);
  EXPECT_EQ(Link(*cluster, 2, 1)->trunk, 0);
}

TEST(ClusterYamlTest, ErrorsNameThePlaceAndWhatIsAllowed) {
  const std::pair<std::string, std::string> cases[] = {
      {With("    price: 3.9", "    prise: 3.9"),
       "c.yaml:10:5: unknown key 'prise' in a node; did you mean price?"},
      {With("3.9 USD/h", "-3.9 USD/h"),
       "c.yaml:10:12: price must be in [0 USD/h, 10000 USD/h], got '-3.9 USD/h'"},
      {With("100 Gbit/s", "0 Gbit/s"),
       "c.yaml:12:10: nic must be in [1 kbit/s, 100 Tbit/s], got '0 Gbit/s'"},
      {With("10 Gbit/s,", "10 Pbit/s,"),
       "c.yaml:15:30: bandwidth has the unknown unit 'Pbit/s'; known: bit/s, kbit/s, Mbit/s, "
       "Gbit/s, Tbit/s, bps, kbps, Mbps, Gbps, Tbps, B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, "
       "GiB/s; did you mean bit/s?"},
      {With("memory: 40 GB", "memory: 40"),
       "c.yaml:9:13: memory must have a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 40 "
       "GB, got '40'"},
      {With("    memory: 40 GB\n", ""), "c.yaml:4:5: 'memory' is missing in a node"},
      {With("name: old", "name: big-1"), "c.yaml:13:12: the name 'big-1' is taken"},
      {With("name: old", "name: coordinator"), "c.yaml:13:12: the name 'coordinator' is taken"},
      {With("region: attic,", "region: atic,"),
       "c.yaml:13:25: unknown region 'atic'; did you mean attic?"},
      {With("count: 2", "count: 0"), "c.yaml:5:12: count must be an integer in [1, 1024], got '0'"},
      {With("count: 2", "count: 1024"), "c.yaml:13:5: the cluster has more than 1024 nodes"},
      {With("[big-0, old]", "[big-0, odd]"),
       "c.yaml:19:23: there is no node 'odd'; did you mean old?"},
      {With("[big-0, old]", "[old, old]"), "c.yaml:19:15: a node has no link to itself"},
      {With("regions: [hall, attic], b", "regions: [hall, hall], b"),
       "c.yaml:17:17: hall and hall are the same region; its links are within_region"},
      {With("trunk: 200 Mbit/s", "trunk: sea"),
       "c.yaml:17:76: trunk is neither one of those listed (none) nor a bandwidth: it must be a "
       "number with its unit, such as 10 Gbit/s, got 'sea'"},
      {With("coordinator:\n  region: hall\n", ""),
       "c.yaml:1:1: 'coordinator' is missing: which region do requests enter at (hall, attic)?"},
      {With("spot: true", "spot: maybe"), "c.yaml:13:66: spot must be true or false, got 'maybe'"},
      {With("nodes:\n", "nodes: 3\nnode:\n"),
       "c.yaml:4:1: unknown key 'node' in the cluster file; did you mean nodes?"},
      {"name: x\nnodes: []\n", "c.yaml:2:8: a cluster needs at least one node"},
      {"name: [x\n", "c.yaml:2:1: not valid YAML: end of sequence flow not found"},
      {"",
       "c.yaml:1:1: the cluster file must be a map with the keys name, regions, nodes, trunks, "
       "links, coordinator, kv_affinity, server"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(Error(text), message);
}

TEST(ClusterYamlTest, ANodeThatNothingReachesIsAnError) {
  const std::string between =
      "  between_regions:\n    - {regions: [hall, attic], bandwidth: 1 Gbit/s, latency: 20 ms, "
      "trunk: 200 Mbit/s}\n";
  std::string text = With(between, "");
  EXPECT_EQ(Error(text),
            "c.yaml:13:5: no links lead from the coordinator to node 'old' and back; add its "
            "region attic to links.between_regions, or within_region, or pairs");
  // The pair connects it in one direction; the other direction completes the cluster.
  const size_t at = text.find(", one_way: true");
  text.erase(at, std::string_view(", one_way: true").size());
  EXPECT_EQ(Error(text), "");
}

TEST(ClusterYamlTest, TheDocumentedFileIsRead) {
  const auto page = ReadFile(SourcePath("docs/formats/cluster.md"), 1 << 20);
  ASSERT_TRUE(page.ok());
  const size_t begin = page->find("```yaml\n") + 8;
  const auto cluster = ParseClusterYaml(page->substr(begin, page->find("```", begin) - begin), "c");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->nodes.size(), 3u);
  EXPECT_EQ(Link(*cluster, 0, 1)->bytes_per_s, 3.125e9);
}

TEST(ClusterYamlTest, NoTruncationCrashes) {
  for (size_t size = 0; size < kThreeRooms.size(); ++size) {
    const auto cluster = ParseClusterYaml(kThreeRooms.substr(0, size), "c.yaml");
    EXPECT_TRUE(cluster.ok() || cluster.status().message().starts_with("c.yaml:")) << size;
  }
}

}  // namespace
}  // namespace millrace::plan
