#include "cluster/lane_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/test_scale.h"

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

constexpr LaneId kA{1}, kB{2}, kC{3};

TEST(LaneTurns, OneGroupOrGroupsOfOthersRunBesideEachOther) {
  LaneTurns turns;
  std::set<LaneId> again;
  turns.Open(kA, Of({{1, 2}, {3}}));
  turns.Open(kB, Of({{1, 2}, {4, 5}}));  // the same pair
  turns.Open(kC, Of({{3}, {1}}));        // nobody waits in a group of one
  for (LaneId lane : {kA, kB, kC}) {
    EXPECT_TRUE(turns.MayStep(lane));
    turns.Stepped(lane, true, again);
  }
  EXPECT_TRUE(turns.MayStep(kA));
}

TEST(LaneTurns, GroupsThatShareAWorkerTakeTurns) {
  LaneTurns turns;
  std::set<LaneId> again;
  turns.Open(kA, Of({{1, 2}, {3, 4}}));
  turns.Open(kB, Of({{3, 1, 2, 4}}));
  ASSERT_TRUE(turns.MayStep(kA));
  turns.Stepped(kA, true, again);
  EXPECT_TRUE(turns.MayStep(kA)) << "nobody waits";
  EXPECT_FALSE(turns.MayStep(kB));
  EXPECT_FALSE(turns.MayStep(kA)) << "its turn ends with what is in flight";
  EXPECT_TRUE(again.empty());
  turns.Idle(kA, again);
  EXPECT_EQ(again, std::set<LaneId>{kB});
  EXPECT_FALSE(turns.MayStep(kA)) << "B has waited longer";
  ASSERT_TRUE(turns.MayStep(kB));
  again.clear();
  turns.Stepped(kB, false, again);
  EXPECT_EQ(again, std::set<LaneId>{kA}) << "B had nothing to do";
  EXPECT_TRUE(turns.MayStep(kA));
}

TEST(LaneTurns, AClosedLaneHoldsNobodyUp) {
  LaneTurns turns;
  std::set<LaneId> again;
  turns.Open(kA, Of({{1, 2}}));
  turns.Open(kB, Of({{2, 1}}));
  turns.Stepped(kA, true, again);
  EXPECT_FALSE(turns.MayStep(kB));
  turns.Close(kA, again);
  EXPECT_EQ(again, std::set<LaneId>{kB});
  EXPECT_TRUE(turns.MayStep(kB));
}

// As the controller uses it, with lanes that come and go: never two in flight that could wait for
// each other, and whoever has work is served as long as somebody's steps end or it is asked again.
class AtRandom {
 public:
  explicit AtRandom(uint64_t seed) : rng_(seed) {}

  void Run() {
    for (int i = 0; i < 3000; ++i) {
      Act();
      Advance();
      CheckApart();
    }
    for (auto& [id, lane] : lanes_) lane.work = 3;
    for (auto& [id, lane] : lanes_) dirty_.insert(id);
    for (int i = 0; i < 1000 && !AllServed(); ++i) {
      Advance();
      CheckApart();
      for (auto& [id, lane] : lanes_) {
        if (lane.in_flight > 0) End(id, lane);
      }
    }
    EXPECT_TRUE(AllServed());
  }

 private:
  struct Lane {
    Groups groups;
    int work = 0, in_flight = 0;
  };

  void Act() {
    const int64_t what = rng_.Between(0, 9);
    if (what == 0 && lanes_.size() < 6) return Open();
    if (lanes_.empty()) return;
    const auto at = std::next(lanes_.begin(), rng_.Between(0, std::ssize(lanes_) - 1));
    if (what == 1) {
      turns_.Close(at->first, dirty_);
      dirty_.erase(at->first);
      lanes_.erase(at);
    } else if (what < 5) {
      at->second.work += 1;
      dirty_.insert(at->first);
    } else if (at->second.in_flight > 0) {
      End(at->first, at->second);
    }
  }
  void Open() {
    const LaneId id(next_++);
    std::vector<uint64_t> workers = {1, 2, 3, 4};
    for (size_t i = 3; i > 0; --i) {
      std::swap(workers[i], workers[static_cast<size_t>(rng_.Between(0, static_cast<int>(i)))]);
    }
    Lane lane;
    switch (rng_.Between(0, 2)) {
      case 0: lane.groups = Of({workers}); break;
      case 1: lane.groups = Of({{workers[0], workers[1]}, {workers[2], workers[3]}}); break;
      default: lane.groups = Of({{workers[0]}, {workers[1], workers[2]}}); break;
    }
    turns_.Open(id, lane.groups);
    lanes_.emplace(id, std::move(lane));
  }
  void End(LaneId id, Lane& lane) {
    dirty_.insert(id);
    if (--lane.in_flight == 0) turns_.Idle(id, dirty_);
  }
  void Advance() {
    for (int pass = 0; pass < 2; ++pass) {
      for (LaneId id : std::exchange(pass == 0 ? dirty_ : again_, {})) {
        Lane& lane = lanes_.at(id);
        if (!turns_.MayStep(id)) continue;
        for (; lane.work > 0 && lane.in_flight < 2; --lane.work) ++lane.in_flight;
        turns_.Stepped(id, lane.in_flight > 0, again_);
      }
    }
    dirty_.merge(std::exchange(again_, {}));
  }
  static bool CouldWait(const Lane& a, const Lane& b) {
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
    for (const auto& [a, one] : lanes_) {
      for (const auto& [b, other] : lanes_) {
        ASSERT_FALSE(a < b && one.in_flight > 0 && other.in_flight > 0 && CouldWait(one, other));
      }
    }
  }
  bool AllServed() const {
    return std::ranges::all_of(
        lanes_, [](const auto& l) { return l.second.work == 0 && l.second.in_flight == 0; });
  }

  Rng rng_;
  LaneTurns turns_;
  std::map<LaneId, Lane> lanes_;
  std::set<LaneId> dirty_, again_;
  uint64_t next_ = 1;
};

TEST(LaneTurns, NeverInACircleAndNobodyForEver) {
  for (uint64_t seed = 1; seed <= 20 * static_cast<uint64_t>(TestScale()); ++seed) {
    AtRandom(seed).Run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::cluster
