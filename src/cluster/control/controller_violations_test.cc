// Workers that send what no worker may send: only their own sessions end, and no client notices.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

constexpr int kVocab = 100, kVector = 3, kEos = 90;

// Takes even tokens, and token 90 as the end after two of them.
class EvenTokens : public GrammarSource {
 public:
  std::unique_ptr<TokenMatcher> MatcherOf(const std::string&) override {
    return std::make_unique<Matcher>();
  }

 private:
  class Matcher : public TokenMatcher {
    Result<std::span<const uint32_t>> Allowed(std::span<const TokenId>) override {
      return Unimplemented("only results are checked here");
    }
    bool Takes(std::span<const TokenId> output, TokenId next, bool ends) override {
      return ends ? output.size() == 2 : next % 2 == 0;
    }
  };
};

class Violations : public ScriptedWorkers {
 protected:
  void Begin(const Stages& stages) {
    ControllerOptions options = Options();
    options.plan = Chains(stages);
    options.scheduler.check_results = {kVocab, kVector, std::make_shared<EvenTokens>()};
    options.scheduler.eos_token_ids = {kEos};
    options.token_table = TokenTable{"digest", std::make_shared<const std::string>("bytes")};
    Start(std::move(options));
  }
  std::set<std::string> Members() const {
    std::set<std::string> names;
    for (const WorkerStatus& worker : Describe().workers) names.insert(worker.name);
    return names;
  }
  void Says(uint64_t worker, ToController message) {
    c_->Receive(ConnectionId(worker), std::move(message), now_);
    Settle();
  }
  // The pipeline and the oldest step of a worker that has one in flight.
  PipelineId PipelineAt(uint64_t worker) const {
    for (const auto& [at, step] : steps_) {
      if (at == worker) return step.pipeline;
    }
    return PipelineId();
  }
  StepDone Forged(uint64_t worker) const {
    for (const auto& [at, step] : steps_) {
      if (at != worker) continue;
      StepResult result{.id = step.plan->id};
      for (const SequenceStep& s : step.plan->sequences) {
        result.sequences.push_back({.id = s.id, .token = 66});
      }
      return {step.pipeline, std::move(result)};
    }
    return {};
  }
  // One request runs on worker 1, and worker 2 is spare.
  void OneRuns(SamplingParams params = {}) {
    Begin({{kAll, kBoth}});
    Join(1);
    Join(2);
    ASSERT_TRUE(SubmitAs(1, std::move(params)).ok());
    ASSERT_EQ(Busy(), (std::set<uint64_t>{1}));
  }
  // Worker 1 answers the step of the request with a lie, and worker 2 computes it again.
  void LiesOnce(SamplingParams params, const std::function<void(SequenceResult&)>& lie,
                const std::string& what) {
    outputs_.clear();
    steps_.clear();
    OneRuns(params);
    StepDone lying = Forged(1);
    lying.result.sequences[0].token = 10;
    lie(lying.result.sequences[0]);
    steps_.clear();
    Says(1, std::move(lying));
    EXPECT_EQ(Members(), (std::set<std::string>{"w2"})) << what;
    EXPECT_TRUE(outputs_.empty()) << what;
    EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << what;
    EXPECT_EQ(Describe().counters.protocol_violations, 1u) << what;
  }
};

TEST_F(Violations, ASpareCannotAnswerOthersSteps) {
  OneRuns();
  Says(2, Forged(1));
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
  EXPECT_TRUE(outputs_.empty());
  EndStep(1);
  ASSERT_EQ(Tokens(1), 1u);
  EXPECT_EQ(outputs_.front().tokens.front(), 9) << "of the worker that computed it";
  EXPECT_EQ(Describe().counters.protocol_violations, 1u);
  EXPECT_EQ(Describe().counters.pipelines_lost, 0u);
}

TEST_F(Violations, OnlyTheLastStageAnswers) {
  Begin({{kFront, kBoth}, {kBack, kBoth}});
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  Says(1, Forged(1));
  EXPECT_EQ(Members(), (std::set<std::string>{"w2"}));
  EXPECT_TRUE(outputs_.empty());
}

TEST_F(Violations, OnlyRankZeroAnswers) {
  ControllerOptions options = Options();
  options.plan = EvenPlan("m", kLayers, 1, 2);
  Start(std::move(options));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  Says(2, Forged(1));
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
}

TEST_F(Violations, ASpareCannotBreakOrOpenOthersPipelines) {
  const auto messages = [&](PipelineId pipeline) {
    return std::vector<ToController>{PipelineBroken{pipeline, Unavailable("no"), {}},
                                     PipelineBroken{pipeline, Internal("no"), WorkerId(1)}};
  };
  for (size_t i = 0; i < 2; ++i) {
    steps_.clear();
    OneRuns();
    Says(2, messages(PipelineAt(1))[i]);
    EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
    EXPECT_EQ(Describe().counters.pipelines_lost, 0u);
  }
  Begin({{kAll, kBoth}});
  open_hangs_.insert(1);
  Join(1);
  Join(2);
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  Says(2, PipelineOpened{Describe().pipelines.front().id, Internal("no memory")});
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
  EXPECT_EQ(Describe().counters.pipelines_lost, 0u);
}

TEST_F(Violations, NobodyIsSuspectedWhoIsNotInThePipeline) {
  OneRuns();
  WorkerId spare;
  for (const WorkerStatus& worker : Describe().workers) {
    if (worker.name == "w2") spare = worker.id;
  }
  const PipelineId pipeline = PipelineAt(1);
  steps_.clear();
  Says(1, PipelineBroken{pipeline, Unavailable("it is gone"), spare});
  EXPECT_EQ(Members(), (std::set<std::string>{"w2"}));
}

TEST_F(Violations, ASpareCannotReportOthersShards) {
  for (const bool loaded : {false, true}) {
    steps_.clear();
    loads_.clear();
    OneRuns();
    const ShardId shard = loads_.front().second.shard;
    if (loaded) {
      Says(2, ShardLoaded{.shard = shard, .status = Internal("it is gone")});
    } else {
      Says(2, ShardProgress{shard, 1, 2});
    }
    EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
  }
}

TEST_F(Violations, APullIsEndedByItsPuller) {
  Begin({{kAll, kPrefill}, {kAll, kDecode}});
  Join(1);
  Join(2);
  Join(3);
  ASSERT_TRUE(Submit(1, 40, 1, 8).ok());
  EndStep(*Busy().begin());
  ASSERT_EQ(pulls_.size(), 1u);
  const TransferId transfer = pulls_[0].second.transfer;
  Says(3, PullDone{.transfer = transfer});
  EXPECT_EQ(Members(), (std::set<std::string>{"w1", "w2"}));
  EndPull(0);
  EXPECT_EQ(Busy().size(), 1u) << "it goes on where its KV is";
  EXPECT_EQ(Describe().counters.protocol_violations, 1u);
}

TEST_F(Violations, LateMessagesAreDropped) {
  OneRuns();
  const StepDone late = Forged(1);
  steps_.clear();
  Says(1, PipelineBroken{late.pipeline, Internal("a step failed"), {}});
  const uint64_t stale = Describe().counters.stale_messages;
  Says(1, late);
  Says(1, PipelineBroken{late.pipeline, Internal("a step failed"), {}});
  Says(1, PipelineOpened{late.pipeline});
  Says(1, PullDone{.transfer = TransferId(7)});
  Says(1, ShardLoaded{.shard = ShardId(7)});
  EXPECT_EQ(Describe().counters.stale_messages, stale + 5);
  EXPECT_EQ(Members().size(), 2u);
}

TEST_F(Violations, ResultsThatNoModelReturns) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const PositionLogprobs two{{9, -1, 1}, {{9, -1, 1}, {10, -2, 2}}};
  LiesOnce(
      {}, [](auto& r) { r.token = kVocab; }, "a token beyond the vocabulary");
  LiesOnce(
      {}, [](auto& r) { r.token = std::numeric_limits<int32_t>::max(); }, "the largest");
  LiesOnce(
      {}, [](auto& r) { r.token.reset(); }, "no token");
  LiesOnce(
      {}, [](auto& r) { r.id = SequenceId(99); }, "another sequence");
  LiesOnce(
      {}, [&](auto& r) { r.logprobs = two; }, "log-probabilities that nobody asked for");
  LiesOnce(
      {}, [&](auto& r) { r.prompt_logprobs.assign(5, two); }, "of the prompt");
  SamplingParams params;
  params.allowed_token_ids = {10, 11};
  LiesOnce(
      params, [](auto& r) { r.token = 12; }, "a token that is not allowed");
  params = {};
  params.logprobs = 1;
  LiesOnce(
      params, [&](auto& r) { r.logprobs = two; }, "more log-probabilities than asked for");
  LiesOnce(
      params,
      [&](auto& r) {
        r.logprobs = PositionLogprobs{{kVocab, -1, 1}, {}};
      },
      "of a token beyond the vocabulary");
  params = {};
  params.prompt_logprobs = 1;
  LiesOnce(
      params, [&](auto& r) { r.prompt_logprobs.assign(1, two); }, "too many at a position");
  LiesOnce(
      params,
      [](auto& r) {
        r.prompt_logprobs.assign(11, {{9, -1, 1}, {}});
      },
      "more positions than tokens");
  params = {};
  params.pooling = Pooling::kMean;
  LiesOnce(
      params,
      [](auto& r) {
        r.pooled = {1, 2};
      },
      "a short vector");
  LiesOnce(
      params,
      [](auto& r) {
        r.pooled = {1, 2, 3, 4};
      },
      "a long vector");
  LiesOnce(
      params,
      [&](auto& r) {
        r.pooled = {1, nan, 3};
      },
      "a vector with NaN");
  LiesOnce(
      params,
      [](auto& r) {
        r.pooled = {1, 2, std::numeric_limits<float>::infinity()};
      },
      "with an infinity");
}

TEST_F(Violations, TokensOutsideTheGrammar) {
  SamplingParams params;
  params.grammar = "even";
  LiesOnce(
      params, [](auto& r) { r.token = 11; }, "a token that does not match");
  LiesOnce(
      params, [](auto& r) { r.token = kEos; }, "an end that comes too early");
  steps_.clear();
  OneRuns(params);
  for (const TokenId token : {8, 66, kEos}) {
    StepDone right = Forged(1);
    right.result.sequences[0].token = token;
    steps_.clear();
    Says(1, std::move(right));
  }
  EXPECT_EQ(Tokens(1), 3u);
  EXPECT_EQ(Describe().requests, 0);
  EXPECT_EQ(Members().size(), 2u);
}

TEST_F(Violations, StepsThatDoNotFit) {
  for (const bool fails : {false, true}) {
    steps_.clear();
    outputs_.clear();
    OneRuns();
    StepDone lying = Forged(1);
    if (fails) {
      lying.result.error = Internal("no");
    } else {
      lying.result.sequences.clear();
    }
    steps_.clear();
    Says(1, std::move(lying));
    EXPECT_EQ(Members(), (std::set<std::string>{"w2"}));
    EXPECT_TRUE(outputs_.empty());
    EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
  }
}

TEST_F(Violations, OtherRequestsOfTheStepKeepTheirTokens) {
  OneRuns();
  EndStep(1);
  ASSERT_TRUE(Submit(2).ok());
  EndStep(1);
  StepDone lying = Forged(1);
  ASSERT_EQ(lying.result.sequences.size(), 2u);
  lying.result.sequences[1].token = kVocab;
  steps_.clear();
  const size_t before = Tokens(1) + Tokens(2);
  Says(1, std::move(lying));
  EXPECT_EQ(Tokens(1) + Tokens(2), before + 1);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << "both go on";
  EXPECT_EQ(Describe().requests, 2);
}

TEST_F(Violations, WhatWasAskedForIsTaken) {
  SamplingParams params;
  params.allowed_token_ids = {66};
  params.logprobs = 1;
  params.logprob_token_ids = {5};
  params.prompt_logprobs = 0;
  OneRuns(params);
  StepDone right = Forged(1);
  right.result.sequences[0].logprobs = PositionLogprobs{{66, -1, 1}, {{66, -1, 1}, {5, -2, 2}}};
  right.result.sequences[0].prompt_logprobs.assign(9, {{5, -1, 1}, {}});
  steps_.clear();
  Says(1, std::move(right));
  EXPECT_EQ(Tokens(1), 1u);
  EXPECT_EQ(Members().size(), 2u);
}

}  // namespace
}  // namespace millrace::cluster
