// The worker's state machine with peers and controllers that repeat messages, leave gaps or
// reconnect.
#include "cluster/worker/worker_core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/worker/testing_core.h"

namespace millrace::cluster {
namespace {

constexpr PipelineId kPipeline{7};
constexpr ShardId kShard{3};

MachineNotice LeavesAt(double seconds) {
  return {.origin = {NoticeSource::kAws, NoticeKind::kTerminate},
          .deadline = Time{} + Duration::Seconds(seconds)};
}

// Opens a pipeline with two hops, of which the worker is `hop`.
void OpenHop(WorkerCore& core, int hop) {
  const LayerRange layers[] = {{0, 2}, {2, 4}};
  Welcomed(core, 1);
  core.FromController(Load(kShard, layers[hop]), {});
  core.LoadEnded({.shard = kShard}, kLimits);
  WorkerAddress other;
  other.incarnation = Incarnation(10);
  std::vector<PipelineHop> hops = {{layers[0], {other}, {ShardId(2)}},
                                   {layers[1], {other}, {ShardId(2)}}};
  hops[static_cast<size_t>(hop)] = {layers[hop], {WorkerAddress()}, {kShard}};
  core.FromController(OpenPipeline{.pipeline = kPipeline,
                                   .hops = hops,
                                   .hop = hop,
                                   .block_size = 4,
                                   .num_blocks = 8,
                                   .max_batched_tokens = 64},
                      {});
  core.PipelineStarted(kPipeline, OkStatus());
  (void)Take<SendUp>(core);
}
void OpenSecondHop(WorkerCore& core) { OpenHop(core, 1); }

std::shared_ptr<StepPlan> Plan(uint64_t id) {
  auto plan = std::make_shared<StepPlan>();
  plan->id = StepId(id);
  if (id == 1) {
    plan->started = {{SequenceId(1), std::make_shared<const SamplingParams>(), 0,
                      std::make_shared<const std::vector<TokenId>>(1, 5)}};
  }
  plan->tokens = {5};
  plan->blocks = {0};
  plan->sequences = {{SequenceId(1), static_cast<int>(id) - 1, 1, 0, 0, 0, 1}};
  return plan;
}
PipelineStep Step(uint64_t id) { return {kPipeline, Plan(id)}; }

ActivationBytes SomeActivations() { return std::make_shared<const std::vector<std::byte>>(8); }

TEST(WorkerCore, ARepeatedStepRunsOnce) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromPeer(Step(1), {});
  core.FromPeer(Step(1), {});
  core.ActivationsArrived(kPipeline, StepId(1), SomeActivations());
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), {});
  // A repetition after the step has run is dropped, and so are its activations.
  core.FromPeer(Step(1), {});
  core.ActivationsArrived(kPipeline, StepId(1), SomeActivations());
  EXPECT_FALSE(core.NextBatch({}));
  EXPECT_EQ(core.counters().stale_steps, 2u);
  EXPECT_EQ(core.counters().stale_activations, 1u);
  core.FromPeer(Step(2), {});
  core.ActivationsArrived(kPipeline, StepId(2), SomeActivations());
  EXPECT_TRUE(core.NextBatch({}));
}

// A step that uses returned blocks again may come another way and arrive first. It must not run
// before the blocks' memory was given back, or its KV would be lost.
TEST(WorkerCore, AStepWaitsForTheReturnOfItsBlocks) {
  WorkerCore core({});
  OpenSecondHop(core);
  PipelineStep step = Step(1);
  step.returns = 2;
  core.FromPeer(step, {});
  core.ActivationsArrived(kPipeline, StepId(1), SomeActivations());
  EXPECT_FALSE(core.NextBatch({}));
  core.FromController(ReturnBlocks{kPipeline, 1, {3, 4}}, {});
  EXPECT_FALSE(core.NextBatch({}));
  core.FromController(ReturnBlocks{kPipeline, 2, {0}}, {});
  const auto returned = Take<ReturnMemory>(core);
  ASSERT_EQ(returned.size(), 2u);
  EXPECT_EQ(returned[0].blocks, (std::vector<BlockIndex>{3, 4}));
  EXPECT_EQ(returned[1].shard, kShard);
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), {});
  // A repetition comes too late: the blocks may be in use again.
  core.FromController(ReturnBlocks{kPipeline, 2, {0}}, {});
  EXPECT_TRUE(Take<ReturnMemory>(core).empty());
  core.FromController(ReturnBlocks{kPipeline, 3, {8}}, {});
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u) << "block 8 does not exist";
  EXPECT_EQ(std::get<PipelineBroken>(sent[0].message).pipeline, kPipeline);
}

TEST(WorkerCore, AMissingStepBreaksThePipeline) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromPeer(Step(1), {});
  core.FromPeer(Step(3), {});
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<PipelineBroken>(sent[0].message).pipeline, kPipeline);
}

// Plans are checked as they arrive, against what the waiting ones will have done by then. The
// limits are the pipeline's and the stage's.
TEST(WorkerCore, AnUnsoundPlanBreaksThePipelineBeforeItRuns) {
  const std::vector<void (*)(StepPlan&)> edits = {
      [](StepPlan& plan) { plan.sequences[0].id = SequenceId(2); },
      [](StepPlan& plan) { plan.blocks[0] = 8; },
      [](StepPlan& plan) { plan.tokens[0] = 100; },
      [](StepPlan& plan) { plan.sequences[0].start = 64; },
      [](StepPlan& plan) { plan.sequences[0].keep_blocks = 2; },
  };
  for (size_t i = 0; i <= edits.size(); ++i) {
    WorkerCore core({});
    OpenHop(core, 0);
    core.FromController(Step(1), {});
    auto plan = Plan(2);
    plan->sequences[0].keep_blocks = 1;  // it has one by then
    if (i < edits.size()) edits[i](*plan);
    core.FromController(PipelineStep{kPipeline, plan}, {});
    EXPECT_EQ(core.counters().refused_plans, i < edits.size() ? 1u : 0u) << i;
    EXPECT_EQ(Take<SendUp>(core).size(), i < edits.size() ? 1u : 0u) << i;
  }
}

TEST(WorkerCore, APlanIsNotCopiedOnItsWay) {
  WorkerCore core({});
  OpenHop(core, 0);
  const std::shared_ptr<const StepPlan> plan = Plan(1);
  core.FromController(PipelineStep{kPipeline, plan}, {});
  const auto sent = Take<SendToPeer>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<PipelineStep>(sent[0].message).plan, plan);
  const auto batch = core.NextBatch({});
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->parts[0].plan, plan);
  EXPECT_EQ(batch->parts[0].sequences[0].tokens.data(), plan->tokens.data());
}

// It passes without a batch, on both ways to the next hop.
TEST(WorkerCore, ATestStepGoesTheWayOfTheOthers) {
  auto plan = std::make_shared<StepPlan>();
  plan->id = kTestStep;
  const PipelineStep test{kPipeline, plan};
  WorkerCore first({});
  OpenHop(first, 0);
  first.FromController(test, {});
  std::vector<WorkerAction> actions;
  first.TakeActions(actions);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_TRUE(std::get<PipelineStep>(std::get<SendToPeer>(actions[0]).message).plan->IsTest());
  EXPECT_EQ(std::get<SendActivations>(actions[1]).step, kTestStep);
  EXPECT_FALSE(first.NextBatch({}));
  EXPECT_EQ(first.counters().batches, 0u);

  WorkerCore last({});
  OpenSecondHop(last);
  last.FromPeer(test, {});
  EXPECT_TRUE(Take<SendUp>(last).empty()) << "the activations have not arrived";
  last.ActivationsArrived(kPipeline, kTestStep, SomeActivations());
  const auto sent = Take<SendUp>(last);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<StepDone>(sent[0].message).result.id, kTestStep);
  last.FromPeer(Step(1), {});
  last.ActivationsArrived(kPipeline, StepId(1), SomeActivations());
  EXPECT_TRUE(last.NextBatch({}));
}

// After a failed step the stage's tables are wrong, so all later steps would fail.
TEST(WorkerCore, AFailedPartBreaksItsPipelineAtEveryHop) {
  for (int hop : {0, 1}) {
    WorkerCore core({});
    OpenHop(core, hop);
    core.FromPeer(Step(1), {});
    if (hop == 1) core.ActivationsArrived(kPipeline, StepId(1), SomeActivations());
    ASSERT_TRUE(core.NextBatch({}));
    (void)Take<SendUp>(core);
    std::vector<PartOutput> outputs(1);
    outputs[0].result.error = InvalidArgument("a malformed block table");
    core.BatchEnded(OkStatus(), std::move(outputs), {});
    std::vector<WorkerAction> actions;
    core.TakeActions(actions);
    ASSERT_EQ(actions.size(), 1u) << "hop " << hop;  // neither activations nor a result
    const auto& broken = std::get<PipelineBroken>(std::get<SendUp>(std::move(actions[0])).message);
    EXPECT_EQ(broken.pipeline, kPipeline);
    EXPECT_EQ(broken.reason.message(), "a malformed block table");
    EXPECT_FALSE(broken.suspect);
    core.FromPeer(Step(2), {});
    EXPECT_FALSE(core.NextBatch({}));
  }
}

// Opens a pipeline in which the worker is the second of two ranks; another hop follows.
void OpenSecondRank(WorkerCore& core) {
  Welcomed(core, 1);
  LoadShard load = Load(kShard, {0, 2});
  load.rank = {1, 2};
  load.ranks.resize(2);
  core.FromController(load, {});
  core.LoadEnded({.shard = kShard}, kLimits);
  WorkerAddress next;
  next.incarnation = Incarnation(10);
  const std::vector<PipelineHop> hops = {{{0, 2}, {{}, {}}, {ShardId(2), kShard}},
                                         {{2, 4}, {next}, {ShardId(4)}}};
  core.FromController(OpenPipeline{.pipeline = kPipeline,
                                   .hops = hops,
                                   .rank = 1,
                                   .block_size = 4,
                                   .num_blocks = 8,
                                   .max_batched_tokens = 64},
                      {});
  core.PipelineStarted(kPipeline, OkStatus());
}

// The stage's KV is recoverable after the pipeline has ended, but the group would not survive a
// batch that one rank skips.
TEST(WorkerCore, EveryRankRunsAStartedBatchAfterTheNextHopIsLost) {
  WorkerCore core({});
  OpenSecondRank(core);
  core.FromController(Step(1), {});
  core.FromController(Step(2), {});
  core.PeerLost(Incarnation(10), Unavailable("gone"));
  EXPECT_FALSE(core.NextBatch({})) << "rank 0 has not started the batch";
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(1)}}}, {});
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), {});
  EXPECT_TRUE(Take<AbortGroup>(core).empty());
  // A step that never arrived here cannot run.
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(2)}}}, {});
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), {});
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(3)}}}, {});
  EXPECT_FALSE(core.NextBatch({}));
  EXPECT_EQ(Take<AbortGroup>(core).size(), 1u);
}

// After the failure the stage's tables are wrong, even if the pipeline was already broken.
TEST(WorkerCore, AFailedPipelineRunsNoMoreSteps) {
  WorkerCore core({});
  OpenSecondRank(core);
  core.FromController(Step(1), {});
  core.FromController(Step(2), {});
  core.PeerLost(Incarnation(10), Unavailable("gone"));
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(1)}}}, {});
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(Internal("a kernel failed"), {}, {});
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(2)}}}, {});
  EXPECT_FALSE(core.NextBatch({}));
  EXPECT_EQ(Take<AbortGroup>(core).size(), 1u);
}

// Rank 0 has started the batch and would wait in the collective until its deadline.
TEST(WorkerCore, AnOrderThatCannotRunEndsTheCollective) {
  WorkerCore core({});
  OpenSecondRank(core);
  core.FromController(Step(1), {});
  core.FromController(ClosePipeline{kPipeline}, {});
  EXPECT_FALSE(core.NextBatch({}));
  EXPECT_TRUE(Take<AbortGroup>(core).empty());  // rank 0 has not started the batch
  core.FromPeer(BatchOrder{kShard, {{kPipeline, StepId(1)}}}, {});
  EXPECT_FALSE(core.NextBatch({}));
  const auto aborts = Take<AbortGroup>(core);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].shard, kShard);
  EXPECT_EQ(core.counters().stale_orders, 1u);
}

TEST(WorkerCore, RefusesBlocksThatDoNotHoldTheTokens) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromController(ExportKv{{.pipeline = kPipeline}, {0, 1}, 9, Duration::Seconds(1.0)}, {});
  core.FromController(ExportKv{{.pipeline = kPipeline}, {0, 8}, 8, Duration::Seconds(1.0)}, {});
  EXPECT_TRUE(Take<Export>(core).empty());
  EXPECT_EQ(core.counters().refused, 2u);
  core.FromController(PullKv{TransferId(1), kPipeline, {0}, 0, 5, {}}, {});
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(std::get<PullDone>(sent[0].message).status.ok());
  core.FromController(ExportKv{{.pipeline = kPipeline}, {0, 1}, 8, Duration::Seconds(1.0)}, {});
  EXPECT_EQ(Take<Export>(core).size(), 1u);
}

// A pipeline's memory is free before the next controller's pipelines open, so its accounts begin
// with nothing.
TEST(WorkerCore, TheNextControllerFindsTheMemoryFree) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromController(ReturnBlocks{kPipeline, 1, {3}}, {});
  core.SessionDown({});
  EXPECT_EQ(Take<DropPipeline>(core).size(), 1u);
  Welcomed(core, 99);
  core.FromController(ReturnBlocks{kPipeline, 2, {4}}, {});
  EXPECT_TRUE(Take<ReturnMemory>(core).empty()) << "it is not open";
}

// The controller of the next session may not have heard it.
TEST(WorkerCore, AnnouncesInEachSessionThatItLeaves) {
  WorkerCore core({});
  Welcomed(core, 1);
  core.SetNotice(LeavesAt(30), {});
  for (uint64_t session = 2; session <= 5; ++session) {
    core.SessionDown({});
    (void)Take<SendUp>(core);
    const double now = 10 * static_cast<double>(session - 1);
    Welcomed(core, session, Time{} + Duration::Seconds(now));
    const auto sent = Take<SendUp>(core);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_TRUE(std::holds_alternative<Join>(sent[0].message));
    const Leaving leaving = std::get<Leaving>(sent[1].message);
    EXPECT_EQ(leaving.in, Duration::Seconds(std::max(0.0, 30 - now))) << "what is left of it";
    EXPECT_EQ(leaving.origin.source, NoticeSource::kAws);
  }
}

TEST(WorkerCore, SaysThatItStays) {
  WorkerCore core({});
  Welcomed(core, 1);
  core.SetNotice(LeavesAt(30), {});
  (void)Take<SendUp>(core);
  core.SetNotice(std::nullopt, {});
  auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Staying>(sent[0].message));
  // What remains is soft: it stays, although its machine may go away.
  core.SetNotice(LeavesAt(30), {});
  core.SetNotice(MachineNotice{.hard = false}, {});
  sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<Leaving>(sent[0].message));
  EXPECT_TRUE(std::holds_alternative<Staying>(sent[1].message));
  EXPECT_TRUE(std::holds_alternative<MayLeave>(sent[2].message));
  // A later controller does not know of the notice that was withdrawn before.
  core.SetNotice(std::nullopt, {});
  core.SessionDown({});
  (void)Take<SendUp>(core);
  Welcomed(core, 2);
  EXPECT_EQ(Take<SendUp>(core).size(), 1u) << "the Join";
}

// A controller of the version before does not know these messages.
TEST(WorkerCore, SaysOnlyHardNoticesToEarlierControllers) {
  WorkerCore core({});
  core.SessionUp({});
  core.FromController(Welcome{WorkerId(3), Term(1), Duration::Seconds(0.25), {5, 5}}, {});
  (void)Take<SendUp>(core);
  core.SetNotice(MachineNotice{.hard = false}, {});
  core.SetNotice(std::nullopt, {});
  EXPECT_TRUE(Take<SendUp>(core).empty());
  core.SetNotice(LeavesAt(30), {});
  EXPECT_EQ(Take<SendUp>(core).size(), 1u);
  core.SetNotice(std::nullopt, {});
  EXPECT_TRUE(Take<SendUp>(core).empty());
}

// The controller lets it go while the withdrawal is on its way.
TEST(WorkerCore, JoinsAgainWhenItsNoticeWasWithdrawn) {
  WorkerCore core({});
  Welcomed(core, 1);
  const auto ends_for_good = [&](Leave leave) {
    core.FromController(std::move(leave), {});
    const auto ends = Take<EndSession>(core);
    return ends.size() == 1 && ends[0].for_good;
  };
  core.SetNotice(LeavesAt(30), {});
  EXPECT_TRUE(ends_for_good({"drained", true}));
  core.SetNotice(std::nullopt, {});
  EXPECT_FALSE(ends_for_good({"drained", true}));
  EXPECT_TRUE(ends_for_good({"drained", false})) << "an operator wants it";
}

// The next session names the sources that exist by then. Other load failures do not end the
// session.
TEST(WorkerCore, JoinsAgainWhenNoSourceHadTheWeights) {
  WorkerCore core({});
  Welcomed(core, 1);
  core.FromController(Load(kShard, {0, 2}), {});
  core.LoadEnded({.shard = kShard, .status = DataLoss("a damaged file")}, {});
  EXPECT_TRUE(Take<EndSession>(core).empty());
  core.FromController(Load(ShardId(4), {0, 2}), {});
  core.LoadEnded({.shard = ShardId(4), .status = Unavailable("no worker gave them")}, {});
  const auto ends = Take<EndSession>(core);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_FALSE(ends[0].for_good);
  EXPECT_EQ(core.shards(), 0u);
  // The next Join has the new identity.
  core.Identify({.model_fingerprint = "learned"});
  core.SessionDown({});
  core.SessionUp({});
  const auto said = Take<SendUp>(core);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(std::get<Join>(said[0].message).identity.model_fingerprint, "learned");
}

// As soon as it is known, and again in each session. A controller of the version before would end
// the session, also at the answer to a probe that another one asked for.
TEST(WorkerCore, GivesItsProfileToControllersThatTakeOne) {
  WorkerCore core({});
  Welcomed(core, 1);
  (void)Take<SendUp>(core);
  core.SetProfile({"times"});
  const auto at_once = Take<SendUp>(core);
  ASSERT_EQ(at_once.size(), 1u);
  EXPECT_EQ(std::get<WorkerProfile>(at_once[0].message).text, "times");
  core.SessionDown({});
  core.SetProfile({"other times"});
  EXPECT_TRUE(Take<SendUp>(core).empty()) << "there is no session";
  Welcomed(core, 2);
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(std::get<WorkerProfile>(sent[1].message).text, "other times");
  core.SessionDown({});
  core.SessionUp({});
  core.FromController(Welcome{WorkerId(3), Term(1), Duration::Seconds(0.25), {5, 5}}, {});
  core.ProbeEnded({.probe = ProbeId(1)});
  EXPECT_EQ(Take<SendUp>(core).size(), 1u) << "the Join";
}

TEST(WorkerCore, ProbesALinkOnlyWhileItHasNothingToCompute) {
  const auto at = [](double seconds) { return Time{} + Duration::Seconds(seconds); };
  WorkerCore core({});
  OpenSecondHop(core);
  EXPECT_EQ(core.IdleFor(at(5)), Duration::Seconds(5));
  core.FromController(ProbeLink{.probe = ProbeId(1)}, at(5));
  EXPECT_EQ(Take<StartProbe>(core).size(), 1u);
  core.ProbeEnded({.probe = ProbeId(1), .latency_s = 1e-3, .bytes_per_s = 1e9});
  EXPECT_EQ(std::get<LinkProbed>(Take<SendUp>(core).at(0).message).bytes_per_s, 1e9);
  // A step has arrived, is computed, and has ended.
  core.FromPeer(PipelineStep{kPipeline, Plan(1)}, at(6));
  const auto refused = [&](double seconds) {
    core.FromController(ProbeLink{.probe = ProbeId(2)}, at(seconds));
    std::vector<WorkerAction> actions;
    core.TakeActions(actions);
    if (actions.size() != 1 || !std::holds_alternative<SendUp>(actions[0])) return false;
    return std::get<LinkProbed>(std::get<SendUp>(actions[0]).message).status.code() ==
           StatusCode::kUnavailable;
  };
  EXPECT_EQ(core.IdleFor(at(6)), Duration());
  EXPECT_TRUE(refused(6));
  core.ActivationsArrived(kPipeline, StepId(1), std::make_shared<const std::vector<std::byte>>());
  ASSERT_TRUE(core.NextBatch(at(7)));
  EXPECT_TRUE(refused(8));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), at(9));
  (void)Take<SendUp>(core);
  EXPECT_EQ(core.IdleFor(at(11)), Duration::Seconds(2));
  core.FromController(Load(ShardId(9), {0, 1}), at(11));
  EXPECT_EQ(core.IdleFor(at(12)), Duration()) << "layers are being loaded";
}

}  // namespace
}  // namespace millrace::cluster
