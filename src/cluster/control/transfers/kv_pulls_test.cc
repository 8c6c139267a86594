// Pulls of KV between pipelines: which worker pulls what from where, which layers have arrived, and
// how long the export lasts.
#include "cluster/control/transfers/kv_pulls.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace millrace::cluster {
namespace {

FetchedLayers Have(std::vector<bool> kv, std::set<int> activations) {
  return {std::move(kv), std::move(activations)};
}

TEST(FetchedLayers, LayersWithoutKvComputeFromTheActivationsThatEnterThem) {
  EXPECT_EQ(Have({1, 1, 1, 1, 1, 1}, {}).Lacking(), LayerRange());
  EXPECT_EQ(Have({1, 1, 0, 0, 1, 1}, {2}).Lacking(), (LayerRange{2, 4}));
  EXPECT_EQ(Have({0, 0, 1, 1, 1, 1}, {2, 4}).Lacking(), (LayerRange{0, 2})) << "from the tokens";
  EXPECT_EQ(Have({1, 1, 0, 1, 0, 1}, {2, 4}).Lacking(), (LayerRange{2, 5})) << "as one range";
  EXPECT_EQ(Have({0, 0, 0, 0, 0, 0}, {}).Lacking(), (LayerRange{0, 6}));
}

TEST(FetchedLayers, WithoutActivationsTheRangeBeginsEarlier) {
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {2}).Lacking(), (LayerRange{2, 6}));
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {5}).Lacking(), (LayerRange{0, 6}));
}

// If one sequence of a request lacks activations of a layer, no sequence begins there.
TEST(FetchedLayers, SequencesComputeAtTheSameLayers) {
  FetchedLayers all = Have({1, 1, 0, 0, 0, 1}, {1, 2});
  all.KeepCommon(Have({1, 1, 1, 0, 0, 1}, {1, 3}));
  EXPECT_EQ(all.Lacking(), (LayerRange{1, 5}));
  all.KeepCommon(Have({1, 1, 1, 1, 1, 0}, {5}));
  EXPECT_EQ(all.Lacking(), (LayerRange{0, 6}));
}

// Workers 1 to 9 are members. The source's hops are at workers 1 and 2.
class KvPullsTest : public ::testing::Test {
 protected:
  static constexpr PipelineId kFrom{1}, kTo{2};
  static constexpr RequestId kRequest{7};

  KvPullsTest() {
    for (uint64_t worker = 1; worker <= 9; ++worker) {
      Join join;
      join.name = std::to_string(worker);
      join.address.incarnation = Incarnation(worker);
      members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), Time{});
    }
  }
  static PipelineHop Hop(LayerRange layers, const std::vector<uint64_t>& workers) {
    PipelineHop hop{.layers = layers, .ranks = {}, .shards = {}};
    for (uint64_t worker : workers) hop.ranks.push_back({.worker = WorkerId(worker)});
    return hop;
  }
  static KvPulls::Source Source() {
    return {kFrom, {Hop({0, 3}, {1}), Hop({3, 6}, {2})}, {}, {4, 5}, 7};
  }
  bool Start(const KvPulls::Source& source, const std::vector<PipelineHop>& to,
             KvPulls::How how = {}) {
    const bool started = pulls_.Start(source, kTo, to, {kRequest, 0, 2, 7, {8, 9}}, how);
    Take();
    return started;
  }
  void Take() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    exports_.clear();
    releases_.clear();
    for (ControllerAction& action : actions) {
      auto& [to, message] = std::get<SendToWorker>(action);
      if (auto* pull = std::get_if<PullKv>(&message)) orders_.emplace_back(to.value(), *pull);
      if (std::holds_alternative<ExportKv>(message)) exports_.push_back(to.value());
      if (std::holds_alternative<ReleaseKv>(message)) releases_.push_back(to.value());
    }
  }
  std::optional<KvPulls::Ended> End(size_t order, bool well, bool activations = false) {
    PullDone done{.transfer = orders_.at(order).second.transfer};
    if (!well) done.status = Unavailable("gone");
    done.activations = activations;
    auto ended = pulls_.Done(done);
    Take();
    return ended;
  }

  Membership members_{MembershipOptions{}};
  Outbox outbox_{members_};
  IdSource ids_{Term(1)};
  KvPulls pulls_{{.num_layers = 6, .lease = Duration::Seconds(30)}, ids_, outbox_};
  std::vector<std::pair<uint64_t, PullKv>> orders_;  // with the worker
  std::vector<uint64_t> exports_, releases_;         // workers, of the last call
};
using Workers = std::vector<uint64_t>;

TEST_F(KvPullsTest, AHopPullsFromAllHopsOfACompleteSourceAtOnce) {
  ASSERT_TRUE(Start(Source(), {Hop({0, 4}, {5}), Hop({4, 6}, {6})}));
  EXPECT_EQ(exports_, (Workers{1, 2}));
  ASSERT_EQ(orders_.size(), 2u);
  const auto& [front_worker, front] = orders_[0];
  EXPECT_EQ(front_worker, 5u);
  EXPECT_EQ(front.sources.size(), 2u);
  EXPECT_EQ(front.layers, std::nullopt) << "all layers of the hop";
  EXPECT_EQ(front.activations, PulledActivations::kAny);
  EXPECT_EQ(std::pair(front.first_token, front.end_token), std::pair(2, 7));
  const auto& [back_worker, back] = orders_[1];
  EXPECT_EQ(back_worker, 6u);
  ASSERT_EQ(back.sources.size(), 1u);
  EXPECT_EQ(back.sources[0].from.worker, WorkerId(2));
  EXPECT_EQ(back.activations, PulledActivations::kNone) << "the last hop outputs tokens";
  EXPECT_EQ(End(0, true, true), std::nullopt);
  EXPECT_TRUE(releases_.empty()) << "the other hop still reads";
  const auto ended = End(1, true);
  ASSERT_TRUE(ended);
  EXPECT_EQ(releases_, (Workers{1, 2}));
  EXPECT_TRUE(ended->layers.HasAllKv());
  EXPECT_TRUE(ended->at_once);
  EXPECT_EQ(ended->layers.activations, (std::set<int>{4}));
  EXPECT_EQ(std::pair(ended->from, ended->to), std::pair(kFrom, kTo));
}

TEST_F(KvPullsTest, AFailedPullLacksTheLayersOfItsHop) {
  ASSERT_TRUE(Start(Source(), {Hop({0, 4}, {5}), Hop({4, 6}, {6})}));
  (void)End(0, true, true);
  const auto ended = End(1, false);
  EXPECT_EQ(ended->layers.Lacking(), (LayerRange{4, 6}));
}

TEST_F(KvPullsTest, WhatIsLeftOfASourceIsPulledFromEachHopSeparately) {
  KvPulls::Source source = Source();
  source.hops = {Hop({0, 2}, {1}), Hop({4, 6}, {2})};  // the hop between them is gone
  ASSERT_TRUE(Start(source, {Hop({0, 6}, {5})}));
  ASSERT_EQ(orders_.size(), 2u);
  EXPECT_EQ(orders_[0].second.layers, (LayerRange{0, 2}));
  EXPECT_EQ(orders_[0].second.activations, PulledActivations::kAny) << "they enter a lost layer";
  EXPECT_EQ(orders_[1].second.layers, (LayerRange{4, 6}));
  (void)End(0, true, true);
  const auto ended = End(1, true);
  EXPECT_FALSE(ended->at_once);
  EXPECT_EQ(ended->layers.Lacking(), (LayerRange{2, 4}));
}

TEST_F(KvPullsTest, ADoubtfulSourceSendsAllActivations) {
  ASSERT_TRUE(Start(Source(), {Hop({0, 6}, {5})}, {.doubtful = true}));
  ASSERT_EQ(orders_.size(), 2u);
  EXPECT_EQ(orders_[0].second.activations, PulledActivations::kAny);
  (void)End(0, true, true);
  EXPECT_EQ(End(1, false)->layers.Lacking(), (LayerRange{3, 6}));
}

// Activations within a hop are of use once all its ranks have them.
TEST_F(KvPullsTest, EveryRankNeedsActivationsThatEnterALayerOfItsHop) {
  for (const bool second_has_them : {false, true}) {
    orders_.clear();
    ASSERT_TRUE(Start(Source(), {Hop({0, 6}, {5, 6})}, {.doubtful = true}));
    ASSERT_EQ(orders_.size(), 4u);
    (void)End(0, true, true);
    (void)End(1, true, second_has_them);
    (void)End(2, false);
    EXPECT_EQ(End(3, true)->layers.Lacking(), (LayerRange{second_has_them ? 3 : 0, 6}));
  }
}

TEST_F(KvPullsTest, LayersThatLackKvAtTheSourceDoNotCount) {
  KvPulls::Source source = Source();
  source.lacking = {3, 5};
  ASSERT_TRUE(Start(source, {Hop({0, 6}, {5})}));
  (void)End(0, true, true);
  EXPECT_EQ(End(1, true)->layers.Lacking(), (LayerRange{3, 5}));
}

TEST_F(KvPullsTest, NothingBeginsWithoutASource) {
  KvPulls::Source source = Source();
  source.hops = {};
  EXPECT_FALSE(Start(source, {Hop({0, 6}, {5})}));
  source.hops = {Hop({0, 3}, {1})};
  EXPECT_FALSE(Start(source, {Hop({3, 6}, {5})})) << "no layer is in both";
  EXPECT_TRUE(exports_.empty());
}

TEST_F(KvPullsTest, AnExportIsRenewedUntilItIsReleased) {
  ASSERT_TRUE(Start(Source(), {Hop({0, 6}, {5})}));
  EXPECT_TRUE(pulls_.Reads(kRequest, kFrom));
  EXPECT_FALSE(pulls_.Reads(kRequest, kTo));
  pulls_.Renew(kRequest, kFrom);
  Take();
  EXPECT_EQ(exports_, (Workers{1, 2}));
  pulls_.Release(kRequest, kFrom);
  Take();
  EXPECT_EQ(releases_, (Workers{1, 2}));
  pulls_.Renew(kRequest, kFrom);
  Take();
  EXPECT_TRUE(exports_.empty());
  EXPECT_TRUE(End(0, true)) << "the pull itself still ends";
  EXPECT_TRUE(releases_.empty()) << "not twice";
}

TEST_F(KvPullsTest, PullsIntoAClosedPipelineEndWithIt) {
  ASSERT_TRUE(Start(Source(), {Hop({0, 6}, {5})}));
  pulls_.DropInto(kFrom);
  EXPECT_EQ(pulls_.PullerOf(orders_[0].second.transfer), WorkerId(orders_[0].first));
  pulls_.DropInto(kTo);
  Take();
  EXPECT_EQ(releases_, (Workers{1, 2}));
  EXPECT_FALSE(pulls_.PullerOf(orders_[0].second.transfer));
}

}  // namespace
}  // namespace millrace::cluster
