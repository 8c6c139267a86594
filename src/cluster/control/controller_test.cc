// The controller alone: admission of workers, and the handling of lost workers and collectives.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/testing/test_time.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/testing/sent.h"

namespace millrace::cluster {
namespace {

std::unique_ptr<ControllerCore> Make(int tensor_parallel) {
  ControllerOptions o;
  o.term = Term(1);
  o.model = "m";
  o.num_layers = 4;
  o.shape.tensor_parallel = tensor_parallel;
  o.scheduler.max_model_len = 64;
  return std::move(ControllerCore::Create(o)).value();
}

Join JoinOf(const std::string& name, uint64_t incarnation) {
  Join join;
  join.name = name;
  join.address.incarnation = Incarnation(incarnation);
  return join;
}

template <typename T>
std::vector<std::pair<ConnectionId, T>> Sent(ControllerCore& c) {
  std::vector<ControllerAction> actions;
  c.TakeActions(actions);
  return testing::SentOf<T>(actions);
}

void Receive(ControllerCore& c, ConnectionId from, ToController message, Time now) {
  c.Receive(from, std::move(message), now);
  c.Advance(now);
}

void Lose(ControllerCore& c, uint64_t worker, Time now) {
  c.ConnectionLost(ConnectionId(worker), Unavailable("gone"), now);
  c.Advance(now);
}

TEST(ControllerCore, OnlyOneOfTwoProcessesHasTheirName) {
  auto c = Make(1);
  Receive(*c, ConnectionId(1), JoinOf("w", 10), At(0));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
  // The first is alive, so it stays and the second is told to retry.
  Receive(*c, ConnectionId(2), JoinOf("w", 20), At(0.1));
  const auto refused = Sent<Refused>(*c);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first, ConnectionId(2));
  EXPECT_TRUE(refused[0].second.retry);
  EXPECT_EQ(c->counters().workers_lost, 0u);
  // The same process may join with a new session.
  Receive(*c, ConnectionId(3), JoinOf("w", 10), At(0.2));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
  // The first has been silent for a while, so the newer process gets the name.
  Receive(*c, ConnectionId(4), JoinOf("w", 20), At(2));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
}

TEST(ControllerCore, AWrongWorkerDoesNotTakeAGoodOnesName) {
  auto c = Make(1);
  Receive(*c, ConnectionId(1), JoinOf("w", 10), At(0));
  Join wrong = JoinOf("w", 20);
  wrong.identity.protocol = {kProtocolVersion + 1, kProtocolVersion + 1};
  Receive(*c, ConnectionId(2), wrong, At(2));
  EXPECT_EQ(c->counters().workers_lost, 0u);
  EXPECT_EQ(c->counters().joins_refused, 1u);
}

// A worker without a model is admitted and gets a list of workers with weights, with the holders of
// its layers first.
TEST(ControllerCore, GivesWeightSourcesToAWorkerWithoutWeights) {
  ControllerOptions o;
  o.term = Term(1);
  o.num_layers = 4;
  o.shape.stages = 2;
  o.elastic = false;
  o.scheduler.max_model_len = 64;
  o.identity.model_fingerprint = "right";
  o.identity.kv_layout = "dense";
  auto c = std::move(ControllerCore::Create(o)).value();
  const auto join = [&](uint64_t number, const std::string& fingerprint) {
    Join message = JoinOf("w" + std::to_string(number), number * 10);
    message.identity.model_fingerprint = fingerprint;
    Receive(*c, ConnectionId(number), message, At(0));
  };
  const auto sources = [](const LoadShard& load) {
    std::vector<uint64_t> found;
    for (const WorkerAddress& source : load.sources) found.push_back(source.incarnation.value());
    return found;
  };
  join(1, "");
  EXPECT_EQ(c->counters().joins_refused, 0u);
  join(2, "right");
  join(3, "wrong");
  EXPECT_EQ(c->counters().joins_refused, 1u);
  const auto loads = Sent<LoadShard>(*c);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_TRUE(sources(loads[0].second).empty()) << "there was no other worker";
  EXPECT_TRUE(sources(loads[1].second).empty()) << "the first has nothing to give";
  EXPECT_EQ(loads[0].second.model_fingerprint, "right");
  for (const auto& [to, load] : loads) {
    const ShardLoaded loaded{
        .shard = load.shard, .weight_bytes = 10, .kept_bytes = 3, .peer_bytes = 5};
    Receive(*c, to, loaded, At(0.1));
  }
  EXPECT_EQ(c->counters().weights_kept, 6u);
  EXPECT_EQ(c->counters().weights_from_peers, 10u);
  EXPECT_EQ(c->counters().weights_from_disk, 4u);
  join(4, "right");
  join(5, "");
  (void)Sent<LoadShard>(*c);
  Lose(*c, 2, At(0.2));
  const auto again = Sent<LoadShard>(*c);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].second.layers, (LayerRange{2, 4}));
  Lose(*c, 1, At(0.3));
  const auto last = Sent<LoadShard>(*c);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].second.layers, (LayerRange{0, 2}));
  // In either order, the worker with files is a source for the one without.
  const bool files_first = again[0].first == ConnectionId(4);
  EXPECT_EQ(sources(files_first ? last[0].second : again[0].second), std::vector<uint64_t>{40});
}

// The decode pipeline must be open when the first request is handed over with its KV.
TEST(ControllerCore, OpensEveryPipelineAsSoonAsItsStagesAreUp) {
  ControllerOptions o;
  o.term = Term(1);
  o.num_layers = 4;
  o.scheduler.max_model_len = 64;
  o.plan.emplace();
  o.plan->num_layers = 4;
  o.plan->stages = {{.layers = {0, 4}, .role = StageRole::kPrefill},
                    {.layers = {0, 2}, .role = StageRole::kDecode},
                    {.layers = {2, 4}, .role = StageRole::kDecode}};
  auto c = std::move(ControllerCore::Create(o)).value();
  for (uint64_t w = 1; w <= 3; ++w) {
    Receive(*c, ConnectionId(w), JoinOf("w" + std::to_string(w), 10 * w), At(0));
  }
  const auto loads = Sent<LoadShard>(*c);
  ASSERT_EQ(loads.size(), 3u);
  const std::vector<size_t> opened_after = {1, 0, 2};  // prefill; half of decode; all of decode
  for (size_t i = 0; i < 3; ++i) {
    const auto& [to, load] = loads[i];
    Receive(*c, to,
            ShardLoaded{.shard = load.shard, .kv_bytes_per_token_layer = 8, .kv_bytes = 65536},
            At(0.1));
    EXPECT_EQ(Sent<OpenPipeline>(*c).size(), opened_after[i]) << load.layers.begin;
  }
  // After it is lost with a worker, it is opened again once the worker is replaced.
  Lose(*c, 3, At(0.2));
  Receive(*c, ConnectionId(4), JoinOf("w4", 40), At(0.3));
  const auto again = Sent<LoadShard>(*c);
  ASSERT_EQ(again.size(), 1u);
  Receive(
      *c, ConnectionId(4),
      ShardLoaded{.shard = again[0].second.shard, .kv_bytes_per_token_layer = 8, .kv_bytes = 65536},
      At(0.4));
  EXPECT_EQ(Sent<OpenPipeline>(*c).size(), 2u);
}

// A test step has been sent: the worker of the last hop answers it.
void PassTest(ControllerCore& c, ConnectionId last, Time now) {
  const auto tests = Sent<PipelineStep>(c);
  ASSERT_FALSE(tests.empty());
  EXPECT_TRUE(tests[0].second.plan->IsTest());
  Receive(c, last, StepDone{tests[0].second.pipeline, {.id = kTestStep}}, now);
}

// Two workers, which may each have the whole model, and a request with a step in flight.
class Migrating : public ::testing::Test {
 protected:
  using Step = std::pair<ConnectionId, PipelineStep>;

  void Start(std::optional<Plan> plan) {
    ControllerOptions o;
    o.term = Term(1);
    o.num_layers = 4;
    o.scheduler.block_size = 4;
    o.scheduler.max_model_len = 64;
    o.scheduler.prefix_caching = false;  // the prompts are equal
    o.plan = std::move(plan);
    c_ = std::move(ControllerCore::Create(o)).value();
    for (uint64_t w = 1; w <= 2; ++w) {
      c_->Receive(ConnectionId(w), JoinOf("w" + std::to_string(w), w * 10), At(0));
    }
    Settle(At(0));
    Submit(1);
    ASSERT_EQ(steps_.size(), 1u);
    End(steps_.back(), At(0.2));
    ASSERT_EQ(steps_.size(), 2u);
  }
  void Submit(uint64_t id) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(10, 5);
    request.params = std::make_shared<const SamplingParams>();
    EXPECT_TRUE(c_->Submit(std::move(request), At(0.1)).ok());
    Settle(At(0.1));
  }

  // Answers messages to workers until none follow: loads and opens succeed. Returns the pulls that
  // were ordered.
  std::vector<PullKv> Settle(Time now) {
    std::vector<PullKv> pulls;
    for (int round = 0; round < 8; ++round) {
      std::vector<ControllerAction> actions;
      c_->Tick(now);
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
          c_->Receive(send->to, PipelineOpened{open->pipeline}, now);
        } else if (const auto* pull = std::get_if<PullKv>(&send->message)) {
          pulls.push_back(*pull);
        } else if (const auto* step = std::get_if<PipelineStep>(&send->message)) {
          if (step->plan->IsTest()) {
            c_->Receive(send->to, StepDone{step->pipeline, {.id = kTestStep}}, now);
          } else {
            steps_.emplace_back(send->to, *step);
          }
        }
      }
    }
    return pulls;
  }
  static std::string NameOf(ConnectionId worker) { return "w" + std::to_string(worker.value()); }
  std::vector<PullKv> End(const Step& step, Time now) {
    StepResult result{.id = step.second.plan->id};
    for (const SequenceStep& s : step.second.plan->sequences) {
      result.sequences.push_back({.id = s.id, .token = 9});
    }
    c_->Receive(step.first, StepDone{step.second.pipeline, std::move(result)}, now);
    return Settle(now);
  }
  Step LastAt(ConnectionId worker) const {
    return *std::find_if(steps_.rbegin(), steps_.rend(),
                         [&](const Step& step) { return step.first == worker; });
  }
  static Plan TwoReplicas() {
    Plan plan{.num_layers = 4};
    for (int i = 0; i < 2; ++i) {
      plan.stages.push_back({.layers = {0, 4}});
      plan.edges.push_back({std::nullopt, i, 1});
      plan.edges.push_back({i, std::nullopt, 1});
    }
    return plan;
  }

  std::unique_ptr<ControllerCore> c_;
  std::vector<Step> steps_;  // as they were sent
};

TEST_F(Migrating, IsCopiedInTheBackgroundButItsTailIsNot) {
  Start(TwoReplicas());
  const Step running = steps_.back();
  Submit(2);  // at the other worker
  const Step other = steps_.back();
  ASSERT_NE(other.first, running.first);
  ASSERT_TRUE(c_->Migrate(RequestId(1), NameOf(other.first), At(0.3)).ok());
  const std::vector<PullKv> copy = End(other, At(0.3));
  ASSERT_EQ(copy.size(), 1u);
  EXPECT_TRUE(copy[0].background) << "the request runs meanwhile";
  c_->Receive(other.first, PullDone{.transfer = copy[0].transfer}, At(0.4));
  const std::vector<PullKv> tail = End(running, At(0.4));
  ASSERT_EQ(tail.size(), 1u);
  EXPECT_EQ(tail[0].first_token, copy[0].end_token);
  EXPECT_FALSE(tail[0].background) << "the request is paused";
  c_->CheckIntegrity();
}

// The KV of all moving requests is held meanwhile, and each pull waits for the one before it.
TEST_F(Migrating, IsNotInTheBackgroundWhenManyMove) {
  Start(TwoReplicas());
  const ConnectionId here = steps_.front().first, there(3 - here.value());
  for (uint64_t id = 2; id <= 12; ++id) Submit(id);
  for (int round = 0; round < 2; ++round) {
    End(LastAt(here), At(0.2));
    End(LastAt(there), At(0.2));
  }
  size_t moving = 0;
  for (uint64_t id = 1; id <= 12; ++id) {
    moving += c_->Migrate(RequestId(id), NameOf(there), At(0.3)).ok();
  }
  EXPECT_GE(moving, 5u);
  const std::vector<PullKv> copies = End(LastAt(there), At(0.3));
  ASSERT_EQ(copies.size(), moving);
  for (const PullKv& copy : copies) EXPECT_FALSE(copy.background);
}

TEST_F(Migrating, IsNotInTheBackgroundWhenItsWorkerDrains) {
  Start(std::nullopt);
  ASSERT_TRUE(c_->DrainWorker(NameOf(steps_.back().first)).ok());
  const std::vector<PullKv> copy = Settle(At(0.3));
  ASSERT_EQ(copy.size(), 1u);
  EXPECT_FALSE(copy[0].background);
}

// Two stages and a request whose prompt is computed. Then the second stage's worker is lost.
class LostStage : public ::testing::Test {
 protected:
  LostStage() {
    ControllerOptions o;
    o.term = Term(1);
    o.num_layers = 4;
    o.shape.stages = 2;
    o.elastic = false;
    o.scheduler.block_size = 4;
    o.scheduler.max_model_len = 64;
    c_ = std::move(ControllerCore::Create(o)).value();
    for (uint64_t w = 1; w <= 2; ++w) {
      Receive(*c_, ConnectionId(w), JoinOf("w" + std::to_string(w), w * 10), At(0));
    }
    LoadAndOpen();
    sched::NewRequest request{.id = RequestId(1)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(10, 5);
    request.params = std::make_shared<const SamplingParams>();
    EXPECT_TRUE(c_->Submit(std::move(request), At(1)).ok());
    c_->Advance(At(1));
    const auto steps = Sent<PipelineStep>(*c_);
    EXPECT_EQ(steps.size(), 1u);
    pipeline_ = steps[0].second.pipeline;
    StepResult result{.id = steps[0].second.plan->id};
    result.sequences.push_back({.id = steps[0].second.plan->sequences[0].id, .token = 9});
    Receive(*c_, ConnectionId(2), StepDone{pipeline_, std::move(result)}, At(1.1));
    c_->Advance(At(1.1));
    (void)Sent<PipelineStep>(*c_);
    Lose(*c_, 2, At(1.2));
    EXPECT_TRUE(Sent<ClosePipeline>(*c_).empty()) << "its first hop is still there";
    Receive(*c_, ConnectionId(3), JoinOf("w3", 30), At(1.3));
  }

  // Answers loads and opens. The first hop opens with `of_first`.
  void LoadAndOpen(Status of_first = OkStatus()) {
    for (const auto& [to, load] : Sent<LoadShard>(*c_)) {
      Receive(*c_, to,
              ShardLoaded{.shard = load.shard, .kv_bytes_per_token_layer = 8, .kv_bytes = 65536},
              At(1.4));
    }
    for (const auto& [to, open] : Sent<OpenPipeline>(*c_)) {
      if (c_->Describe(At(1.4)).pipelines.empty()) break;
      Receive(*c_, to, PipelineOpened{open.pipeline, open.hop == 0 ? of_first : OkStatus()},
              At(1.4));
      last_ = ConnectionId(open.hops.back().ranks.front().incarnation.value() / 10);
    }
    if (of_first.ok()) PassTest(*c_, last_, At(1.4));
  }

  std::unique_ptr<ControllerCore> c_;
  PipelineId pipeline_;
  ConnectionId last_;  // of the worker of the last hop
};

TEST_F(LostStage, TheOtherKeepsItsKvUntilItIsFetched) {
  LoadAndOpen();
  c_->Advance(At(1.5));
  std::vector<ControllerAction> actions;
  c_->TakeActions(actions);
  std::vector<std::pair<ConnectionId, PullKv>> pulls;
  for (ControllerAction& action : actions) {
    auto* send = std::get_if<SendToWorker>(&action);
    if (send == nullptr) continue;
    if (auto* pull = std::get_if<PullKv>(&send->message)) pulls.emplace_back(send->to, *pull);
    EXPECT_FALSE(std::holds_alternative<ClosePipeline>(send->message));
  }
  ASSERT_EQ(pulls.size(), 1u) << "no worker has the new worker's layers";
  EXPECT_EQ(pulls[0].first, ConnectionId(1));
  EXPECT_EQ(pulls[0].second.end_token, 10);
  EXPECT_EQ(pulls[0].second.sources.at(0).handle.pipeline, pipeline_);
  Receive(*c_, ConnectionId(1), PullDone{.transfer = pulls[0].second.transfer, .activations = true},
          At(1.6));
  c_->Advance(At(1.6));
  c_->CheckIntegrity();
  EXPECT_EQ(c_->counters().computed_in_part, 1u);
  c_->TakeActions(actions);
  bool closed = false, alone = false;
  for (ControllerAction& action : actions) {
    auto* send = std::get_if<SendToWorker>(&action);
    if (send == nullptr) continue;
    if (auto* close = std::get_if<ClosePipeline>(&send->message))
      closed |= close->pipeline == pipeline_;
    auto* step = std::get_if<PipelineStep>(&send->message);
    if (step) alone = step->plan->sequences[0].only_layers == LayerRange{2, 4};
  }
  EXPECT_TRUE(closed);
  EXPECT_TRUE(alone);
}

TEST_F(LostStage, RecoverableKvIsDroppedWhenAPipelineFindsNoMemory) {
  LoadAndOpen(ResourceExhausted("no memory for so many blocks"));
  bool closed = false;
  for (const auto& [to, close] : Sent<ClosePipeline>(*c_)) closed |= close.pipeline == pipeline_;
  EXPECT_TRUE(closed);
  c_->CheckIntegrity();
}

// Stopping the last worker must not hang until it is killed.
TEST(ControllerCore, LetsAWorkerLeaveThatCannotBeReplaced) {
  auto c = Make(1);
  Receive(*c, ConnectionId(1), JoinOf("a", 10), At(0));
  EXPECT_EQ(c->DrainWorker("a").code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Sent<Leave>(*c).empty());
  Receive(*c, ConnectionId(1), Leaving{}, At(0.2));
  EXPECT_EQ(Sent<Leave>(*c).size(), 1u);
}

TEST(ControllerCore, AWorkerThatCannotBeReplacedServesUntilItsMachineGoes) {
  const auto leaves = [](NoticeSource source, bool busy) {
    auto c = Make(1);
    Receive(*c, ConnectionId(1), JoinOf("a", 10), At(0));
    if (busy) {
      sched::NewRequest request;
      request.id = RequestId(1);
      request.prompt = std::make_shared<const std::vector<TokenId>>(5, 1);
      request.params = std::make_shared<const SamplingParams>();
      EXPECT_TRUE(c->Submit(request, At(0.1)).ok());
    }
    Receive(*c, ConnectionId(1), Leaving{Duration::Seconds(30), {source}}, At(0.2));
    return Sent<Leave>(*c).size() == 1;
  };
  EXPECT_FALSE(leaves(NoticeSource::kAws, true));
  EXPECT_FALSE(leaves(NoticeSource::kAws, false)) << "requests may still come";
  EXPECT_FALSE(leaves(NoticeSource::kKubernetes, true));
  EXPECT_TRUE(leaves(NoticeSource::kKubernetes, false)) << "whoever stops it need not wait";
}

TEST(ControllerCore, RebuildsAFailedCollective) {
  auto c = Make(2);
  Receive(*c, ConnectionId(1), JoinOf("a", 10), At(0));
  Receive(*c, ConnectionId(2), JoinOf("b", 20), At(0));
  const auto loads = Sent<LoadShard>(*c);
  ASSERT_EQ(loads.size(), 2u);
  for (const auto& [to, load] : loads) {
    ShardLoaded loaded{.shard = load.shard, .kv_bytes_per_token_layer = 8, .kv_bytes = 65536};
    Receive(*c, to, loaded, At(0.1));
  }
  sched::NewRequest request;
  request.id = RequestId(1);
  request.prompt = std::make_shared<const std::vector<TokenId>>(3, 1);
  request.params = std::make_shared<const SamplingParams>();
  ASSERT_TRUE(c->Submit(request, At(0.1)).ok());
  c->Advance(At(0.1));
  const auto opened = Sent<OpenPipeline>(*c);
  ASSERT_EQ(opened.size(), 2u);
  const PipelineId pipeline = opened[0].second.pipeline;
  for (uint64_t w = 1; w <= 2; ++w) {
    Receive(*c, ConnectionId(w), PipelineOpened{pipeline, OkStatus()}, At(0.1));
  }
  PassTest(*c, ConnectionId(1), At(0.1));
  c->Advance(At(0.1));
  (void)Sent<PipelineStep>(*c);
  Receive(*c, ConnectionId(1),
          PipelineBroken{pipeline, Unavailable("the collective has failed"), {}}, At(0.2));
  std::vector<ControllerAction> actions;
  c->TakeActions(actions);
  int loaded = 0, unloaded = 0;
  for (const ControllerAction& action : actions) {
    const auto* send = std::get_if<SendToWorker>(&action);
    loaded += send && std::holds_alternative<LoadShard>(send->message);
    unloaded += send && std::holds_alternative<UnloadShard>(send->message);
  }
  EXPECT_EQ(loaded, 2);
  EXPECT_EQ(unloaded, 2);
  EXPECT_EQ(c->requests(), 1u);  // it waits; no worker was lost
  EXPECT_EQ(c->counters().failed_by_losses, 0u);
}

}  // namespace
}  // namespace millrace::cluster
