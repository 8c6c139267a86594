// Separate prefill and decode: recoverable KV in a pipeline that still runs, which can be fetched
// while it is held; and the activations that are pulled along with handed-over KV.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/testing/test_time.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

constexpr StageRole kPrefill = StageRole::kPrefill, kDecode = StageRole::kDecode;

class PrefillApart : public ::testing::Test {
 protected:
  // One worker per stage. A stage follows the one before it unless it begins at layer 0.
  void Start(const std::vector<std::pair<LayerRange, StageRole>>& stages) {
    ControllerOptions o;
    o.term = Term(1);
    o.num_layers = 4;
    o.elastic = false;
    o.scheduler.block_size = 4;
    o.scheduler.max_model_len = 64;
    Plan plan{.num_layers = 4};
    for (int i = 0; i < std::ssize(stages); ++i) {
      const auto& [layers, role] = stages[static_cast<size_t>(i)];
      plan.stages.push_back({.layers = layers, .role = role});
      plan.edges.push_back({layers.begin == 0 ? std::nullopt : std::optional(i - 1), i, 1});
      if (layers.end == 4) plan.edges.push_back({i, std::nullopt, 1});
    }
    c_ = std::move(ControllerCore::Create(o)).value();
    EXPECT_TRUE(c_->ApplyPlan(plan, {}).ok());
    for (uint64_t w = 1; w <= stages.size(); ++w) Join(w, At(0));
    Settle(At(0));
  }
  void Join(uint64_t worker, Time now) {
    millrace::Join join;
    join.name = "w" + std::to_string(worker);
    join.address.incarnation = Incarnation(worker * 10);
    c_->Receive(ConnectionId(worker), std::move(join), now);
  }
  void Submit(uint64_t id, Time now) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(10, 5);
    request.params = std::make_shared<const SamplingParams>();
    EXPECT_TRUE(c_->Submit(std::move(request), now).ok());
    Settle(now);
  }
  // Ends the only step in flight with a token for its first sequence. Its request is handed over if
  // that was its prompt.
  void EndStep(uint64_t worker, Time now) {
    ASSERT_EQ(steps_.size(), 1u);
    const PipelineStep step = steps_.front();
    steps_.clear();
    StepResult result{.id = step.plan->id};
    result.sequences.push_back({.id = step.plan->sequences.at(0).id, .token = 9});
    prefill_ = step.pipeline;
    c_->Receive(ConnectionId(worker), StepDone{step.pipeline, std::move(result)}, now);
    Settle(now);
  }
  // Answers all messages to workers: loads and opens succeed; pulls and steps are recorded.
  void Settle(Time now) {
    for (int round = 0; round < 8; ++round) {
      std::vector<ControllerAction> actions;
      c_->Advance(now);
      c_->TakeActions(actions);
      for (const ControllerAction& action : actions) {
        const auto* send = std::get_if<SendToWorker>(&action);
        if (send == nullptr) continue;
        if (const auto* load = std::get_if<LoadShard>(&send->message)) {
          ShardLoaded loaded{.shard = load->shard};
          loaded.kv_bytes_per_token_layer = 8;
          loaded.kv_bytes = 65536;
          c_->Receive(send->to, loaded, now);
        } else if (const auto* open = std::get_if<OpenPipeline>(&send->message)) {
          opened_[send->to.value()] = *open;
          c_->Receive(send->to, PipelineOpened{open->pipeline}, now);
        } else if (const auto* pull = std::get_if<PullKv>(&send->message)) {
          pulls_.push_back(*pull);
        } else if (const auto* close = std::get_if<ClosePipeline>(&send->message)) {
          closed_.emplace(send->to.value(), close->pipeline);
        } else if (const auto* step = std::get_if<PipelineStep>(&send->message)) {
          if (!step->plan->IsTest()) {
            steps_.push_back(*step);
            continue;
          }
          const WorkerAddress& last = opened_.at(send->to.value()).hops.back().ranks.front();
          c_->Receive(ConnectionId(last.incarnation.value() / 10),
                      StepDone{step->pipeline, {.id = kTestStep}}, now);
        }
      }
      c_->CheckIntegrity();
    }
  }

  std::unique_ptr<ControllerCore> c_;
  PipelineId prefill_;
  std::map<uint64_t, OpenPipeline> opened_;           // by worker, the last one
  std::set<std::pair<uint64_t, PipelineId>> closed_;  // by worker
  std::vector<PullKv> pulls_;
  std::vector<PipelineStep> steps_;
};

// Two workers prefill and a third decodes, which is told to pull the first request's KV.
class HandedOver : public PrefillApart {
 protected:
  HandedOver() {
    Start({{{0, 2}, kPrefill}, {{2, 4}, kPrefill}, {{0, 4}, kDecode}});
    Submit(1, At(0.1));
    EndStep(2, At(0.2));
    EXPECT_EQ(pulls_.size(), 1u);
  }
};

class LeftAtPrefill : public HandedOver {
 protected:
  LeftAtPrefill() { pulls_.clear(); }
  // The third worker is lost while another request's prompt is computed. That prompt ends at
  // `later`, and then the second worker is lost. Both requests wait for a worker that decodes.
  void LoseBoth(double later) {
    Submit(2, At(0.5));
    c_->ConnectionLost(ConnectionId(3), Unavailable("gone"), At(1));
    EndStep(2, At(later));
    c_->ConnectionLost(ConnectionId(2), Unavailable("gone"), At(later + 1));
    Settle(At(later + 1));
    EXPECT_TRUE(pulls_.empty()) << "there is no worker that could pull";
    steps_.clear();
    Join(4, At(later + 2));
    Join(5, At(later + 2));
    Settle(At(later + 2));
  }
};

TEST_F(LeftAtPrefill, IsFetchedByTheNextDecodeWorker) {
  LoseBoth(5);
  ASSERT_EQ(pulls_.size(), 2u) << "of each request, from the one stage that is left";
  EXPECT_EQ(pulls_[0].sources.at(0).handle.pipeline, prefill_);
  EXPECT_EQ(pulls_[0].layers, (LayerRange{0, 2}));
  EXPECT_EQ(pulls_[0].activations, PulledActivations::kAny) << "the layers after it must compute";
}

// Its blocks may have been reused by then, which cannot be checked once the pipeline is gone.
TEST_F(LeftAtPrefill, IsNotUsedAfterItsHoldExpires) {
  LoseBoth(40);
  EXPECT_EQ(pulls_.size(), 1u) << "of the second request";
  EXPECT_FALSE(steps_.empty()) << "the first is computed from its tokens";
}

// The last pull of a move fails because one hop of its source is gone. What the other hops hold is
// fetched separately, and only the lost hop's layers are computed again.
class TailOfAHandOver : public HandedOver {
 protected:
  PullKv TakePull() {
    const PullKv pull = pulls_.front();
    pulls_.erase(pulls_.begin());
    return pull;
  }
  void EndPull(const PullKv& pull, bool there, Time now) {
    PullDone done{.transfer = pull.transfer};
    if (!there) done.status = Unavailable("the connection has ended");
    done.activations = there && pull.activations != PulledActivations::kNone;
    c_->Receive(ConnectionId(3), done, now);
    Settle(now);
  }
  void ExpectTheLostLayersOnly() {
    ASSERT_EQ(steps_.size(), 1u);
    const SequenceStep& sequence = steps_[0].plan->sequences.at(0);
    EXPECT_EQ(sequence.only_layers, (LayerRange{2, 4}));
    EXPECT_EQ(c_->counters().computed_in_part, 1u);
  }
};

TEST_F(TailOfAHandOver, IsFetchedFromTheHopsThatOutliveTheLoss) {
  c_->ConnectionLost(ConnectionId(2), Unavailable("gone"), At(0.3));
  Settle(At(0.3));
  EndPull(TakePull(), false, At(0.4));
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(pulls_[0].layers, (LayerRange{0, 2}));
  EXPECT_EQ(pulls_[0].sources.at(0).handle.pipeline, prefill_);
  EXPECT_EQ(pulls_[0].activations, PulledActivations::kAny);
  EndPull(TakePull(), true, At(0.5));
  ExpectTheLostLayersOnly();
}

// The pulling worker may notice a loss before the controller does.
TEST_F(TailOfAHandOver, IsFetchedBeforeTheLossIsKnown) {
  EndPull(TakePull(), false, At(0.3));
  ASSERT_EQ(pulls_.size(), 2u);
  const PullKv first = TakePull(), second = TakePull();
  EXPECT_EQ(first.layers, (LayerRange{0, 2}));
  EXPECT_EQ(first.activations, PulledActivations::kAny) << "the layers after it may be lost";
  EndPull(first, true, At(0.4));
  EndPull(second, false, At(0.4));
  ExpectTheLostLayersOnly();
}

TEST_F(TailOfAHandOver, LeavesNothingBehindWhenItArrivesDespiteTheLoss) {
  c_->ConnectionLost(ConnectionId(2), Unavailable("gone"), At(0.3));
  Settle(At(0.3));
  EndPull(TakePull(), true, At(0.4));
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(c_->counters().replays, 0u);
  EXPECT_EQ(closed_.count({1, prefill_}), 1u) << "the surviving hop";
}

// If the second decode worker is lost later, the first need not compute anything again, although it
// never computed the prompt.
TEST_F(PrefillApart, ActivationsAreCachedAtDecodeCutsAndComeWithTheKv) {
  Start({{{0, 4}, kPrefill}, {{0, 1}, kDecode}, {{1, 4}, kDecode}});
  EXPECT_EQ(opened_.at(1).cache_activations_at, (std::vector<int>{1}));
  EXPECT_EQ(opened_.at(2).cache_activations_at, (std::vector<int>{1}));
  EXPECT_EQ(opened_.at(3).cache_activations_at, (std::vector<int>{}));
  Submit(1, At(0.1));
  EndStep(1, At(0.2));
  ASSERT_EQ(pulls_.size(), 2u);
  EXPECT_EQ(pulls_[0].activations, PulledActivations::kAny);
  EXPECT_EQ(pulls_[1].activations, PulledActivations::kNone) << "the last stage outputs tokens";
}

TEST_F(PrefillApart, ActivationsAreCachedAtOwnAndOtherCuts) {
  Start({{{0, 2}, kPrefill}, {{2, 4}, kPrefill}, {{0, 3}, kDecode}, {{3, 4}, kDecode}});
  EXPECT_EQ(opened_.at(1).cache_activations_at, (std::vector<int>{2}));
  EXPECT_EQ(opened_.at(2).cache_activations_at, (std::vector<int>{3}));
  EXPECT_EQ(opened_.at(3).cache_activations_at, (std::vector<int>{3})) << "it does not prefill";
}

// Its machine may be gone before they are transferred.
TEST_F(PrefillApart, ALeavingWorkerSendsNoActivations) {
  Start({{{0, 4}, kPrefill}, {{0, 1}, kDecode}, {{1, 4}, kDecode}});
  Submit(1, At(0.1));
  Join(4, At(0.12));
  c_->Receive(ConnectionId(1), Leaving{Duration::Seconds(30)}, At(0.15));
  EndStep(1, At(0.2));
  ASSERT_EQ(pulls_.size(), 2u);
  EXPECT_EQ(pulls_[0].activations, PulledActivations::kLocal);
}

}  // namespace
}  // namespace millrace::cluster
