#include "sched/kv_transfers.h"

#include <gtest/gtest.h>

#include <vector>

#include "kv/block_pool.h"

namespace millrace::sched {
namespace {

constexpr RequestId kId{7};
constexpr int kBlockSize = 4;

class KvTransfers : public ::testing::Test {
 protected:
  kv::BlockTable Table(int blocks) {
    kv::BlockTable table;
    for (int i = 0; i < blocks; ++i) table.push_back(pool_.Allocate()->block);
    return table;
  }
  void Drop(const kv::BlockTable& table) {
    for (const kv::BlockHandle block : table) pool_.DropRef(block, std::nullopt);
  }
  size_t Ready(uint64_t first_in_flight) {
    std::vector<KvPull> pulls;
    pulls_.TakeReady(StepId(first_in_flight), pulls);
    return pulls.size();
  }

  kv::BlockPool pool_{8};
  IncomingPulls pulls_{pool_, kBlockSize};
  KvHolds holds_{pool_};
};

TEST_F(KvTransfers, APullWaitsForTheStepThatCopiesOutOfItsBlocks) {
  const kv::BlockTable table = Table(3);
  const BlockCopy copy{.from = table[2].index, .to = 0};
  pulls_.NoteReads({&copy, 1}, StepId(5));
  EXPECT_TRUE(pulls_.IsRead(table[2].index, StepId(5)));
  EXPECT_FALSE(pulls_.IsRead(table[2].index, StepId(6)));
  pulls_.Ask(kId, 0, 0, 12, table);
  EXPECT_TRUE(pulls_.AnyWaitsFor(StepId(5)));
  EXPECT_EQ(Ready(5), 0u);
  EXPECT_EQ(Ready(6), 1u);
  EXPECT_EQ(Ready(6), 0u) << "handed out once";
  EXPECT_TRUE(pulls_.due(kId)) << "it has not ended";
}

TEST_F(KvTransfers, CopiesThatAreNotMadeDelayNothing) {
  const kv::BlockTable table = Table(1);
  const BlockCopy copy{.from = table[0].index, .to = 0};
  pulls_.NoteReads({&copy, 1}, StepId(5));
  pulls_.Ask(kId, 0, 0, 4, table);
  pulls_.DropReads({&copy, 1}, StepId(5));
  EXPECT_EQ(Ready(5), 1u);
}

// Pinned until the last pull of the request has ended: only the blocks that are written.
TEST_F(KvTransfers, PulledBlocksOutliveTheirTable) {
  const kv::BlockTable table = Table(4);
  pulls_.Ask(kId, 0, 5, 8, kv::BlockTable(table.begin(), table.begin() + 2));
  pulls_.Ask(kId, 0, 8, 16, table);
  Drop(table);
  EXPECT_EQ(pool_.count(kv::BlockState::kPinned), 3) << "the first block is not written";
  EXPECT_TRUE(pulls_.End(kId));
  EXPECT_EQ(pool_.count(kv::BlockState::kPinned), 3);
  EXPECT_TRUE(pulls_.End(kId));
  EXPECT_EQ(pool_.count(kv::BlockState::kPinned), 0);
  EXPECT_FALSE(pulls_.End(kId)) << "none is left";
  EXPECT_FALSE(pulls_.due(kId));
}

TEST_F(KvTransfers, HeldAndPulledBlocksOfARequestAreApart) {
  const kv::BlockTable table = Table(2);
  EXPECT_TRUE(holds_.Hold(kId, table, Time{100}));
  pulls_.Ask(kId, 0, 0, 4, Table(1));
  EXPECT_TRUE(pulls_.End(kId));
  EXPECT_EQ(holds_.BlocksOf(kId).size(), 2u);
  holds_.Release(kId);
  EXPECT_TRUE(holds_.BlocksOf(kId).empty());
}

TEST_F(KvTransfers, AHoldGrowsAndIsRenewedWhileItLasts) {
  const kv::BlockTable table = Table(3);
  EXPECT_TRUE(holds_.Hold(kId, std::span(table).first(2), Time{100}));
  EXPECT_TRUE(holds_.Hold(kId, table, Time{200}));
  EXPECT_EQ(holds_.BlocksOf(kId).size(), 3u);
  EXPECT_FALSE(holds_.Hold(kId, std::span(table).last(2), Time{300})) << "other blocks are held";
  EXPECT_TRUE(holds_.Extend(kId, Time{199}, Duration{50}));
  EXPECT_TRUE(holds_.Extend(kId, Time{248}, Duration{50}));
  EXPECT_FALSE(holds_.Extend(kId, Time{298}, Duration{50})) << "it has expired";
}

}  // namespace
}  // namespace millrace::sched
