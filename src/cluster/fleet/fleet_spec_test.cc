// fleet.yaml.
#include "cluster/fleet/fleet_spec.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/file.h"
#include "base/testing/source_path.h"

namespace millrace::cluster {
namespace {

constexpr char kGood[] = R"(
budget: 12 USD/h
cool_down: 5 min
headroom: 1.5
spares: 1
kinds:
  - {name: spot, provider: "exec:/usr/local/bin/machines", price: 0.35 USD/h, spot: true, max: 8,
     requests: 2.5 req/s, startup: 2 min, timeout: 10 s}
  - {name: big, provider: "kubernetes:serving/millrace-big", min: 1, max: 2, requests: 9 req/s}
  - {name: own, provider: none, price: 0 USD/h, min: 2, max: 2, requests: 1 req/s, workers: rack-}
)";

TEST(FleetSpecTest, ReadsAFile) {
  const auto spec = ParseFleetYaml(kGood, "fleet.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  ASSERT_EQ(spec->kinds.size(), 3U);
  const FleetKind& spot = spec->kinds[0];
  EXPECT_EQ(spot.provider, FleetProvider::kExec);
  EXPECT_EQ(spot.argument, "/usr/local/bin/machines");
  EXPECT_EQ(spot.usd_per_h, 0.35);
  EXPECT_TRUE(spot.spot);
  EXPECT_EQ(spot.startup, Duration::Seconds(120));
  EXPECT_EQ(spot.workers, "spot-");
  EXPECT_EQ(spec->kinds[1].argument, "serving/millrace-big");
  EXPECT_EQ(spec->kinds[1].usd_per_h, std::nullopt) << "not known is not zero";
  EXPECT_EQ(spec->kinds[2].usd_per_h, 0);
  EXPECT_EQ(spec->kinds[2].workers, "rack-");
  EXPECT_EQ(spec->budget_usd_per_h, 12);
  EXPECT_EQ(spec->cool_down, Duration::Seconds(300));
  EXPECT_EQ(spec->headroom, 1.5);
  EXPECT_EQ(spec->spares, 1);
}

// Those of docs/fleet.md.
TEST(FleetSpecTest, TheExamplesOfThePageAreFiles) {
  const auto page = ReadFile(SourcePath("docs/fleet.md"), 1 << 20);
  ASSERT_TRUE(page.ok());
  constexpr std::string_view kBegin = "```yaml\n# fleet.yaml\n", kEnd = "```\n";
  int examples = 0;
  for (size_t at = page->find(kBegin); at != std::string::npos; at = page->find(kBegin, at + 1)) {
    const size_t begin = at + kBegin.size();
    const std::string text = page->substr(begin, page->find(kEnd, begin) - begin);
    const auto spec = ParseFleetYaml(text, "docs/fleet.md");
    EXPECT_TRUE(spec.ok()) << spec.status().ToString() << "\n" << text;
    ++examples;
  }
  EXPECT_EQ(examples, 3);
}

TEST(FleetSpecTest, RefusesWithPlaceAndCure) {
  const auto error = [](std::string_view from, std::string_view to) {
    std::string text = kGood;
    text.replace(text.find(from), from.size(), to);
    return ParseFleetYaml(text, "f").status().message();
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  const std::string provider = error("provider: none", "provider: nobody");
  EXPECT_TRUE(has(provider, "none, exec:COMMAND or kubernetes:[NAMESPACE/]STATEFULSET"))
      << provider;
  EXPECT_TRUE(provider.starts_with("f:10:")) << provider;
  EXPECT_TRUE(has(error("0.35 USD/h", "0.35"), "must have a unit"));
  EXPECT_TRUE(has(error("0.35 USD/h", "-1 USD/h"), "[0 USD/h"));
  EXPECT_TRUE(has(error("max: 8", "max: 0"), "max"));
  EXPECT_TRUE(has(error("min: 1", "min: 3"), "min is 3 and max only 2"));
  EXPECT_TRUE(has(error("name: big", "name: spot"), "same name"));
  EXPECT_TRUE(has(error("headroom: 1.5", "headroom: 0.5"), "headroom must be a number in [1, 10]"));
  EXPECT_TRUE(has(error("2.5 req/s", "0 req/s"), "[1e-6 req/s"));
  EXPECT_TRUE(has(error("startup:", "starttup:"), "startup"));
  EXPECT_TRUE(has(error("price: 0 USD/h", "price: 7 USD/h"), "more than the budget"));
  EXPECT_TRUE(has(ParseFleetYaml("kinds: []", "f").status().message(), "at least one kind"));
}

}  // namespace
}  // namespace millrace::cluster
