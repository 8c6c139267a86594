// Workers of two protocol versions in one cluster: what only newer ones can compute goes to them,
// and nobody else notices.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class Versions : public ScriptedWorkers {
 protected:
  void Begin(const Stages& stages) {
    ControllerOptions options = Options();
    options.token_table = TokenTable{"digest", std::make_shared<const std::string>("bytes")};
    options.plan = Chains(stages);
    Start(std::move(options));
  }
  void JoinOld(uint64_t worker) {
    millrace::Join join;
    join.identity.protocol = {kProtocolVersionOldest, kProtocolVersionOldest};
    Join(worker, std::move(join));
  }
  static SamplingParams Constrained() {
    SamplingParams params;
    params.grammar = "a grammar";
    return params;
  }
  // One of each that protocol 6 has brought.
  static std::vector<SamplingParams> Newer() {
    std::vector<SamplingParams> all(5);
    all[0].grammar = "a grammar";
    all[1].pooling = Pooling::kMean;
    all[2].n = 2;
    all[2].beam_search = true;
    all[2].temperature = 0;
    all[3].bad_words = {{3}};
    all[4].logprobs = 0;
    all[4].logprob_token_ids = {4};
    return all;
  }
  std::string ErrorOf(uint64_t id) const {
    for (const RequestOutput& output : outputs_) {
      if (output.request == RequestId(id) && output.finish) return output.error.message();
    }
    return "it has not ended";
  }
};

TEST_F(Versions, AnOldSpareChangesNothing) {
  Begin({{kAll, kBoth}});
  Join(1);
  JoinOld(2);
  uint64_t id = 0;
  for (const SamplingParams& params : Newer()) {
    const Status submitted = SubmitAs(++id, params);
    EXPECT_TRUE(submitted.ok()) << submitted.message();
  }
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  EXPECT_EQ(Describe().waiting, 0);
}

TEST_F(Versions, AnOldSpareMayJoinWhileConstrainedRequestsRun) {
  Begin({{kAll, kBoth}});
  Join(1);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  JoinOld(2);
  EXPECT_EQ(Describe().counters.joins_refused, 0u);
  EXPECT_EQ(Describe().workers.size(), 2u);
}

TEST_F(Versions, OnlyPipelinesOfNewWorkersGetThem) {
  Begin({{kAll, kBoth}, {kAll, kBoth}, {kFront, kBoth}, {kBack, kBoth}});
  JoinOld(1);
  Join(2);
  JoinOld(3);
  Join(4);
  uint64_t id = 0;
  for (int round = 0; round < 4; ++round) {
    for (const SamplingParams& params : Newer()) ASSERT_TRUE(SubmitAs(++id, params).ok());
  }
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
  ASSERT_TRUE(Submit(100).ok());
  ASSERT_TRUE(Submit(101).ok());
  EXPECT_GT(Busy().size(), 1u) << "others are for all";
}

TEST_F(Versions, IfAllPipelinesAreOldTheTextNamesNoWorker) {
  Begin({{kFront, kBoth}, {kBack, kBoth}});
  Join(1);
  JoinOld(2);
  for (const SamplingParams& params : Newer()) {
    const Status refused = SubmitAs(1, params);
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_EQ(refused.message().find("w2"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("older version"), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(Submit(2).ok());
}

TEST_F(Versions, TheyWaitWhileTheNewPipelineIsDown) {
  Begin({{kAll, kBoth}, {kAll, kBoth}});
  Join(1);
  JoinOld(2);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  EndStep(1);
  steps_.clear();
  Lose(1);
  ASSERT_TRUE(SubmitAs(2, Constrained()).ok()) << "the new worker may come back";
  ASSERT_TRUE(Submit(3).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << "who can run elsewhere does not wait";
  EXPECT_EQ(Describe().waiting, 2);
  steps_.clear();
  Join(4);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{4}));
  EXPECT_EQ(Describe().waiting, 0);
}

TEST_F(Versions, TheyFailIfOnlyOldWorkersAreLeft) {
  Begin({{kAll, kBoth}});
  Join(1);
  JoinOld(2);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  EndStep(1);
  steps_.clear();
  Lose(1);
  Pass(3);
  EXPECT_TRUE(Busy().empty());
  Pass(60);
  EXPECT_NE(ErrorOf(1).find("older version"), std::string::npos) << ErrorOf(1);
}

TEST_F(Versions, ANewSpareTakesTheFreePlaceBeforeAnOldOne) {
  Begin({{kAll, kBoth}});
  Join(1);
  JoinOld(2);
  Join(3);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  steps_.clear();
  Lose(1);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{3}));
}

TEST_F(Versions, PromptsDoNotGoWhereOldWorkersWouldDecodeThem) {
  Begin({{kAll, kPrefill}, {kAll, kDecode}});
  Join(1);
  JoinOld(2);
  EXPECT_EQ(SubmitAs(1, Constrained()).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Submit(2).ok());
}

TEST_F(Versions, AnOldPrefillWorkerIsPassedOver) {
  Begin({{kAll, kPrefill}, {kAll, kDecode}});
  JoinOld(1);
  Join(2);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
}

TEST_F(Versions, AnOperatorCannotMoveThemToOldWorkers) {
  Begin({{kAll, kBoth}, {kAll, kBoth}});
  Join(1);
  JoinOld(2);
  ASSERT_TRUE(SubmitAs(1, Constrained()).ok());
  EndStep(1);
  EXPECT_EQ(c_->Migrate(RequestId(1), "w2", now_).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(c_->DrainWorker("w1").ok());
  Settle();
  for (int i = 0; i < 5 && !steps_.empty(); ++i) EndStep(1);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1})) << "it ends where it is";
}

}  // namespace
}  // namespace millrace::cluster
