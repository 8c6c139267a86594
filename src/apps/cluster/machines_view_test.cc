#include "apps/cluster/machines_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "base/rng.h"
#include "plan/io/cluster_yaml.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

Json Worker(const std::string& name, const std::string& zone) {
  return {{"name", name},
          {"device", "a CPU, 2 threads"},
          {"memory_bytes", 8'000'000'000},
          {"cores", 2},
          {"zone", zone},
          {"price_usd_per_hour", nullptr},
          {"spot", false},
          {"numeric_class", "cpu, libm 1"},
          {"profile", nullptr}};
}

Json Link(const std::string& from, const std::string& to, double mbit_per_s, double us) {
  return {{"from", from},
          {"to", to},
          {"latency_s", us * 1e-6},
          {"bytes_per_s", mbit_per_s * 1e6 / 8},
          {"age_s", 12.4}};
}

Json TwoZones() {
  Json answer = {{"model", "demo"},
                 {"workers", {Worker("a", "east"), Worker("b b", "east"), Worker("c", "west")}},
                 {"links", Json::array()}};
  Json& b = answer["workers"][1];
  b["device"] = "";
  b["cores"] = nullptr;
  b["numeric_class"] = "";
  Json& c = answer["workers"][2];
  c["price_usd_per_hour"] = 0.12;
  c["spot"] = true;
  c["profile"] = R"({"it's":1})";
  return answer;
}

// The planner gets the same cluster from the struct and from the file, to the last bit.
void ExpectEqual(const ClusterSpec& direct, const ClusterSpec& read) {
  EXPECT_EQ(plan::ClusterFingerprint(direct), plan::ClusterFingerprint(read));
  EXPECT_EQ(direct.name, read.name);
  EXPECT_EQ(direct.server, read.server);
  const auto rest = [](const ClusterSpec& cluster) {
    std::vector<std::tuple<double, bool, std::string, std::string>> of;
    for (const NodeSpec& node : cluster.nodes) {
      of.emplace_back(node.price_usd_per_hour, node.spot, node.numeric_class, node.profile);
    }
    return of;
  };
  EXPECT_EQ(rest(direct), rest(read));
}

std::string Text(const Json& answer) {
  const MachinesView view = ReadMachinesView(answer);
  const auto text = FormatClusterFile(view);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  if (!text.ok()) return "";
  const auto read = plan::ParseClusterYaml(*text, "described");
  EXPECT_TRUE(read.ok()) << read.status().ToString();
  if (read.ok()) ExpectEqual(*ClusterOf(view), *read);
  return *text;
}

ClusterSpec Parsed(const std::string& text) {
  auto cluster = plan::ParseClusterYaml(text, "described");
  EXPECT_TRUE(cluster.ok()) << cluster.status().ToString() << "\n" << text;
  return cluster.ok() ? *cluster : ClusterSpec{};
}

const LinkSpec& LinkOf(const ClusterSpec& cluster, int from, int to) {
  for (const LinkSpec& link : cluster.links) {
    if (link.from == from && link.to == to) return link;
  }
  ADD_FAILURE() << "no link from " << from << " to " << to;
  static const LinkSpec none;
  return none;
}

TEST(MachinesView, AClusterFileThatThePlannerReads) {
  Json answer = TwoZones();
  answer["links"] = {Link("a", "b b", 8000, 100),        Link("b b", "a", 9000, 110),
                     Link("a", "c", 123.456, 30000),     Link("a", "gone", 1, 1),
                     Link("coordinator", "a", 2000, 60), Link("a", "coordinator", 1000, 80),
                     Link("coordinator", "gone", 1, 1)};
  const std::string text = Text(answer);
  EXPECT_EQ(text, R"(# The 3 workers that had joined, as `millrace cluster describe` found them.
name: "demo"
nodes:
  - name: "a"
    region: "east"
    device: "a CPU, 2 threads"
    # 2 cores
    memory: 8000000000 B
    # its price is not known
    numeric_class: "cpu, libm 1"
    # no profile: the planner takes that of a node with this device, or of the slowest
  - name: "b b"
    region: "east"
    device: "unknown"
    memory: 8000000000 B
    # its price is not known
    # no profile: the planner takes that of a node with this device, or of the slowest
  - name: "c"
    region: "west"
    device: "a CPU, 2 threads"
    # 2 cores
    memory: 8000000000 B
    price: 0.12 USD/h
    spot: true
    numeric_class: "cpu, libm 1"
    profile: '{"it''s":1}'
links:
  # for pairs that were not measured: the median of those that were
  within_region: {bandwidth: 8500 Mbit/s, latency: 105 us}
  # for pairs that were not measured: the median of those that were
  between_regions:
    - {bandwidth: 123 Mbit/s, latency: 30000 us}
  pairs:
    # measured 12 s ago
    - {nodes: ["a", "b b"], bandwidth: 8000 Mbit/s, latency: 100 us, one_way: true}
    # measured 12 s ago
    - {nodes: ["b b", "a"], bandwidth: 9000 Mbit/s, latency: 110 us, one_way: true}
    # measured 12 s ago
    - {nodes: ["a", "c"], bandwidth: 123 Mbit/s, latency: 30000 us, one_way: true}
    # measured 12 s ago
    - {nodes: ["coordinator", "a"], bandwidth: 2000 Mbit/s, latency: 60 us, one_way: true}
    # measured 12 s ago
    - {nodes: ["a", "coordinator"], bandwidth: 1000 Mbit/s, latency: 80 us, one_way: true}
# for pairs that were not measured: the median of those that were
coordinator: {bandwidth: 1500 Mbit/s, latency: 70 us}
)");
  const ClusterSpec cluster = Parsed(text);
  ASSERT_EQ(cluster.nodes.size(), 3u);
  EXPECT_EQ(cluster.nodes[1].name, "b b");
  EXPECT_EQ(cluster.nodes[1].region, "east");
  EXPECT_EQ(cluster.nodes[1].memory_bytes, 8'000'000'000);
  EXPECT_EQ(cluster.nodes[0].numeric_class, "cpu, libm 1");
  EXPECT_EQ(cluster.nodes[2].price_usd_per_hour, 0.12);
  EXPECT_TRUE(cluster.nodes[2].spot);
  EXPECT_EQ(cluster.nodes[2].profile, R"({"it's":1})");
  EXPECT_EQ(LinkOf(cluster, 0, 1).bytes_per_s, 1e9);
  EXPECT_EQ(LinkOf(cluster, 1, 0).latency, Duration::Nanos(110'000));
  EXPECT_EQ(LinkOf(cluster, 2, 1).latency, Duration::Millis(30)) << "not measured";
  const int controller = cluster.coordinator();
  EXPECT_EQ(LinkOf(cluster, controller, 0).latency, Duration::Nanos(60'000));
  EXPECT_EQ(LinkOf(cluster, 0, controller).bytes_per_s, 125e6);
  EXPECT_EQ(LinkOf(cluster, 1, controller).latency, Duration::Nanos(70'000)) << "not measured";
}

TEST(MachinesView, TheFileSaysTheSizesOfTheServer) {
  Json answer = TwoZones();
  answer["server"] = {{"block_size", 16},
                      {"max_num_seqs", 64},
                      {"max_num_batched_tokens", 192},
                      {"max_model_len", 512},
                      {"enable_prefix_caching", false}};
  const std::string text = Text(answer);
  EXPECT_TRUE(
      text.ends_with("\nserver: {block_size: 16, max_num_seqs: 64, max_num_batched_tokens: 192, "
                     "max_model_len: 512, enable_prefix_caching: false}\n"))
      << text;
  EXPECT_EQ(Parsed(text).server, (ServerSizes{.block_size = 16,
                                              .max_num_seqs = 64,
                                              .max_num_batched_tokens = 192,
                                              .max_model_len = 512,
                                              .enable_prefix_caching = false}));
  // What a cluster file cannot say is left out.
  answer["server"] = {{"block_size", 17}, {"max_num_seqs", 0}, {"max_model_len", "long"}};
  EXPECT_EQ(Parsed(Text(answer)).server, ServerSizes());
  answer["server"] = nullptr;
  EXPECT_EQ(Text(answer), Text(TwoZones()));
}

TEST(MachinesView, WithoutAnyMeasuredLinkTheFileSaysWhatIsAssumed) {
  const std::string text = Text(TwoZones());
  EXPECT_NE(text.find("# no link was measured yet: assumed\n"
                      "  within_region: {bandwidth: 1000 Mbit/s, latency: 500 us}\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(Parsed(text).links.size(), 12u) << "all pairs, and each with the coordinator";
}

TEST(MachinesView, OneKindOfLinkStandsInForTheOther) {
  Json answer = TwoZones();
  answer["links"] = Json::array({Link("a", "c", 50, 20000)});
  const std::string text = Text(answer);
  for (const char* line : {"  within_region: ", "coordinator: "}) {
    EXPECT_NE(text.find(std::string("# none of these was measured: the median of all measured "
                                    "links\n") +
                        line + "{bandwidth: 50 Mbit/s, latency: 20000 us}\n"),
              std::string::npos)
        << text;
  }
  Parsed(text);
}

TEST(MachinesView, TheFileSaysAnyLinkToTheLastBit) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    Json answer = TwoZones();
    const auto any = [&rng](int most) { return std::pow(10, rng.Between(0, most) / 1000.0); };
    for (const char* to : {"b b", "c", "coordinator"}) {
      answer["links"].push_back(Link("a", to, any(6000), any(6000)));
    }
    Text(answer);
  }
}

TEST(MachinesView, OneWorkerWithoutAnyFacts) {
  const std::string text =
      Text({{"workers", {{{"name", "only"}, {"memory_bytes", 2'000'000'000}}}}});
  const ClusterSpec cluster = Parsed(text);
  ASSERT_EQ(cluster.nodes.size(), 1u);
  EXPECT_EQ(cluster.nodes[0].region, "");
  EXPECT_EQ(cluster.nodes[0].device, "unknown");
}

TEST(MachinesView, CompleteMeansProfilesAndBothDirectionsOfEachLink) {
  Json answer = {{"workers", {Worker("a", ""), Worker("b", "")}}, {"links", Json::array()}};
  const auto lacking = [&] { return Lacking(ReadMachinesView(answer)); };
  EXPECT_EQ(lacking(),
            "no profile of a, b; 2 of 2 links between workers not measured; 4 of 4 links of the "
            "controller not measured");
  answer["workers"][0]["profile"] = answer["workers"][1]["profile"] = "{}";
  for (const auto& [from, to] : {std::pair("a", "b"),
                                 {"b", "a"},
                                 {"coordinator", "a"},
                                 {"a", "coordinator"},
                                 {"coordinator", "b"},
                                 {"b", "coordinator"}}) {
    EXPECT_NE(lacking(), "") << from << " " << to;
    answer["links"].push_back(Link(from, to, 100, 100));
  }
  EXPECT_EQ(lacking(), "");
  answer["workers"][1]["profile"] = nullptr;
  EXPECT_EQ(lacking(), "no profile of b");
  answer["workers"] = Json::array({answer["workers"][0]});
  EXPECT_EQ(lacking(), "") << "one machine has links with the controller only";
  EXPECT_EQ(Lacking({}), "no worker has joined");
}

TEST(MachinesView, WithoutWorkersThereIsNothingToDescribe) {
  EXPECT_EQ(FormatClusterFile({}).status().code(), StatusCode::kFailedPrecondition);
}

// Whatever a server answers, the file has no line that the server made up.
TEST(MachinesView, MalformedAnswersAreReadSafely) {
  for (const char* text :
       {"{}", "[]", "null", R"({"workers":7,"links":{}})",
        R"({"workers":[7,null,{"name":["a"]}],"links":[{"from":1},{"from":"a","to":"b"}]})"}) {
    ReadMachinesView(*ParseJson(text));
  }
  Json answer = TwoZones();
  answer["workers"][0]["name"] = "a\n  - name: evil";
  answer["workers"][0]["zone"] = "z\": {}";
  answer["workers"][2]["profile"] = "'\n- x\u001b";
  answer["links"] = Json::array({Link("a", "c", std::nan(""), 1), Link("a", "c", -5, 1)});
  const ClusterSpec cluster = Parsed(Text(answer));
  EXPECT_EQ(cluster.nodes.size(), 3u);
  EXPECT_EQ(cluster.nodes[0].region, "z\": {}");
}

}  // namespace
}  // namespace millrace::apps
