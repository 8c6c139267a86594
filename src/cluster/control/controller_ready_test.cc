// Readiness of a cluster: it needs one complete pipeline that decodes, which also stands in for
// prefill. Also the queue: requests that wait for decode do not block prompts.
#include <gtest/gtest.h>

#include "cluster/control/layout/layout.h"
#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class Ready : public ScriptedWorkers {
 protected:
  std::string Missing() const { return Describe().missing.value_or("nothing"); }
  std::string Degraded() const { return Describe().degraded.value_or("nothing"); }
};

TEST_F(Ready, AReplicaServesWhileAnotherIsMissing) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  EXPECT_EQ(Missing(), "No worker has joined yet.");
  Join(1);
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_EQ(Degraded(), "A stage with the model's layers has no worker.");
  // It serves, although not every stage has ever been up.
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  Join(2);
  EXPECT_EQ(Degraded(), "nothing");
  for (uint64_t id = 5; id <= 8; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1, 2}));
  EndStep(1);
  EndStep(2);
  Lose(1);
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_EQ(Degraded(), "A stage with the model's layers has no worker.");
  // Its requests continue at the other, and do not wait for a worker to return.
  EXPECT_EQ(Describe().waiting, 0);
  Lose(2);
  EXPECT_EQ(Missing(), "No worker has joined yet.");
}

// Their pipeline was chosen before the loss was known.
TEST_F(Ready, RequestsThatWaitForALostReplicaGoToAnother) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  Join(1);
  Join(2);
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(Submit(id).ok());
  steps_.clear();
  Lose(2);
  Pass(1);
  EXPECT_EQ(Describe().waiting, 0);
  for (const PipelineStatus& pipeline : Describe().pipelines) {
    EXPECT_EQ(pipeline.workers, (std::vector<std::string>{"w1"}));
    EXPECT_EQ(pipeline.requests, 8);
  }
}

TEST_F(Ready, APipelineNamesWhatItLacks) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  EXPECT_EQ(Missing(), "Layers 2-3 are not on any worker.");
  EXPECT_EQ(Degraded(), "nothing") << "Missing() reports it already";
  Join(2);
  EXPECT_EQ(Missing(), "nothing");
}

TEST_F(Ready, PrefillAndDecodeAreBothNeeded) {
  Start(Chains({{kAll, kPrefill}, {kFront, kDecode}, {kBack, kDecode}, {kAll, kDecode}}));
  Join(1);
  EXPECT_EQ(Missing(), "Decode: the model's layers are not on any worker.");
  Join(2);
  Join(3);
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_EQ(Degraded(), "A decode stage with the model's layers has no worker.")
      << "the second decode pipeline";
  Join(4);
  EXPECT_EQ(Degraded(), "nothing");
  Lose(3);
  EXPECT_EQ(Missing(), "nothing") << "the other pipeline decodes";
  Lose(1);
  EXPECT_EQ(Missing(), "nothing") << "the workers that decode stand in";
  EXPECT_EQ(Degraded(), "A prefill stage with the model's layers has no worker.");
  Lose(4);
  EXPECT_EQ(Missing(),
            "Prefill: the model's layers are not on any worker. Decode: layers 2-3 are not on any "
            "worker.");
}

// Readiness and the choice of a pipeline agree.
TEST_F(Ready, AStageForBothStandsInForPrefillAndDecode) {
  Start(Chains({{kAll, kPrefill}, {kAll, kDecode}, {kAll, kBoth}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  steps_.clear();
  Lose(2);
  Lose(1);
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_EQ(Busy(), (std::set<uint64_t>{3}));
  Lose(3);
  EXPECT_EQ(Missing(), "No worker has joined yet.");
}

// Two first stages share the stage after them, and a fourth stage holds all layers.
TEST_F(Ready, WhatIsMissingFollowsTheEdges) {
  Plan plan{.num_layers = 4};
  plan.stages = {{.layers = kFront}, {.layers = {0, 1}}, {.layers = {1, 4}}, {.layers = kAll}};
  plan.edges = {{std::nullopt, 0, 1}, {std::nullopt, 1, 1}, {0, 2, 1},           {1, 2, 1},
                {2, std::nullopt, 1}, {std::nullopt, 3, 1}, {3, std::nullopt, 1}};
  Layout layout = MakeLayout(plan, {}).value();
  ASSERT_TRUE(layout.pipelines.empty());
  const auto set = [&](const std::set<int>& up) {
    for (int i = 0; i < 4; ++i) {
      Slot& slot = layout.stages[static_cast<size_t>(i)].ranks.front();
      slot.loaded = up.contains(i);
      slot.worker = slot.loaded ? std::optional(WorkerId(1)) : std::nullopt;
    }
  };
  set({});
  EXPECT_EQ(layout.Missing(), "The model's layers are not on any worker.") << "one worker would do";
  set({0});
  EXPECT_EQ(layout.Missing(), "Layers 1-3 are not on any worker.");
  set({0, 1});
  EXPECT_EQ(layout.Missing(), "Layers 1-3 are not on any worker.");
  set({2});
  EXPECT_EQ(layout.Missing(), "Layers 0-1 are not on any worker.");
  set({1, 2});
  EXPECT_EQ(layout.Missing(), std::nullopt);
  EXPECT_EQ(layout.Degraded(), "A stage with layers 0-1 has no worker.");
  set({3});
  EXPECT_EQ(layout.Missing(), std::nullopt);
  layout.stages[3].closing = true;
  EXPECT_EQ(layout.Missing(), "The model's layers are on a worker that is leaving.");
  layout.stages[3].closing = false;
  set({0, 1, 2, 3});
  EXPECT_EQ(layout.Degraded(), std::nullopt);
}

// The first worker decodes and the second computes prompts. A later worker replaces the first.
class Waiting : public ScriptedWorkers {
 protected:
  Waiting() {
    Start(Chains({{kAll, kDecode}, {kAll, kPrefill}}));
    Join(1);
    Join(2);
  }
};

TEST_F(Waiting, WorkersThatDecodeStandInForPrefill) {
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
  steps_.clear();
  Lose(2);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1})) << "its prompt is computed where it will be decoded";
  ASSERT_TRUE(Submit(2).ok());
  EXPECT_EQ(Describe().waiting, 0);
  EXPECT_EQ(Describe().pipelines[0].requests, 2);
  Join(3);  // takes the place of the lost one
  ASSERT_TRUE(Submit(3).ok());
  EXPECT_TRUE(Busy().contains(3)) << "prompts go to a prefill worker again";
}

TEST_F(Waiting, ARequestThatDecodesDoesNotHoldUpPrompts) {
  ASSERT_TRUE(Submit(1).ok());
  EndStep(2);
  ASSERT_EQ(pulls_.size(), 1u) << "its KV is handed over";
  EndPull(0);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  steps_.clear();
  Lose(1);
  EXPECT_EQ(Describe().waiting, 1);
  ASSERT_TRUE(Submit(2).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << "its prompt is computed meanwhile";
  EXPECT_EQ(Describe().waiting, 1);
}

// The prefill worker computes their prompt and one token. Its KV is pulled once, and the others
// begin with the last token of the prompt.
TEST_F(Waiting, SeveralSequencesShareOneHandOver) {
  ASSERT_TRUE(Submit(1, 10, /*n=*/3).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
  EndStep(2);
  EXPECT_EQ(Tokens(1), 1u);
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_TRUE(steps_.empty());
  EndPull(0);
  ASSERT_EQ(steps_.size(), 1u);
  const auto& sequences = steps_[0].second.plan->sequences;
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[0].start, 10);
  EXPECT_EQ(sequences[1].start, 9);
  EndStep(1);
  EXPECT_EQ(Tokens(1), 4u);
}

// A sequence that ends with its first token does not take the others along.
TEST_F(Waiting, ASequenceThatWasAbortedIsNotHandedOver) {
  ASSERT_TRUE(Submit(1, 10, /*n=*/2).ok());
  c_->Abort(RequestId(1), 0, now_);
  EndStep(2);  // computes what the first sequence has begun, for the second
  EndStep(2);
  ASSERT_EQ(pulls_.size(), 1u);
  EndPull(0);
  ASSERT_EQ(steps_.size(), 1u);
  ASSERT_EQ(steps_[0].second.plan->sequences.size(), 1u);
  EXPECT_EQ(Tokens(1), 1u);
}

// Requests of one kind keep the order of arrival.
TEST_F(Waiting, OldestFirst) {
  Lose(1);
  Lose(2);
  for (uint64_t id = 1; id <= 3; ++id) {
    Pass(0.1);
    ASSERT_TRUE(Submit(id).ok());
  }
  Join(3);
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_EQ(steps_[0].second.plan->sequences.size(), 3u);
  EndStep(3);
  // All three were in one step; their first tokens are delivered in the order of arrival.
  std::vector<uint64_t> delivered;
  for (const RequestOutput& output : outputs_) delivered.push_back(output.request.value());
  EXPECT_EQ(delivered, (std::vector<uint64_t>{1, 2, 3}));
}

// Each request gets a route of its own here. The ranks form their group again meanwhile.
TEST_F(Waiting, RequestsAvoidAStageWhoseCollectiveFailed) {
  Plan plan = Chains({{kAll, kBoth}, {kAll, kBoth}});
  plan.stages[1].tensor_parallel = 2;
  Start(plan);
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(Submit(id).ok());
  std::optional<PipelineId> broken;
  for (const PipelineStatus& pipeline : Describe().pipelines) {
    if (std::ranges::count(pipeline.workers, Name(2)) > 0) broken = pipeline.id;
  }
  ASSERT_TRUE(broken);
  load_hangs_ = {2, 3};
  c_->Receive(ConnectionId(2), PipelineBroken{*broken, Unavailable("a rank is late"), {}}, now_);
  Settle();
  for (uint64_t id = 3; id <= 6; ++id) ASSERT_TRUE(Submit(id).ok());
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].requests, 6) << "at the other replica";
  EXPECT_EQ(Describe().waiting, 0);
}

// ---- test steps: stages that are up may still not reach each other

class Tested : public Ready {
 protected:
  PipelineId Only() const { return Describe().pipelines.at(0).id; }
  void PassTest(PipelineId pipeline) {
    c_->Receive(ConnectionId(answers_.at(pipeline)), StepDone{pipeline, {.id = kTestStep}}, now_);
    Settle();
  }
  void Break(uint64_t worker) {
    c_->Receive(ConnectionId(worker), PipelineBroken{Only(), Unavailable("no way to w2"), {}},
                now_);
    Settle();
  }
};

TEST_F(Tested, APipelineServesWhenATestStepHasPassedEveryHop) {
  tests_hang_ = true;
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  EXPECT_EQ(Missing(), "A pipeline of the model's layers is being opened and tested.");
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_TRUE(Busy().empty());
  EXPECT_EQ(Describe().waiting, 1);
  PassTest(Only());
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_EQ(Busy(), std::set<uint64_t>{1});
  EndStep(1);
  EXPECT_EQ(Tokens(1), 1u);
  const auto stale = c_->counters().stale_messages;
  PassTest(Only());
  EXPECT_EQ(c_->counters().stale_messages, stale + 1) << "it was tested already";
}

TEST_F(Tested, WorkersOfTheReleaseBeforeAreNotTested) {
  tests_hang_ = true;
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  millrace::Join old;
  old.identity.protocol = {kProtocolVersionOldest, kProtocolTestSteps - 1};
  Join(1);
  Join(2, old);
  EXPECT_EQ(Missing(), "nothing");
}

TEST_F(Tested, RequestsFailWithTheCauseWhenAPipelineBreaksAgainAndAgain) {
  tests_hang_ = true;
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Missing(), "A pipeline of the model's layers is being opened and tested.");
    Break(1);
    Pass(2.5);
  }
  const std::string why =
      "A pipeline of the model's layers has broken 4 times in a row: no way to w2";
  EXPECT_EQ(Missing(), why);
  EXPECT_EQ(Submit(2).message(), why);
  Pass(52);
  ASSERT_EQ(outputs_.size(), 1u) << "the first one has waited long enough";
  EXPECT_NE(outputs_[0].error.message().find(why), std::string::npos)
      << outputs_[0].error.message();
  PassTest(Only());
  EXPECT_EQ(Missing(), "nothing");
  EXPECT_TRUE(Submit(3).ok());
  EXPECT_EQ(Busy(), std::set<uint64_t>{1});
}

// Nobody admits to the step, so the worker that answers it is asked to go.
TEST_F(Tested, ATestThatDoesNotComeBackIsNoticed) {
  tests_hang_ = true;
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  Pass(65);
  EXPECT_EQ(c_->counters().workers_lost, 1u);
  EXPECT_EQ(Describe().workers.at(0).name, "w1");
}

}  // namespace
}  // namespace millrace::cluster
