// Pipelines with real schedulers share workers with little memory: the workers' memory is never
// exceeded, and every request gets its answer.
#include "cluster/control/layout/kv_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "sched/testing/harness.h"
#include "sched/testing/test_requests.h"

namespace millrace::cluster {
namespace {

constexpr int kOutputMax = 16, kPromptMax = 24;

class SharedWorkers {
 public:
  struct Pipeline {
    std::vector<KvMemory::Rank> ranks;
    int max = 0;
    std::unique_ptr<sched::Harness> harness;
    std::map<RequestId, std::pair<RequestId, size_t>> running;  // by the harness's id
    std::map<RequestId, int> reserved;                          // blocks
  };

  explicit SharedWorkers(uint64_t seed)
      : rng_(seed), members_(MembershipOptions{}), outbox_(members_), memory_(outbox_) {
    options_.block_size = static_cast<int>(rng_.Between(1, 8));
    options_.max_model_len = kPromptMax + kOutputMax;
    options_.max_num_seqs = static_cast<int>(rng_.Between(4, 10));
    options_.max_num_batched_tokens = static_cast<int>(rng_.Between(1, 64));
    options_.prefix_caching = rng_.Between(0, 3) != 0;
    options_.preemption = sched::PreemptionMode::kRecompute;
    if (rng_.Between(0, 3) == 0) options_.kv_policy = sched::KvPolicy::kOrca;
    options_.eos_token_ids = {sched::kTestRequestEos};
    for (int64_t w = rng_.Between(2, 4); w > 0; --w) {
      const WorkerId id(static_cast<uint64_t>(w));
      Join join;
      join.name = std::to_string(w);
      members_.Add(id, ConnectionId(id.value()), std::move(join), Time{});
      // A request has up to 4 sequences of 40 tokens.
      const int64_t blocks = 4 * (40 / options_.block_size + 1);
      workers_[id] = 100 * rng_.Between(blocks, 3 * blocks);
    }
  }

  KvMemory& memory() { return memory_; }
  std::map<PipelineId, Pipeline>& pipelines() { return pipelines_; }
  Rng& rng() { return rng_; }

  PipelineId Open(bool reserves) {
    const PipelineId id(++next_);
    pools_reserve_ = reserves;
    Pipeline& pipeline = pipelines_[id];
    const int64_t bytes = rng_.Between(20, 100);
    while (pipeline.ranks.empty()) {
      for (const auto& [worker, capacity] : workers_) {
        if (rng_.Between(0, 1)) pipeline.ranks.push_back({worker, capacity, bytes});
      }
    }
    int64_t max = INT32_MAX;
    for (const KvMemory::Rank& rank : pipeline.ranks)
      max = std::min(max, rank.kv_bytes / rank.bytes_per_block);
    sched::SchedulerOptions options = options_;
    options.num_blocks = pipeline.max = static_cast<int>(max);
    options.stages = static_cast<int>(pipeline.ranks.size());
    options.watermark = 0;
    pipeline.harness = std::make_unique<sched::Harness>(
        sched::HarnessOptions{.scheduler = options, .vocab_size = sched::kTestRequestVocab});
    memory_.Open(id, pipeline.ranks, pipeline.max, reserves, pipeline.harness->scheduler());
    return id;
  }

  bool TryAdd(PipelineId id, const sched::TestRequest& q, size_t index) {
    Pipeline& pipeline = pipelines_.at(id);
    const RequestId request(index + 1);
    const sched::NewRequest spec{.prompt = std::make_shared<std::vector<TokenId>>(q.prompt),
                                 .params = std::make_shared<SamplingParams>(q.params)};
    const int blocks = sched::BlocksAtMost(spec, *q.params.max_tokens, options_.block_size);
    const bool reserved = memory_.Reserve(id, request, blocks);
    CheckReserved(id, blocks, reserved);
    if (!reserved) return false;
    pipeline.reserved[request] = blocks;
    const RequestId there = pipeline.harness->MustAdd(
        q.prompt, q.params, [&](sched::NewRequest& r) { r.seed = q.seed; });
    pipeline.running[there] = {request, index};
    return true;
  }

  // One step of each pipeline. Returns how many requests have ended.
  int Turn(const std::vector<sched::TestRequest>& all) {
    int ended = 0;
    for (auto& entry : pipelines_) ended += Turn(entry.first, entry.second, all);
    starved = memory_.EndRound();
    Deliver();
    Check();
    return ended;
  }

  uint64_t returned = 0;     // blocks
  uint64_t turned_away = 0;  // requests that did not fit beside the others
  uint64_t let_in = 0;       // requests that were judged while no step was in flight
  std::set<PipelineId> starved;

 private:
  int Turn(PipelineId id, Pipeline& pipeline, const std::vector<sched::TestRequest>& all) {
    (void)memory_.BeforeSteps(id);
    Deliver();
    pipeline.harness->Turn();
    memory_.AfterSteps(id);
    return static_cast<int>(std::erase_if(pipeline.running, [&](const auto& entry) {
      if (!pipeline.harness->finished(entry.first)) return false;
      const auto& [request, index] = entry.second;
      memory_.Release(id, request);
      pipeline.reserved.erase(request);
      for (int k = 0; k < all[index].params.n; ++k) {
        EXPECT_EQ(pipeline.harness->outcome(entry.first, k).tokens, Expected(all[index], k))
            << "request " << index << " sequence " << k;
      }
      return true;
    }));
  }
  // The naive model of a reservation: the sum over the requests that run now. A request that fits
  // must get it, so none waits forever while others come and go. Only blocks that steps in flight
  // still use may make it wait.
  void CheckReserved(PipelineId id, int blocks, bool reserved) {
    if (!pools_reserve_) return;
    const auto sum = [](const Pipeline& pipeline) {
      int64_t blocks = 0;
      for (const auto& entry : pipeline.reserved) blocks += entry.second;
      return blocks;
    };
    std::map<WorkerId, int64_t> bytes;
    bool in_flight = false;
    for (const auto& [other, pipeline] : pipelines_) {
      const int64_t held = sum(pipeline) + (other == id ? blocks : 0);
      for (const KvMemory::Rank& rank : pipeline.ranks)
        bytes[rank.worker] += held * rank.bytes_per_block;
      in_flight = in_flight || pipeline.harness->in_flight() > 0;
    }
    const Pipeline& pipeline = pipelines_.at(id);
    const bool fits = sum(pipeline) + blocks <= pipeline.max &&
                      std::ranges::all_of(pipeline.ranks, [&](const KvMemory::Rank& rank) {
                        return bytes[rank.worker] <= rank.kv_bytes;
                      });
    if (reserved) {
      EXPECT_TRUE(fits) << "more is reserved than the workers have";
    }
    if (fits && !in_flight) {
      EXPECT_TRUE(reserved) << "it fits and must wait";
    }
    turned_away += fits || reserved ? 0 : 1;
    let_in += in_flight ? 0 : 1;
  }

  // Blocks that were returned lose their content.
  void Deliver() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    std::map<PipelineId, size_t> messages;
    for (const ControllerAction& action : actions) {
      const auto& message = std::get<ReturnBlocks>(std::get<SendToWorker>(action).message);
      pipelines_.at(message.pipeline).harness->model().Drop(message.blocks);
      returned += message.blocks.size();
      ++messages[message.pipeline];
    }
    for (const auto& [to, count] : messages)
      EXPECT_EQ(count, pipelines_.at(to).ranks.size()) << "not every worker was told";
  }

  void Check() {
    memory_.CheckIntegrity();
    std::map<WorkerId, int64_t> held;
    for (const auto& [id, pipeline] : pipelines_) {
      for (const KvMemory::Rank& rank : pipeline.ranks)
        held[rank.worker] += memory_.limit(id) * rank.bytes_per_block;
    }
    for (const auto& [worker, bytes] : held) ASSERT_LE(bytes, workers_.at(worker));
  }

  Rng rng_;
  sched::SchedulerOptions options_;
  Membership members_;
  Outbox outbox_;
  std::map<WorkerId, int64_t> workers_;  // KV bytes
  std::map<PipelineId, Pipeline> pipelines_;
  KvMemory memory_;
  uint64_t next_ = 0;
  bool pools_reserve_ = false;
};

// Requests reserve the most that they can use, so no pipeline waits for blocks that another uses,
// and none preempts.
TEST(KvMemory, ReservedRequestsOfManyPipelinesAllFinish) {
  uint64_t returned = 0, turned_away = 0, let_in = 0;
  for (uint64_t seed = 0; seed < 60u * static_cast<uint64_t>(TestScale()); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SharedWorkers cluster(seed);
    for (int64_t p = cluster.rng().Between(2, 12); p > 0; --p) cluster.Open(true);
    const auto all = sched::RandomRequests(cluster.rng(), 60, kPromptMax, kOutputMax, 4);
    std::deque<size_t> waiting;
    for (size_t i = 0; i < all.size(); ++i) waiting.push_back(i);
    size_t ended = 0;
    for (int turn = 0; ended < all.size(); ++turn) {
      ASSERT_LT(turn, 20'000) << ended << " of " << all.size() << " requests have ended";
      for (int64_t tries = cluster.rng().Between(0, 2); tries > 0 && !waiting.empty(); --tries) {
        const auto to = std::next(cluster.pipelines().begin(),
                                  cluster.rng().Between(0, std::ssize(cluster.pipelines()) - 1));
        if (cluster.TryAdd(to->first, all[waiting.front()], waiting.front())) waiting.pop_front();
      }
      ended += static_cast<size_t>(cluster.Turn(all));
      if (testing::Test::HasFailure()) return;
    }
    for (const auto& [id, pipeline] : cluster.pipelines()) {
      const sched::SchedulerStats stats = pipeline.harness->scheduler().Stats();
      EXPECT_EQ(stats.preemptions_recompute, 0u);
    }
    returned += cluster.returned;
    turned_away += cluster.turned_away;
    let_in += cluster.let_in;
  }
  EXPECT_GT(returned, 1000u);
  EXPECT_GT(turned_away, 100u);
  EXPECT_GT(let_in, 100u);
}

// A pipeline of an earlier plan runs until its requests have ended; the new one runs beside it and
// has everything when the earlier one has closed.
TEST(KvMemory, PipelinesOfTwoPlansShareTheirWorkers) {
  int stuck = 0;
  for (uint64_t seed = 0; seed < 40u * static_cast<uint64_t>(TestScale()); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SharedWorkers cluster(seed);
    const auto all = sched::RandomRequests(cluster.rng(), 20, kPromptMax, kOutputMax, 4);
    const PipelineId earlier = cluster.Open(false);
    for (size_t i = 0; i < 10; ++i) ASSERT_TRUE(cluster.TryAdd(earlier, all[i], i));
    size_t ended = 0;
    for (int turn = 0; turn < 5; ++turn) ended += static_cast<size_t>(cluster.Turn(all));
    const PipelineId later = cluster.Open(false);
    cluster.memory().Retire(earlier);
    for (size_t i = 10; i < 20; ++i) ASSERT_TRUE(cluster.TryAdd(later, all[i], i));
    for (int turn = 0; turn < 2'000; ++turn) ended += static_cast<size_t>(cluster.Turn(all));
    // One of them may be stuck, and says so. The controller then ends the earlier one.
    EXPECT_EQ(cluster.starved.empty(), ended == all.size());
    stuck += cluster.starved.empty() ? 0 : 1;
    auto& first = cluster.pipelines().at(earlier);
    for (const auto& [there, request] : first.running) {
      (void)first.harness->scheduler().Detach(there, Time{}, std::nullopt);
      ++ended;
    }
    first.running.clear();
    for (int turn = 0; turn < 2'000; ++turn) ended += static_cast<size_t>(cluster.Turn(all));
    EXPECT_EQ(ended, all.size());
    cluster.memory().Close(earlier);
    cluster.pipelines().erase(earlier);
    (void)cluster.memory().BeforeSteps(later);
    EXPECT_EQ(cluster.memory().limit(later), cluster.pipelines().at(later).max);
  }
  EXPECT_GT(stuck, 0);
}

// Pipelines of 10 blocks of 100 bytes on workers with memory for 10 blocks.
class FewPipelines : public testing::Test {
 protected:
  static constexpr int kBlocks = 10;
  FewPipelines() : members_(MembershipOptions{}), outbox_(members_), memory_(outbox_) {}

  sched::Harness& Open(uint64_t id, const std::vector<uint64_t>& workers, bool reserves) {
    sched::HarnessOptions options;
    options.scheduler = {.block_size = 4, .num_blocks = kBlocks, .max_model_len = 40};
    options.scheduler.watermark = 0;
    auto& harness = harnesses_.emplace_back(std::make_unique<sched::Harness>(options));
    std::vector<KvMemory::Rank> ranks;
    for (uint64_t worker : workers) ranks.push_back({WorkerId(worker), kBlocks * 100, 100});
    memory_.Open(PipelineId(id), ranks, kBlocks, reserves, harness->scheduler());
    return *harness;
  }
  // Its first step takes blocks for its prompt.
  RequestId Run(sched::Harness& pipeline, int prompt_tokens, int output_tokens,
                const std::function<void(sched::NewRequest&)>& change = {}) {
    SamplingParams params;
    params.max_tokens = output_tokens;
    params.ignore_eos = true;
    std::vector<TokenId> prompt(static_cast<size_t>(prompt_tokens), next_token_++);
    const RequestId id = pipeline.MustAdd(std::move(prompt), params, change);
    pipeline.Schedule();
    return id;
  }
  void Survive(uint64_t id, uint64_t worker) {
    PipelineHop hop;
    hop.ranks.resize(1);
    hop.ranks[0].worker = WorkerId(worker);
    memory_.Survive(PipelineId(id), std::vector{hop});
  }
  int Limit(uint64_t id) const { return memory_.limit(PipelineId(id)); }
  // A round of steps in which this pipeline asks for what it can get.
  std::set<PipelineId> Round(uint64_t id) {
    (void)memory_.BeforeSteps(PipelineId(id));
    memory_.AfterSteps(PipelineId(id));
    memory_.CheckIntegrity();
    return memory_.EndRound();
  }

  Membership members_;
  Outbox outbox_;
  KvMemory memory_;
  std::vector<std::unique_ptr<sched::Harness>> harnesses_;
  TokenId next_token_ = 5;  // no two prompts share a prefix
};

TEST_F(FewPipelines, SurvivorsKeepWhatIsInUse) {
  sched::Harness& lost = Open(1, {1, 2}, false);
  EXPECT_EQ(Limit(1), kBlocks);
  Run(lost, 9, 20);
  Survive(1, 2);
  memory_.LoseWorker(WorkerId(1));
  EXPECT_EQ(Limit(1), 3);
  Open(2, {2}, false);
  EXPECT_EQ(Limit(2), 7);
  EXPECT_TRUE(memory_.ShareMemory(PipelineId(2), PipelineId(1)));
  EXPECT_EQ(memory_.GivesWayTo(PipelineId(2)), PipelineId(1));
  memory_.Close(PipelineId(1));
  (void)Round(2);
  EXPECT_EQ(Limit(2), kBlocks);
  EXPECT_FALSE(memory_.GivesWayTo(PipelineId(2)));
}

// The survivor is lost too, before the KV was fetched: nothing of it counts any more.
TEST_F(FewPipelines, ASurvivorThatIsLostHoldsNothing) {
  Run(Open(1, {1, 2}, false), 9, 20);
  Survive(1, 2);
  memory_.LoseWorker(WorkerId(1));
  memory_.LoseWorker(WorkerId(2));
  memory_.CheckIntegrity();
  Open(2, {2, 3}, false);  // a worker with this id joins again only in this test
  EXPECT_EQ(Limit(2), kBlocks);
  EXPECT_FALSE(memory_.GivesWayTo(PipelineId(2)));
  memory_.Close(PipelineId(1));
  memory_.CheckIntegrity();
}

// A worker is lost while KV is held for a pull from it. The pipeline closes, and the other worker
// has all its memory.
TEST_F(FewPipelines, AHoldEndsWithItsPipeline) {
  sched::Harness& held = Open(1, {1, 2}, true);
  ASSERT_TRUE(memory_.Reserve(PipelineId(1), RequestId(1), 5));
  const RequestId id =
      Run(held, 16, 1, [](sched::NewRequest& r) { r.hold_kv = Duration::Seconds(30); });
  held.RunToEnd();
  ASSERT_TRUE(held.finished(id));
  memory_.Release(PipelineId(1), RequestId(1));
  Open(2, {2, 3}, true);
  EXPECT_FALSE(memory_.Reserve(PipelineId(2), RequestId(2), 7)) << "4 blocks are held";
  EXPECT_TRUE(memory_.EndRound().empty()) << "the hold will end";
  EXPECT_TRUE(memory_.Reserve(PipelineId(2), RequestId(3), 6));
  memory_.LoseWorker(WorkerId(1));
  memory_.Close(PipelineId(1));
  EXPECT_TRUE(memory_.Reserve(PipelineId(2), RequestId(2), 4));
  memory_.CheckIntegrity();
}

// The same without a loss: when the pull has ended, another pipeline gets the blocks.
TEST_F(FewPipelines, ReleasedKvGoesToThePipelineThatWaits) {
  sched::Harness& held = Open(1, {1}, true);
  ASSERT_TRUE(memory_.Reserve(PipelineId(1), RequestId(1), 5));
  const RequestId id =
      Run(held, 16, 1, [](sched::NewRequest& r) { r.hold_kv = Duration::Seconds(30); });
  held.RunToEnd();
  memory_.Release(PipelineId(1), RequestId(1));
  Open(2, {1}, true);
  EXPECT_FALSE(memory_.Reserve(PipelineId(2), RequestId(2), 7));
  held.scheduler().ReleaseKv(id);
  EXPECT_TRUE(memory_.Reserve(PipelineId(2), RequestId(2), 7));
  EXPECT_EQ(Limit(1), 3);
}

// Requests of a lost pipeline have left it, so nobody waits for them to end.
TEST_F(FewPipelines, ALostPipelineReservesNothing) {
  sched::Harness& lost = Open(1, {1, 2}, true);
  ASSERT_TRUE(memory_.Reserve(PipelineId(1), RequestId(1), 8));
  Run(lost, 20, 12);
  Open(2, {2}, true);
  EXPECT_FALSE(memory_.Reserve(PipelineId(2), RequestId(2), 8));
  EXPECT_TRUE(memory_.EndRound().empty()) << "the first request will end";
  Survive(1, 2);
  EXPECT_EQ(Limit(1), 5);
  EXPECT_FALSE(memory_.Reserve(PipelineId(2), RequestId(2), 8));
  EXPECT_EQ(memory_.EndRound(), (std::set{PipelineId(2)}));
  EXPECT_EQ(memory_.GivesWayTo(PipelineId(2)), PipelineId(1));
}

// Requests that run beside it release their reservations, but not at the worker where it lacks
// memory.
TEST_F(FewPipelines, APipelineIsStarvedByTheEarlierPlanAlthoughRequestsRunBesideIt) {
  sched::Harness& earlier = Open(1, {2}, false);
  Run(earlier, 28, 10);
  memory_.Retire(PipelineId(1));
  Open(2, {1}, true);
  ASSERT_TRUE(memory_.Reserve(PipelineId(2), RequestId(1), 3));
  Open(3, {1, 2}, true);
  EXPECT_FALSE(memory_.Reserve(PipelineId(3), RequestId(2), 5));
  EXPECT_EQ(memory_.EndRound(), (std::set{PipelineId(3)}));
  EXPECT_EQ(memory_.GivesWayTo(PipelineId(3)), PipelineId(1));
  memory_.Close(PipelineId(1));
  EXPECT_TRUE(memory_.Reserve(PipelineId(3), RequestId(2), 5));
  EXPECT_FALSE(memory_.Reserve(PipelineId(3), RequestId(3), 5));
  EXPECT_TRUE(memory_.EndRound().empty()) << "the other requests will end";
}

// Requests migrate out of a closing pipeline. It keeps what they use, and the other one grows as
// they leave.
TEST_F(FewPipelines, AClosingPipelineKeepsWhatItsRequestsUse) {
  sched::Harness& closing = Open(1, {1}, false);
  const RequestId first = Run(closing, 12, 12);
  closing.Commit();
  const RequestId second = Run(closing, 12, 12);
  closing.Commit();
  ASSERT_EQ(closing.scheduler().blocks_in_use(), 7);
  memory_.Retire(PipelineId(1));
  Open(2, {1}, false);
  EXPECT_EQ(Limit(1) + Limit(2), kBlocks);
  EXPECT_GE(Limit(1), 7);
  (void)closing.scheduler().Detach(first, Time{}, Duration::Seconds(30));
  (void)Round(2);
  EXPECT_GE(Limit(1), 7) << "its KV is held until it is fetched";
  closing.scheduler().ReleaseKv(first);
  (void)Round(2);
  EXPECT_EQ(Limit(2), 6);
  (void)closing.scheduler().Detach(second, Time{}, std::nullopt);
  (void)Round(2);
  EXPECT_EQ(Limit(2), 9);
  memory_.Close(PipelineId(1));
  (void)Round(2);
  EXPECT_EQ(Limit(2), kBlocks);
}

// Each waits for blocks that the other holds. Both say so, and the earlier one gives way.
TEST_F(FewPipelines, TwoPipelinesThatWaitForEachOtherAreBothNamed) {
  sched::Harness& earlier = Open(1, {1}, false);
  Run(earlier, 16, 20);
  earlier.Commit();
  memory_.Retire(PipelineId(1));
  sched::Harness& later = Open(2, {1}, false);
  Run(later, 16, 20);
  later.Commit();
  std::set<PipelineId> starved;
  for (int turn = 0; turn < 40; ++turn) {
    for (PipelineId id : {PipelineId(1), PipelineId(2)}) {
      (void)memory_.BeforeSteps(id);
      harnesses_[id.value() - 1]->Turn();
      memory_.AfterSteps(id);
    }
    starved = memory_.EndRound();
  }
  EXPECT_EQ(starved, (std::set{PipelineId(1), PipelineId(2)}));
  for (PipelineId id : starved) EXPECT_EQ(memory_.GivesWayTo(id), PipelineId(1));
}

}  // namespace
}  // namespace millrace::cluster
