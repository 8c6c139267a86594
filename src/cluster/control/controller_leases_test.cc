// Leases on KV: kept while the puller's heartbeats arrive, however slow the pull is, and after the
// last heartbeat for at most one lease.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

// The first worker computes prompts, the second decodes and pulls the first's KV.
class Leases : public ScriptedWorkers {
 protected:
  void HandOver(int num_blocks = 0) {
    ControllerOptions options = Options();
    options.plan = Chains({{kAll, kPrefill}, {kAll, kDecode}});
    options.scheduler.num_blocks = num_blocks;
    options.silent_limit = Duration::Seconds(1000);  // silent workers are not lost at once
    options.steps.least = options.silent_limit;
    Start(std::move(options));
    Join(1);
    Join(2);
    ASSERT_TRUE(Submit(1).ok());
    EndStep(1);
    ASSERT_EQ(pulls_.size(), 1u);
    ASSERT_EQ(pulls_[0].first, 2u);
  }
  int Exported() const { return static_cast<int>(exported_.size()); }
  int Pinned() const { return c_->Stats().blocks_pinned; }
};

TEST_F(Leases, ASlowPullKeepsItsSource) {
  HandOver();
  const int exported = Exported();
  Pass(100);
  EXPECT_GT(Pinned(), 0) << "its blocks at the source";
  // The source's worker gets the export repeatedly, with the same handle and number of tokens.
  EXPECT_GE(Exported(), exported + 6);
  for (const auto& [worker, sent] : exported_) {
    EXPECT_EQ(worker, 1u);
    EXPECT_EQ(sent.handle, exported_[0].second.handle);
    EXPECT_EQ(sent.tokens, 10);
    EXPECT_EQ(sent.lease, Duration::Seconds(30));
  }
  EXPECT_GT(Describe().counters.leases_renewed, 0u);
  EndPull(0);
  EXPECT_EQ(Describe().counters.moves_failed, 0u);
  ASSERT_EQ(Busy(), (std::set<uint64_t>{2}));
  EXPECT_EQ(steps_[0].second.plan->sequences.at(0).start, 10) << "nothing is computed again";
  EXPECT_EQ(Pinned(), 0);
}

TEST_F(Leases, ASilentPullerLosesTheLease) {
  HandOver();
  const int exported = Exported();
  Pass(60, {2});
  EXPECT_EQ(Exported(), exported);
  EXPECT_EQ(Pinned(), 0);
  EndPull(0);
  EXPECT_EQ(Describe().counters.moves_failed, 1u);
  ASSERT_EQ(Busy(), (std::set<uint64_t>{2}));
  EXPECT_EQ(steps_[0].second.plan->sequences.at(0).start, 0)
      << "the pulled KV may be another request's";
}

// The puller is alive for a while, then silent: the lease ends one hold limit later.
TEST_F(Leases, TheLastLeaseExpires) {
  HandOver();
  Pass(100);
  EXPECT_GT(Pinned(), 0);
  Pass(20, {2});
  EXPECT_GT(Pinned(), 0);
  Pass(11, {2});
  EXPECT_EQ(Pinned(), 0);
  // An expired lease does not come back.
  Pass(10);
  EXPECT_EQ(Pinned(), 0);
  EndPull(0);
  EXPECT_EQ(Describe().counters.moves_failed, 1u);
}

// The decode pipeline has no free blocks for the request for a long time.
TEST_F(Leases, ARequestThatWaitsForBlocksKeepsItsLease) {
  HandOver(/*num_blocks=*/17);
  EndPull(0);
  // A second one is handed over; the first has most of the blocks, and grows.
  for (int step = 0; step < 40; ++step) EndStep(2);
  ASSERT_TRUE(Submit(2, 40).ok());
  EndStep(1);
  EXPECT_TRUE(pulls_.empty()) << "there are no free blocks for it";
  Pass(100);
  EXPECT_GT(Pinned(), 0);
  for (int step = 0; step < 30 && pulls_.empty(); ++step) EndStep(2);
  ASSERT_EQ(pulls_.size(), 1u) << "the first has ended";
  EndPull(0);
  EXPECT_EQ(Describe().counters.moves_failed, 0u);
  EXPECT_EQ(Describe().counters.moves, 2u);
}

// A running request migrates slowly.
TEST_F(Leases, ALiveMoveKeepsItsSource) {
  ControllerOptions options = Options();
  options.plan = Chains({{kAll, kPrefill}, {kAll, kDecode}, {kAll, kDecode}});
  options.silent_limit = Duration::Seconds(1000);
  options.steps.least = options.silent_limit;
  Start(std::move(options));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  ASSERT_TRUE(Submit(1).ok());
  EndStep(1);
  EndPull(0);
  const uint64_t from = *Busy().begin(), to = 5 - from;
  exported_.clear();
  ASSERT_TRUE(c_->Migrate(RequestId(1), Name(to), now_).ok());
  Settle();
  ASSERT_EQ(pulls_.size(), 1u);
  Pass(100);
  int renewed = 0;
  for (const auto& [worker, sent] : exported_) renewed += worker == from ? 1 : 0;
  EXPECT_GE(renewed, 7);
  EndPull(0);
  EndStep(from);
  while (!pulls_.empty()) EndPull(0);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{to}));
  EXPECT_EQ(Describe().counters.moves_failed, 0u);
}

}  // namespace
}  // namespace millrace::cluster
