// What a request has left on a worker that survives: fetched over a fast link, computed again if
// the link is slow.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_time.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/fetch_cost.h"

namespace millrace::cluster {
namespace {

// Two pipelines: workers 1 and 2 with two layers each, and worker 3 with all four.
class Fetches : public ::testing::Test {
 protected:
  static constexpr int kPrompt = 100;

  Fetches() {
    ControllerOptions o;
    o.term = Term(1);
    o.num_layers = 4;
    o.elastic = false;
    o.scheduler.block_size = 4;
    o.scheduler.max_model_len = 256;
    o.link_probes = LinkProbeOptions{.quiet = Duration::Seconds(0)};
    Plan plan{.num_layers = 4};
    plan.stages = {{.layers = {0, 2}}, {.layers = {2, 4}}, {.layers = {0, 4}}};
    plan.edges = {{std::nullopt, 0, 1},
                  {0, 1, 1},
                  {1, std::nullopt, 1},
                  {std::nullopt, 2, 1},
                  {2, std::nullopt, 1}};
    c_ = std::move(ControllerCore::Create(o)).value();
    EXPECT_TRUE(c_->ApplyPlan(plan, {}).ok());
    for (uint64_t w = 1; w <= 3; ++w) {
      millrace::Join join;
      join.name = "w" + std::to_string(w);
      join.address.incarnation = Incarnation(w * 10);
      c_->Receive(ConnectionId(w), std::move(join), At(0));
    }
    Settle(At(0));
  }

  // All links have this rate.
  void MeasureLinks(double bytes_per_s) {
    bytes_per_s_ = bytes_per_s;
    for (int i = 0; i < 20; ++i) {
      c_->Tick(At(0.1));
      Settle(At(0.1));
    }
  }
  void Submit(uint64_t id, Time now) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(kPrompt, static_cast<int>(id));
    request.params = std::make_shared<const SamplingParams>();
    EXPECT_TRUE(c_->Submit(std::move(request), now).ok());
    Settle(now);
  }
  // Ends all steps in flight.
  void EndSteps(Time now) {
    for (const auto& [worker, step] : std::exchange(steps_, {})) {
      StepResult result{.id = step.plan->id};
      for (const SequenceStep& s : step.plan->sequences) {
        result.sequences.push_back({.id = s.id, .token = 9});
      }
      c_->Receive(worker, StepDone{step.pipeline, std::move(result)}, now);
    }
    Settle(now);
  }
  void Settle(Time now) {
    for (int round = 0; round < 8; ++round) {
      std::vector<ControllerAction> actions;
      c_->Advance(now);
      c_->TakeActions(actions);
      for (const ControllerAction& action : actions) {
        if (const auto* send = std::get_if<SendToWorker>(&action)) Answer(*send, now);
      }
      c_->CheckIntegrity();
    }
  }
  void Answer(const SendToWorker& send, Time now) {
    if (const auto* load = std::get_if<LoadShard>(&send.message)) {
      ShardLoaded loaded{.shard = load->shard};
      loaded.kv_bytes_per_token_layer = 8;
      loaded.kv_bytes = 65536;
      c_->Receive(send.to, loaded, now);
    } else if (const auto* open = std::get_if<OpenPipeline>(&send.message)) {
      c_->Receive(send.to, PipelineOpened{open->pipeline}, now);
    } else if (const auto* probe = std::get_if<ProbeLink>(&send.message)) {
      c_->Receive(send.to,
                  LinkProbed{.probe = probe->probe, .latency_s = 1e-4, .bytes_per_s = bytes_per_s_},
                  now);
    } else if (const auto* pull = std::get_if<PullKv>(&send.message)) {
      pulls_.push_back(*pull);
    } else if (const auto* step = std::get_if<PipelineStep>(&send.message)) {
      steps_.emplace_back(send.to, *step);
    }
  }
  // A prompt has run in each pipeline, 100 tokens in a tenth of a second. Then worker 2 is lost.
  void ComputeAndLose() {
    Submit(1, At(1));
    Submit(2, At(1));
    EndSteps(At(1.1));
    c_->ConnectionLost(ConnectionId(2), Unavailable("gone"), At(1.2));
    Settle(At(1.2));
    EndSteps(At(1.3));  // what comes next for worker 3 is formed
    EXPECT_EQ(c_->counters().replays, 1u);
  }

  std::unique_ptr<ControllerCore> c_;
  double bytes_per_s_ = 0;
  std::vector<PullKv> pulls_;
  std::vector<std::pair<ConnectionId, PipelineStep>> steps_;
};

TEST_F(Fetches, OverAFastLink) {
  MeasureLinks(1e6);
  ComputeAndLose();
  EXPECT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(c_->counters().fetch_too_slow, 0u);
}

TEST_F(Fetches, OverALinkThatWasNotMeasured) {
  ComputeAndLose();
  EXPECT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(c_->counters().fetch_too_slow, 0u);
}

// 100 tokens with 2 layers of 8 bytes take 0.8 s, and to compute 100 takes 0.1 s. Half of the
// layers are computed again in any case.
TEST_F(Fetches, NothingOverASlowLink) {
  MeasureLinks(2000);
  ComputeAndLose();
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(c_->counters().fetch_too_slow, 1u);
}

TEST(FetchCost, ALinkMayTakeTwiceAsLong) {
  EXPECT_TRUE((FetchCost{.link_s = 1.9, .compute_s = 1}.FetchIsBetter()));
  EXPECT_FALSE((FetchCost{.link_s = 2.1, .compute_s = 1}.FetchIsBetter()));
  // What is computed in any case is no argument for the link.
  EXPECT_FALSE((FetchCost{.link_s = 1.9, .lacking = 0.5, .compute_s = 1}.FetchIsBetter()));
}

}  // namespace
}  // namespace millrace::cluster
