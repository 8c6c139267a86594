#include "cluster/store/leader_election.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cluster/store/testing/store_conformance.h"
#include "cluster/store/testing/watch_log.h"

namespace millrace::cluster::testing {
namespace {

// A candidate with its own connection, which records its callbacks.
class Candidate {
 public:
  Candidate(std::shared_ptr<Store> store, const std::string& name, Duration ttl,
            Duration regain_limit = Duration::Seconds(60))
      : store_(std::move(store)),
        election_(store_, clock_,
                  {.candidate = name, .lease_ttl = ttl, .regain_limit = regain_limit},
                  [this](std::optional<Leadership> leadership, const Status&) {
                    std::lock_guard lock(mutex_);
                    if (leadership) terms_.push_back(leadership->term);
                    led_ = leadership;
                    if (leadership) last_ = leadership;
                    if (!leadership) lost_at_ = clock_.Now();
                    changed_.notify_all();
                  }) {}

  bool WaitUntilLeading(bool leading = true) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return led_.has_value() == leading; });
  }
  bool leading() {
    std::lock_guard lock(mutex_);
    return led_.has_value();
  }
  Leadership last() {
    std::lock_guard lock(mutex_);
    return *last_;
  }
  std::vector<Term> terms() {
    std::lock_guard lock(mutex_);
    return terms_;
  }
  Time lost_at() {
    std::lock_guard lock(mutex_);
    return lost_at_;
  }

  CuttableStore& store() { return store_; }
  LeaderElection& election() { return election_; }

 private:
  const SteadyClock clock_;
  CuttableStore store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Leadership> led_, last_;
  std::vector<Term> terms_;
  Time lost_at_;
  LeaderElection election_;  // last: its thread uses the members above
};

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Candidate* LeaderOf(std::vector<std::unique_ptr<Candidate>>& all, const Candidate* except) {
  for (auto& one : all) {
    if (one.get() != except && one->leading()) return one.get();
  }
  return nullptr;
}

}  // namespace

TEST_P(StoreConformance, ADisconnectedLeaderIsReplacedAndItsWritesAreFenced) {
  const Duration ttl = fixture().shortest_ttl();
  std::vector<std::unique_ptr<Candidate>> all;
  for (const char* name : {"a", "b", "c"}) {
    all.push_back(std::make_unique<Candidate>(Connect(), name, ttl));
    all.back()->election().Campaign();
  }
  Candidate* first = nullptr;
  ASSERT_TRUE(Eventually([&] { return (first = LeaderOf(all, nullptr)) != nullptr; }));
  const Leadership old = first->last();
  EXPECT_TRUE(first->store().Put("plan", "of the first", {.fence = old.fence}).ok());
  ASSERT_TRUE(Eventually([&] {
    return all[0]->election().leader().has_value() && all[1]->election().leader().has_value() &&
           all[2]->election().leader().has_value();
  }));

  first->store().Cut();
  Candidate* second = nullptr;
  ASSERT_TRUE(Eventually([&] { return (second = LeaderOf(all, first)) != nullptr; }));
  EXPECT_FALSE(first->election().leadership().has_value())
      << "the old leader must step down before another one is elected";
  const Leadership now = second->last();
  EXPECT_GT(now.term, old.term);

  first->store().Reconnect();
  ASSERT_TRUE(first->WaitUntilLeading(false));
  EXPECT_EQ(first->store().Put("plan", "of the zombie", {.fence = old.fence}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(second->store().Put("plan", "of the second", {.fence = now.fence}).ok());
  EXPECT_EQ((*Connect()->Get("plan"))->value, "of the second");

  // The second leader resigns, and another candidate leads with a greater term.
  second->election().Resign();
  EXPECT_FALSE(second->leading());
  EXPECT_FALSE(second->election().leadership().has_value());
  Candidate* third = nullptr;
  ASSERT_TRUE(Eventually([&] { return (third = LeaderOf(all, second)) != nullptr; }));
  EXPECT_GT(third->last().term, now.term);
}

// Without a rival it goes on with its term.
TEST_P(StoreConformance, ADisconnectedLeaderIsNotSureWhenItsLeaseEnds) {
  const Duration ttl = fixture().shortest_ttl();
  Candidate candidate(Connect(), "a", ttl);
  candidate.election().Campaign();
  ASSERT_TRUE(candidate.WaitUntilLeading());
  const Time cut = SteadyClock().Now();
  candidate.store().Cut();
  // leadership() is exact, independent of thread timing. The granted lease may be longer than
  // requested, but not twice as long.
  ASSERT_TRUE(Eventually([&] { return !candidate.election().leadership().has_value(); }));
  EXPECT_LE((SteadyClock().Now() - cut).seconds(), 2 * ttl.seconds() + 0.5);
  const Leadership before = candidate.last();
  candidate.store().Reconnect();
  ASSERT_TRUE(Eventually([&] { return candidate.terms().size() == 2; }));
  EXPECT_EQ(candidate.last().term, before.term);
  EXPECT_GT(candidate.last().fence.created, before.fence.created);
  EXPECT_TRUE(candidate.election().leadership().has_value());
  EXPECT_TRUE(candidate.store().Put("plan", "x", {.fence = candidate.last().fence}).ok());
  EXPECT_FALSE(candidate.store().Put("plan", "y", {.fence = before.fence}).ok());
}

// Somebody else led in the meantime and is gone.
TEST_P(StoreConformance, ALeaderThatHadASuccessorLeadsWithANewTerm) {
  Candidate first(Connect(), "a", fixture().shortest_ttl());
  first.election().Campaign();
  ASSERT_TRUE(first.WaitUntilLeading());
  const Term before = first.last().term;
  first.store().Cut();
  Term between;
  {
    Candidate second(Connect(), "b", fixture().shortest_ttl());
    second.election().Campaign();
    ASSERT_TRUE(second.WaitUntilLeading());
    between = second.last().term;
  }
  EXPECT_GT(between, before);
  first.store().Reconnect();
  ASSERT_TRUE(Eventually([&] { return first.terms().size() == 2; }));
  EXPECT_GT(first.last().term, between);
}

// The store may be away only for it, and then another one leads.
TEST_P(StoreConformance, ALeaderThatCannotReachTheStoreForLongGivesUp) {
  Candidate candidate(Connect(), "a", fixture().shortest_ttl(), Duration::Millis(200));
  candidate.election().Campaign();
  ASSERT_TRUE(candidate.WaitUntilLeading());
  candidate.store().Cut();
  EXPECT_TRUE(candidate.WaitUntilLeading(false));
}

TEST_P(StoreConformance, ALeaderGivesWayWhenItIsTold) {
  Candidate candidate(Connect(), "a", Duration::Seconds(60));
  candidate.election().Campaign();
  ASSERT_TRUE(candidate.WaitUntilLeading());
  const Term before = candidate.last().term;
  candidate.election().GiveWay(Unavailable("another one leads"));
  ASSERT_TRUE(Eventually([&] { return candidate.terms().size() == 2; }));
  EXPECT_GT(candidate.last().term, before) << "it was elected anew, because nobody led";
}

TEST_P(StoreConformance, ALeaderTakesADeletedKeyAgain) {
  Candidate candidate(Connect(), "a", Duration::Seconds(60));
  candidate.election().Campaign();
  ASSERT_TRUE(candidate.WaitUntilLeading());
  const Term first = candidate.last().term;
  ASSERT_TRUE(Connect()->Delete("leader").ok());
  ASSERT_TRUE(Eventually([&] { return candidate.terms().size() == 2; }));
  EXPECT_EQ(candidate.last().term, first);
}

TEST_P(StoreConformance, AnotherLeadsAfterAResignationWithoutWaitingForTheLease) {
  Candidate one(Connect(), "one", Duration::Seconds(600));
  Candidate two(Connect(), "two", Duration::Seconds(600));
  one.election().Campaign();
  ASSERT_TRUE(one.WaitUntilLeading());
  two.election().Campaign();
  for (int round = 0; round < 3; ++round) {
    Candidate& from = round % 2 == 0 ? one : two;
    Candidate& to = round % 2 == 0 ? two : one;
    from.election().Resign();
    EXPECT_FALSE(from.leading());
    ASSERT_TRUE(to.WaitUntilLeading());
    EXPECT_GT(to.last().term, from.last().term);
    from.election().Campaign();
  }
  EXPECT_TRUE(Eventually([&] {
    const std::optional<Leader> seen = one.election().leader();
    return seen && seen->candidate == "two" && seen->term == two.last().term;
  }));
}

}  // namespace millrace::cluster::testing
