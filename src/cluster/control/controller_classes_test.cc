// Workers of two bit classes in one cluster: nothing passes from one to the other, and a request
// keeps to the class that computed its first token.
#include <gtest/gtest.h>

#include "cluster/control/layout/layout.h"
#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class Classes : public ScriptedWorkers {
 protected:
  void Begin(bool cross_class_replay, std::optional<Plan> plan = {}) {
    ControllerOptions options = Options();
    options.identity.model_fingerprint = "model";
    options.cross_class_replay = cross_class_replay;
    options.prefers_cached = false;  // short prompts go the usual way
    options.plan = std::move(plan);
    Start(std::move(options));
  }
  void JoinOf(const std::string& numeric_class, uint64_t worker) {
    millrace::Join join;
    join.identity.model_fingerprint = "model";
    join.identity.numeric_class = numeric_class;
    Join(worker, std::move(join));
  }
  // Of the outputs that name one.
  std::vector<std::string> FingerprintsOf(uint64_t id) const {
    std::vector<std::string> all;
    for (const RequestOutput& output : outputs_) {
      if (output.request == RequestId(id) && !output.fingerprint.empty()) {
        all.push_back(output.fingerprint);
      }
    }
    return all;
  }
  std::string FingerprintOf(uint64_t worker) const {
    for (const WorkerStatus& status : Describe().workers) {
      if (status.name == Name(worker)) return status.fingerprint;
    }
    return "no member";
  }
  std::string ErrorOf(uint64_t id) const {
    for (const RequestOutput& output : outputs_) {
      if (output.request == RequestId(id) && output.finish) return output.error.message();
    }
    return "it has not ended";
  }
  int64_t RequestsAt(uint64_t worker) const {
    int64_t requests = 0;
    for (const PipelineStatus& pipeline : Describe().pipelines) {
      if (pipeline.workers.front() == Name(worker)) requests += pipeline.requests;
    }
    return requests;
  }
  std::string NoteOf(uint64_t worker) const {
    for (const WorkerStatus& status : Describe().workers) {
      if (status.name == Name(worker)) return status.note;
    }
    return "no member";
  }
};

TEST_F(Classes, AWorkerOfAnotherClassIsSpareUntilItsTurn) {
  Begin(false);
  JoinOf("a", 1);
  JoinOf("b", 2);
  EXPECT_EQ(Describe().counters.joins_refused, 0u);
  EXPECT_EQ(NoteOf(1), "");
  EXPECT_EQ(NoteOf(2).substr(0, 52), "it is spare, because its bits differ from those of t");
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  steps_.clear();
  Lose(1);
  Pass(1.5);
  EXPECT_TRUE(Busy().empty()) << "the first may come back";
  Pass(1);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << "no token was delivered, so any class may run it";
  const std::string second = FingerprintOf(2);
  EndStep(2);
  EXPECT_EQ(FingerprintsOf(1), std::vector{second});
}

TEST_F(Classes, ARequestWaitsForItsClassAndFails) {
  Begin(false);
  JoinOf("a", 1);
  JoinOf("b", 2);
  const std::string first = FingerprintOf(1);
  ASSERT_TRUE(Submit(1).ok());
  EndStep(1);
  EXPECT_EQ(FingerprintsOf(1), std::vector{first});
  steps_.clear();
  Lose(1);
  Pass(5);
  ASSERT_TRUE(Submit(2).ok()) << "a request behind it is not held up";
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2}));
  EXPECT_EQ(Describe().waiting, 1);
  Pass(60);
  EXPECT_EQ(ErrorOf(1),
            "waited 60 s for a pipeline. Its tokens so far are of workers with other "
            "bits (" +
                first +
                "), and none of them serves now. Start such a worker, or start the "
                "controller with --cross-class-replay to continue such requests with "
                "other bits.");
  EXPECT_EQ(Tokens(1), 1u);
}

TEST_F(Classes, ARequestContinuesInItsClassWhenThatIsBack) {
  Begin(false);
  JoinOf("a", 1);
  JoinOf("b", 2);
  ASSERT_TRUE(Submit(1).ok());
  EndStep(1);
  steps_.clear();
  Lose(1);
  Pass(1);
  JoinOf("a", 3);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{3}));
  EndStep(3);
  EXPECT_EQ(FingerprintsOf(1).size(), 1u);
}

TEST_F(Classes, WithTheOptionARequestIsReplayedInAnotherClass) {
  Begin(true);
  JoinOf("a", 1);
  JoinOf("b", 2);
  const std::string first = FingerprintOf(1), second = FingerprintOf(2);
  ASSERT_TRUE(Submit(1).ok());
  EndStep(1);
  EndStep(1);
  steps_.clear();
  Lose(1);
  Pass(3);
  ASSERT_EQ(Busy(), (std::set<uint64_t>{2}));
  EXPECT_EQ(steps_.front().second.plan->tokens.size(), 12u) << "the prompt and two tokens";
  EXPECT_TRUE(pulls_.empty());
  EndStep(2);
  EXPECT_EQ(FingerprintsOf(1), (std::vector{first, second}));
  EXPECT_EQ(Tokens(1), 3u);
}

// Two replicas of unlike classes: requests use both, and none changes to the other.
TEST_F(Classes, ReplicasOfTwoClassesShareNewRequests) {
  Begin(false, Chains({{kAll, kBoth}, {kAll, kBoth}}));
  JoinOf("a", 1);
  JoinOf("b", 2);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1, 2}));
  for (int i = 0; i < 4; ++i) {
    EndStep(1);
    EndStep(2);
  }
  // KV of a running request does not go to the other class.
  for (uint64_t id = 1; id <= 4; ++id) {
    const bool here = FingerprintsOf(id) == std::vector{FingerprintOf(1)};
    EXPECT_EQ(c_->Migrate(RequestId(id), Name(here ? 2 : 1), now_).message(),
              "its workers compute other bits, and KV stays in one numeric class; choose a worker "
              "of the class that runs the request");
  }
  ASSERT_TRUE(c_->DrainWorker(Name(1)).ok());
  Settle();
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1, 2})) << "what has begun ends where it is";
  EXPECT_TRUE(pulls_.empty());
  for (uint64_t id = 5; id <= 6; ++id) ASSERT_TRUE(Submit(id).ok());
  for (int i = 0; i < 80 && !Busy().empty(); ++i) EndStep(*Busy().begin());
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{1}));
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(FingerprintsOf(id).size(), 1u) << id;
  EXPECT_EQ(FingerprintsOf(6), std::vector{FingerprintOf(2)});
}

TEST_F(Classes, APlanThatJoinsClassesIsRefused) {
  Begin(false);
  JoinOf("a", 1);
  JoinOf("b", 2);
  Plan plan = EvenPlan("m", kLayers, 2, 1);
  plan.stages[0].nodes = {0};
  plan.stages[1].nodes = {1};
  EXPECT_EQ(c_->ApplyPlan(plan, {Name(1), Name(2)}).code(), StatusCode::kFailedPrecondition);
  Settle();
  EXPECT_FALSE(Describe().missing.has_value());
  EXPECT_EQ(Describe().epoch, 1);
}

TEST_F(Classes, APlanForUnknownWorkersIsRefused) {
  Begin(false);
  JoinOf("a", 1);
  JoinOf("a", 2);
  Plan plan = EvenPlan("m", kLayers, 2, 1);
  plan.stages[0].nodes = {0};
  plan.stages[1].nodes = {1};
  EXPECT_EQ(c_->ApplyPlan(plan, {Name(1), "w7"}).message(),
            "the plan names w7, and no worker of that name has joined; `millrace status` lists the "
            "workers");
  EXPECT_EQ(c_->ApplyPlan(plan, {"w9", "w7"}).message(),
            "the plan names w7, w9, and no worker of these names has joined; `millrace status` "
            "lists the workers");
  EXPECT_EQ(c_->newest_epoch(), 1);
  EXPECT_TRUE(c_->ApplyPlan(plan, {Name(1), Name(2)}).ok());
}

// The class that joined first cannot fill the pipeline.
TEST_F(Classes, AnotherClassTakesAPipelineThatItCanFill) {
  Begin(false, EvenPlan("m", kLayers, 2, 1));
  JoinOf("b", 1);
  JoinOf("a", 2);
  JoinOf("a", 3);
  EXPECT_EQ(Describe().missing, "Layers 2-3 are not on any worker.");
  Pass(2.5);
  EXPECT_FALSE(Describe().missing.has_value());
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].workers, (std::vector<std::string>{"w2", "w3"}));
}

// Prefill in a class without a pipeline that decodes would compute first tokens that nobody could
// continue.
TEST_F(Classes, PromptsGoWhereTheirAnswersCanBeComputed) {
  Plan plan = Chains({{kAll, kPrefill}, {kAll, kDecode}, {kAll, kBoth}});
  plan.edges = {
      {std::nullopt, 0, 1, EdgePhase::kPrefill}, {0, std::nullopt, 1, EdgePhase::kPrefill},
      {std::nullopt, 1, 1, EdgePhase::kDecode},  {1, std::nullopt, 1, EdgePhase::kDecode},
      {std::nullopt, 2, 1, EdgePhase::kBoth},    {2, std::nullopt, 1, EdgePhase::kBoth}};
  Begin(false, plan);
  JoinOf("a", 1);
  JoinOf("a", 2);
  JoinOf("b", 3);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1, 3}));
  EndStep(1);
  EXPECT_FALSE(pulls_.empty());
  for (const auto& [worker, pull] : pulls_) EXPECT_EQ(worker, 2u) << "KV stays in its class";
  Lose(2);
  const int64_t before = RequestsAt(1);
  for (uint64_t id = 5; id <= 8; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_EQ(RequestsAt(1), before);
  EXPECT_GE(RequestsAt(3), 4);
}

// After a restart the tokens of a recovered request tell its class.
TEST_F(Classes, ARecoveredRequestBelongsToItsClass) {
  Begin(false);
  JoinOf("a", 1);
  const std::string first = FingerprintOf(1);
  Begin(false);
  sched::NewRequest request{.id = RequestId(1)};
  request.prompt = std::make_shared<const std::vector<TokenId>>(10, 5);
  request.params = std::make_shared<const SamplingParams>();
  request.resumed = {{{9, 9}, false}};
  ASSERT_TRUE(c_->Submit(std::move(request), now_, first).ok());
  JoinOf("b", 2);
  EXPECT_TRUE(Busy().empty()) << "workers of its class may join";
  JoinOf("a", 3);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{3}));
  EndStep(3);
  EXPECT_TRUE(FingerprintsOf(1).empty()) << "the client knows it";
}

}  // namespace
}  // namespace millrace::cluster
