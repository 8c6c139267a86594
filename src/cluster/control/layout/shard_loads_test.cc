// From which peers a worker copies the weights that it lacks.
#include "cluster/control/layout/shard_loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace millrace::cluster {
namespace {

// Workers 1, 2, ... Those with files can serve every layer.
class ShardLoadsTest : public ::testing::Test {
 protected:
  void Join(uint64_t worker, const std::string& host, bool files) {
    millrace::Join join;
    join.name = "w" + std::to_string(worker);
    join.address.host_id = host;
    if (files) join.identity.model_fingerprint = "model";
    members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), {});
    links_.Add(WorkerId(worker));
  }
  // A layout of stages with one worker each.
  static Layout LayoutOf(const std::vector<std::pair<uint64_t, LayerRange>>& stages, bool loaded) {
    Layout layout;
    for (const auto& [worker, layers] : stages) {
      LayoutStage& stage = layout.stages.emplace_back();
      stage.plan.layers = layers;
      stage.ranks.push_back({.worker = WorkerId(worker),
                             .shard = ShardId(worker),
                             .asked = loaded,
                             .loaded = loaded});
    }
    return layout;
  }
  // The sources, in order, of a load of these layers while `in_force` serves.
  std::vector<uint64_t> Sources(Layout& in_force, uint64_t worker, LayerRange layers) {
    Layout next = LayoutOf({{worker, layers}}, false);
    next.stages[0].ranks[0].shard = ShardId();
    loads_.Request(next.stages[0], {&in_force, &next});
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    std::vector<uint64_t> sources;
    for (const ControllerAction& action : actions) {
      const auto& load = std::get<LoadShard>(std::get<SendToWorker>(action).message);
      for (const WorkerAddress& source : load.sources) sources.push_back(source.worker.value());
    }
    return sources;
  }
  // Measures all links; those from `fast` have ten times the speed of the others.
  void Probe(uint64_t fast) {
    const Time now = Time{} + Duration::Seconds(10);
    (void)links_.Next(false, {});
    while (const auto probe = links_.Next(false, now)) {
      const double speed = probe->pair.first == WorkerId(fast) ? 1e9 : 1e8;
      ASSERT_TRUE(
          links_
              .Take(probe->by(), {.probe = probe->id, .latency_s = 1e-4, .bytes_per_s = speed}, now)
              .ok());
    }
  }

  Membership members_{MembershipOptions{}};
  IdSource ids_{Term(1)};
  Outbox outbox_{members_};
  LinkProbes links_{LinkProbeOptions{}};
  ShardLoads loads_{{.links = &links_}, members_, ids_, outbox_};
};

using Workers = std::vector<uint64_t>;

TEST_F(ShardLoadsTest, HoldersOfWhatIsMissingComeFirst) {
  Join(1, "a", false);
  Join(2, "b", false);
  Join(3, "c", false);
  Join(4, "a", true);
  Layout in_force = LayoutOf({{1, {0, 4}}, {2, {4, 8}}, {3, {0, 4}}}, true);
  EXPECT_EQ(Sources(in_force, 1, {2, 6}), (Workers{2, 4})) << "3 has only what 1 keeps";
  EXPECT_EQ(Sources(in_force, 2, {2, 6}), (Workers{1, 3, 4})) << "the other way";
  EXPECT_EQ(Sources(in_force, 1, {1, 3}), (Workers{4})) << "nothing is missing";
}

TEST_F(ShardLoadsTest, TheNearestComesFirst) {
  Join(1, "a", false);
  for (const uint64_t worker : {2, 3, 4}) Join(worker, "b", true);
  Join(5, "a", true);
  Layout none;
  EXPECT_EQ(Sources(none, 1, {0, 2}), (Workers{5, 2, 3, 4})) << "one is on the same host";
  Probe(4);
  EXPECT_EQ(Sources(none, 1, {0, 2}), (Workers{5, 4, 2, 3}));
}

TEST_F(ShardLoadsTest, EquallyNearSourcesShareTheLoads) {
  for (const uint64_t worker : {1, 2, 3}) Join(worker, "a", false);
  for (const uint64_t worker : {4, 5}) Join(worker, "b", true);
  Layout none;
  EXPECT_EQ(Sources(none, 1, {0, 2}), (Workers{4, 5}));
  EXPECT_EQ(Sources(none, 2, {2, 4}), (Workers{5, 4}));
  EXPECT_EQ(Sources(none, 3, {4, 6}), (Workers{4, 5}));
}

}  // namespace
}  // namespace millrace::cluster
