// Several sequences of one prompt (vLLM section 4.4) that continue in another scheduler with their
// KV: shared KV is pulled once, and missing KV is computed once, only where it is missing.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "sched/testing/moves.h"

namespace millrace::sched {
namespace {

constexpr int kLayers = 3;
constexpr int kPrompt = 10;  // two blocks of 4 are shared by all, the third is not
constexpr int kOutput = 12;

HarnessOptions Layers() {
  HarnessOptions o{.scheduler = Small(), .layers = kLayers};
  o.scheduler.num_blocks = 64;
  return o;
}

// One sequence's share of a step: its start, its number of tokens, and whether only some layers
// compute them.
using Share = std::tuple<int, int, bool>;

std::vector<Share> SharesOf(const StepPlan* plan) {
  std::vector<Share> shares;
  if (!plan) return shares;
  for (const SequenceStep& s : plan->sequences) {
    EXPECT_TRUE(!s.only_layers || s.only_layers == (LayerRange{1, 2}));
    EXPECT_TRUE(!s.only_layers || s.logits == LogitsWanted::kNone);
    shares.emplace_back(s.start, s.num_tokens, s.only_layers.has_value());
  }
  return shares;
}

class ForkedImport : public ::testing::Test {
 protected:
  // Three sequences that have forked; the second ends.
  void Begin() {
    id_ = from_->MustAdd(Prompt(kPrompt), MaxTokens(kOutput, 3));
    for (int turn = 0; turn < 3; ++turn) from_->Turn();
    from_->Abort(id_, 1);
    for (int turn = 0; turn < 2; ++turn) from_->Turn();
  }

  // Moves the request to `to_`, where it waits for its KV.
  void Leave() {
    left_ = *from_->scheduler().Detach(id_, from_->now(), kHold);
    for (const SequenceKv& s : left_.kv) left_.request.imported_tokens.push_back(s.tokens);
    ASSERT_TRUE(to_->AddAsIs(left_.request).ok());
    to_->Schedule();
    pulls_ = to_->TakePulls();
  }

  void Fetch(const KvPull& pull, LayerRange but = {}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (but.Contains(layer)) continue;
      to_->model(layer).Pull(from_->model(layer), left_.kv[static_cast<size_t>(pull.index)].blocks,
                             pull.blocks, pull.first_token, pull.end_token);
    }
  }
  void FetchAll() {
    for (const KvPull& pull : pulls_) {
      Fetch(pull);
      to_->scheduler().KvArrived(id_, true, to_->now());
      to_->scheduler().CheckIntegrity();
    }
  }

  std::vector<Share> Step() {
    auto shares = SharesOf(to_->Schedule());
    to_->Commit();
    return shares;
  }

  void ExpectTheAnswers(const std::set<int>& of) {
    to_->RunToEnd();
    for (const int k : of) {
      auto delivered = from_->outcome(id_, k).tokens;
      const auto& rest = to_->outcome(id_, k).tokens;
      delivered.insert(delivered.end(), rest.begin(), rest.end());
      EXPECT_EQ(delivered, to_->model().Generate(Prompt(kPrompt), MaxTokens(kOutput),
                                                 SequenceSeed(0, k), kOutput));
    }
    from_->scheduler().ReleaseKv(id_);
    from_->RunToEnd();
    for (Harness* h : {&*from_, &*to_}) {
      EXPECT_FALSE(h->scheduler().HasWork());
      EXPECT_EQ(h->scheduler().Stats().blocks_free, h->scheduler().Stats().blocks_total);
    }
  }

  std::optional<Harness> from_ = Harness(Layers()), to_ = Harness(Layers());
  RequestId id_;
  DetachedRequest left_;
  std::vector<KvPull> pulls_;
};

TEST_F(ForkedImport, SharedKvIsPulledOnce) {
  Begin();
  Leave();
  ASSERT_EQ(left_.kv.size(), 3u);
  EXPECT_EQ(left_.computed_tokens(), 14);
  EXPECT_EQ(left_.kv[0].tokens, 14);
  EXPECT_EQ(left_.kv[1].tokens, 0) << "it has ended";
  EXPECT_EQ(left_.kv[2].tokens, 13) << "it began a step later";
  EXPECT_EQ(left_.kv[0].blocks[1], left_.kv[2].blocks[1]);
  EXPECT_NE(left_.kv[0].blocks[2], left_.kv[2].blocks[2]);
  EXPECT_EQ(from_->scheduler().HeldBlocks(id_).size(), 6u) << "four, and two of the other's own";

  ASSERT_EQ(pulls_.size(), 2u);
  EXPECT_EQ(std::tuple(pulls_[0].index, pulls_[0].first_token, pulls_[0].end_token),
            std::tuple(0, 0, 14));
  EXPECT_EQ(std::tuple(pulls_[1].index, pulls_[1].first_token, pulls_[1].end_token),
            std::tuple(2, 8, 13));
  EXPECT_EQ(pulls_[0].blocks[1], pulls_[1].blocks[1]);
  EXPECT_EQ(to_->scheduler().blocks_in_use(), 6);

  EXPECT_EQ(to_->scheduler().Inspect(id_, to_->now())->state, RequestState::kPulling);
  FetchAll();
  EXPECT_EQ(Step(), (std::vector<Share>{{14, 1, false}, {13, 1, false}}));
  ExpectTheAnswers({0, 2});
  EXPECT_EQ(to_->scheduler().Stats().copied_blocks, 0u);
}

TEST_F(ForkedImport, OneFailedPullMakesAllOfItBeComputed) {
  Begin();
  Leave();
  Fetch(pulls_[0]);
  to_->scheduler().KvArrived(id_, true, to_->now());
  EXPECT_EQ(to_->Schedule(), nullptr) << "one pull is pending";
  to_->scheduler().KvArrived(id_, false, to_->now());
  to_->scheduler().CheckIntegrity();
  EXPECT_EQ(Step(), (std::vector<Share>{{0, 10, false}})) << "the prompt, by one for both";
  EXPECT_EQ(Step(), (std::vector<Share>{{10, 5, false}, {10, 4, false}}));
  ExpectTheAnswers({0, 2});
}

// The leader computes the prompt once, then each sequence what it does not share.
TEST_F(ForkedImport, LayersWithoutTheKvComputeAlone) {
  Begin();
  Leave();
  Fetch(pulls_[0], {1, 2});
  to_->scheduler().KvArrivedWithout(id_, {1, 2}, to_->now());
  Fetch(pulls_[1]);
  to_->scheduler().KvArrived(id_, true, to_->now());
  to_->scheduler().CheckIntegrity();
  EXPECT_EQ(Step(), (std::vector<Share>{{0, 10, true}}));
  EXPECT_EQ(Step(), (std::vector<Share>{{10, 4, true}, {8, 5, true}}));
  EXPECT_EQ(Step(), (std::vector<Share>{{14, 1, false}, {13, 1, false}}));
  ExpectTheAnswers({0, 2});
}

// Cut at every moment from the first chunk of the prompt on; one of the three may be aborted.
TEST_F(ForkedImport, AtEveryMoment) {
  for (int cut = 0; cut < 24; ++cut) {
    for (const int aborted : {-1, 0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << "cut " << cut << ", aborted " << aborted);
      HarnessOptions o = Layers();
      o.scheduler.max_num_batched_tokens = 3;
      o.scheduler.stages = 2;
      from_.emplace(o);
      to_.emplace(o);
      pulls_.clear();
      id_ = from_->MustAdd(Prompt(kPrompt), MaxTokens(kOutput, 3));
      for (int i = 0; i < cut; ++i) {
        if (!from_->Schedule() && from_->in_flight() > 0) from_->Commit();
      }
      Leave();
      std::set<int> of = {0, 1, 2};
      for (size_t i = 0; i < pulls_.size(); ++i) {
        Fetch(pulls_[i], {1, 2});
        if (i == 0 && aborted >= 0 && cut % 2 == 0) to_->Abort(id_, aborted);
        to_->scheduler().KvArrivedWithout(id_, {1, 2}, to_->now());
      }
      if (aborted >= 0) {
        for (int i = 0; i < cut % 5; ++i) to_->Schedule();
        to_->Abort(id_, aborted);
        of.erase(aborted);
      }
      ExpectTheAnswers(of);
    }
  }
}

// A request that is preempted before the prompt is computed has only the leader's KV, in the host
// pool or nowhere.
TEST_F(ForkedImport, PreemptedWhileTheLayersCompute) {
  for (const auto mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    HarnessOptions o = Layers();
    from_.emplace(o);
    o.scheduler.num_blocks = 14;
    o.scheduler.num_host_blocks = 14;
    o.scheduler.preemption = mode;
    o.scheduler.policy = SchedulingPolicy::kPriority;
    o.scheduler.max_num_batched_tokens = 3;
    to_.emplace(o);
    pulls_.clear();
    Begin();
    const RequestId older = to_->MustAdd(Prompt(8, 100), MaxTokens(40), [](NewRequest& r) {
      r.id = RequestId(50);
      r.priority = -1;
    });
    while (to_->outcome(older).tokens.size() < 23) to_->Turn();
    Leave();
    ASSERT_EQ(pulls_.size(), 2u);
    for (const KvPull& pull : pulls_) {
      Fetch(pull, {1, 2});
      to_->scheduler().KvArrivedWithout(id_, {1, 2}, to_->now());
    }
    while (to_->scheduler().Inspect(id_, to_->now())->preemptions == 0) {
      ASSERT_TRUE(to_->Turn());
      EXPECT_LT(to_->scheduler().Inspect(id_, to_->now())->computed_tokens, kPrompt);
    }
    EXPECT_EQ(to_->scheduler().Inspect(id_, to_->now())->blocks, 0);
    EXPECT_EQ(to_->scheduler().Stats().preemptions_swap, mode == PreemptionMode::kSwap ? 1u : 0u);
    ExpectTheAnswers({0, 2});
  }
}

// A prompt that is still being computed belongs to its leader alone.
TEST_F(ForkedImport, ThePromptOfAllWhileItIsComputed) {
  HarnessOptions o = Layers();
  o.scheduler.max_num_batched_tokens = 6;
  Harness before(o);
  const RequestId id = before.MustAdd(Prompt(kPrompt), MaxTokens(kOutput, 3));
  before.Turn();
  left_ = *before.scheduler().Detach(id, before.now(), kHold);
  ASSERT_EQ(left_.kv.size(), 3u);
  EXPECT_EQ(left_.kv[0].tokens, 6);
  EXPECT_TRUE(left_.kv[1].blocks.empty());
  left_.request.imported_tokens = {6, 0, 0};
  ASSERT_TRUE(to_->AddAsIs(left_.request).ok());
  to_->Schedule();
  pulls_ = to_->TakePulls();
  ASSERT_EQ(pulls_.size(), 1u);
  for (int layer = 0; layer < kLayers; ++layer) {
    to_->model(layer).Pull(before.model(layer), left_.kv[0].blocks, pulls_[0].blocks, 0, 6);
  }
  to_->scheduler().KvArrived(id, true, to_->now());
  id_ = id;
  EXPECT_EQ(Step(), (std::vector<Share>{{6, 4, false}}));
  EXPECT_EQ(Step(), (std::vector<Share>{{10, 1, false}, {9, 1, false}, {9, 1, false}}));
  ExpectTheAnswers({0, 1, 2});
}

// Only the leader's KV is needed: the others fork as soon as the prompt is complete.
TEST_F(ForkedImport, APromptThatArrivesWholeIsForkedAtOnce) {
  Begin();
  left_ = *from_->scheduler().Detach(id_, from_->now(), kHold);
  left_.request.imported_tokens = {14, 0, 0};
  ASSERT_TRUE(to_->AddAsIs(left_.request).ok());
  to_->Schedule();
  pulls_ = to_->TakePulls();
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(pulls_[0].end_token, kPrompt);
  FetchAll();
  EXPECT_EQ(Step(), (std::vector<Share>{{10, 5, false}, {10, 4, false}}));
  ExpectTheAnswers({0, 2});
}

TEST_F(ForkedImport, TheLastOfSeveralBringsAllItHas) {
  Begin();
  from_->Abort(id_, 0);
  Leave();
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(std::tuple(pulls_[0].index, pulls_[0].first_token, pulls_[0].end_token),
            std::tuple(2, 0, 13));
  FetchAll();
  EXPECT_EQ(Step(), (std::vector<Share>{{13, 1, false}}));
  ExpectTheAnswers({2});
}

TEST_F(ForkedImport, AbortWhilePullingKeepsTheBlocksUntilThePullsEnd) {
  Begin();
  Leave();
  to_->Abort(id_);
  EXPECT_EQ(to_->scheduler().Stats().blocks_pinned, 6) << "the transfers still write to them";
  to_->scheduler().KvArrived(id_, true, to_->now());
  EXPECT_EQ(to_->scheduler().Stats().blocks_pinned, 6);
  to_->scheduler().KvArrived(id_, true, to_->now());
  EXPECT_EQ(to_->scheduler().Stats().blocks_free, 64);
}

// Copies of a step in flight may not be complete: copied blocks do not count.
TEST_F(ForkedImport, ACopyInProgressDoesNotCount) {
  id_ = from_->MustAdd(Prompt(kPrompt), MaxTokens(kOutput, 3));
  from_->Turn();
  EXPECT_EQ(from_->scheduler().Peek(id_)->kv[1].tokens, 9);
  ASSERT_EQ(from_->Schedule()->copies.size(), 2u);
  const auto here = from_->scheduler().Peek(id_);
  EXPECT_EQ(here->kv[0].tokens, 8);
  EXPECT_EQ(here->kv[1].tokens, 8);
  EXPECT_EQ(here->kv[2].tokens, 9) << "it now owns the copied block";
  from_->Commit();
  EXPECT_EQ(from_->scheduler().Peek(id_)->kv[0].tokens, 11);
  EXPECT_EQ(from_->scheduler().Peek(id_)->kv[1].tokens, 10);
  from_->RunToEnd();
}

}  // namespace
}  // namespace millrace::sched
