#include "cluster/control/pipelines/pipeline_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::cluster {
namespace {

using Groups = std::vector<std::vector<WorkerId>>;

Groups Of(const std::vector<std::vector<uint64_t>>& groups) {
  Groups made;
  for (const auto& group : groups) {
    auto& ids = made.emplace_back();
    for (uint64_t worker : group) ids.emplace_back(worker);
  }
  return made;
}

constexpr PipelineId kA{1}, kB{2}, kC{3};

TEST(PipelineTurns, EqualOrDisjointGroupsRunConcurrently) {
  PipelineTurns turns;
  std::set<PipelineId> again;
  turns.Open(kA, Of({{1, 2}, {3}}));
  turns.Open(kB, Of({{1, 2}, {4, 5}}));  // the same pair
  turns.Open(kC, Of({{3}, {1}}));        // a group of one has no ranks that wait
  for (PipelineId pipeline : {kA, kB, kC}) {
    EXPECT_TRUE(turns.MayStep(pipeline));
    turns.Stepped(pipeline, true, again);
  }
  EXPECT_TRUE(turns.MayStep(kA));
}

TEST(PipelineTurns, GroupsThatShareAWorkerTakeTurns) {
  PipelineTurns turns;
  std::set<PipelineId> again;
  turns.Open(kA, Of({{1, 2}, {3, 4}}));
  turns.Open(kB, Of({{3, 1, 2, 4}}));
  ASSERT_TRUE(turns.MayStep(kA));
  turns.Stepped(kA, true, again);
  EXPECT_TRUE(turns.MayStep(kA)) << "no other pipeline waits";
  EXPECT_FALSE(turns.MayStep(kB));
  EXPECT_FALSE(turns.MayStep(kA)) << "its turn ends with the steps in flight";
  EXPECT_TRUE(again.empty());
  turns.Idle(kA, again);
  EXPECT_EQ(again, std::set<PipelineId>{kB});
  EXPECT_FALSE(turns.MayStep(kA)) << "B has waited longer";
  ASSERT_TRUE(turns.MayStep(kB));
  again.clear();
  turns.Stepped(kB, false, again);
  EXPECT_EQ(again, std::set<PipelineId>{kA}) << "B had nothing to do";
  EXPECT_TRUE(turns.MayStep(kA));
}

TEST(PipelineTurns, AClosedPipelineBlocksNoOther) {
  PipelineTurns turns;
  std::set<PipelineId> again;
  turns.Open(kA, Of({{1, 2}}));
  turns.Open(kB, Of({{2, 1}}));
  turns.Stepped(kA, true, again);
  EXPECT_FALSE(turns.MayStep(kB));
  turns.Close(kA, again);
  EXPECT_EQ(again, std::set<PipelineId>{kB});
  EXPECT_TRUE(turns.MayStep(kB));
}

// Opens, steps and closes pipelines at random, in the way that the controller does. Two pipelines
// that could deadlock must never have steps in flight together, and every pipeline with work must
// run in the end.
class AtRandom {
 public:
  explicit AtRandom(uint64_t seed) : rng_(seed) {}

  void Run() {
    for (int i = 0; i < 3000; ++i) {
      Act();
      Advance();
      CheckApart();
    }
    for (auto& [id, pipeline] : pipelines_) pipeline.work = 3;
    for (auto& [id, pipeline] : pipelines_) dirty_.insert(id);
    for (int i = 0; i < 1000 && !AllServed(); ++i) {
      Advance();
      CheckApart();
      for (auto& [id, pipeline] : pipelines_) {
        if (pipeline.in_flight > 0) End(id, pipeline);
      }
    }
    EXPECT_TRUE(AllServed());
  }

 private:
  struct Pipeline {
    Groups groups;
    int work = 0, in_flight = 0;
  };

  void Act() {
    const int64_t what = rng_.Between(0, 9);
    if (what == 0 && pipelines_.size() < 6) return Open();
    if (pipelines_.empty()) return;
    const auto at = std::next(pipelines_.begin(), rng_.Between(0, std::ssize(pipelines_) - 1));
    if (what == 1) {
      turns_.Close(at->first, dirty_);
      dirty_.erase(at->first);
      pipelines_.erase(at);
    } else if (what < 5) {
      at->second.work += 1;
      dirty_.insert(at->first);
    } else if (at->second.in_flight > 0) {
      End(at->first, at->second);
    }
  }
  void Open() {
    const PipelineId id(next_++);
    std::vector<uint64_t> workers = {1, 2, 3, 4};
    for (size_t i = 3; i > 0; --i) {
      std::swap(workers[i], workers[static_cast<size_t>(rng_.Between(0, static_cast<int>(i)))]);
    }
    Pipeline pipeline;
    switch (rng_.Between(0, 2)) {
      case 0: pipeline.groups = Of({workers}); break;
      case 1: pipeline.groups = Of({{workers[0], workers[1]}, {workers[2], workers[3]}}); break;
      default: pipeline.groups = Of({{workers[0]}, {workers[1], workers[2]}}); break;
    }
    turns_.Open(id, pipeline.groups);
    pipelines_.emplace(id, std::move(pipeline));
  }
  void End(PipelineId id, Pipeline& pipeline) {
    dirty_.insert(id);
    if (--pipeline.in_flight == 0) turns_.Idle(id, dirty_);
  }
  void Advance() {
    for (int pass = 0; pass < 2; ++pass) {
      for (PipelineId id : std::exchange(pass == 0 ? dirty_ : again_, {})) {
        Pipeline& pipeline = pipelines_.at(id);
        if (!turns_.MayStep(id)) continue;
        for (; pipeline.work > 0 && pipeline.in_flight < 2; --pipeline.work) ++pipeline.in_flight;
        turns_.Stepped(id, pipeline.in_flight > 0, again_);
      }
    }
    dirty_.merge(std::exchange(again_, {}));
  }
  static bool CouldWait(const Pipeline& a, const Pipeline& b) {
    for (const auto& one : a.groups) {
      for (const auto& other : b.groups) {
        if (one.size() == 1 || other.size() == 1 || one == other) continue;
        for (WorkerId worker : one) {
          if (std::ranges::find(other, worker) != other.end()) return true;
        }
      }
    }
    return false;
  }
  void CheckApart() const {
    for (const auto& [a, one] : pipelines_) {
      for (const auto& [b, other] : pipelines_) {
        ASSERT_FALSE(a < b && one.in_flight > 0 && other.in_flight > 0 && CouldWait(one, other));
      }
    }
  }
  bool AllServed() const {
    return std::ranges::all_of(
        pipelines_, [](const auto& l) { return l.second.work == 0 && l.second.in_flight == 0; });
  }

  Rng rng_;
  PipelineTurns turns_;
  std::map<PipelineId, Pipeline> pipelines_;
  std::set<PipelineId> dirty_, again_;
  uint64_t next_ = 1;
};

TEST(PipelineTurns, NoDeadlockAndNoStarvation) {
  for (uint64_t seed = 1; seed <= 20 * static_cast<uint64_t>(TestScale()); ++seed) {
    AtRandom(seed).Run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::cluster
