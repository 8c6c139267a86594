// Random calls against a naive model of the limits, and the order in which pools give memory.
#include "kv/block_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::kv {
namespace {

constexpr int kAccounts = 4;

struct NaivePool {
  std::map<AccountId, int64_t> bytes;  // of a block, by account
  int max = 0, limit = 0, kept = 0;
  int in_use = 0;  // the pool cannot give these
  bool frozen = false;
  uint64_t asked = 0;

  int least() const { return frozen ? limit : std::min(limit, std::max(kept, in_use)); }
};

class LedgerModel {
 public:
  explicit LedgerModel(uint64_t seed)
      : rng_(seed), ledger_([this](PoolId pool, int limit) { return Shrunk(pool, limit); }) {
    for (uint64_t a = 0; a < kAccounts; ++a) {
      capacity_[AccountId(a)] = rng_.Between(500, 2000);
      ledger_.SetCapacity(AccountId(a), capacity_[AccountId(a)]);
    }
  }

  void Step() {
    switch (rng_.Between(0, 7)) {
      case 0: Open(); break;
      case 1: Close(); break;
      case 2:
      case 3: Raise(); break;
      case 4: RaiseIfFree(); break;
      case 5: Keep(); break;
      case 6: Use(); break;
      case 7: rng_.Between(0, 9) == 0 ? Freeze() : Use(); break;
    }
    Check();
  }

  uint64_t raised = 0, refused = 0, shrunk = 0;

 private:
  int64_t Held(AccountId account) const {
    int64_t held = 0;
    for (const auto& [id, pool] : pools_) {
      const auto bytes = pool.bytes.find(account);
      if (bytes != pool.bytes.end()) held += bytes->second * pool.limit;
    }
    return held;
  }

  int Shrunk(PoolId id, int limit) {
    NaivePool& pool = pools_.at(id);
    EXPECT_NE(id, raising_);
    EXPECT_FALSE(pool.frozen);
    EXPECT_GE(limit, pool.kept);
    // With several accounts, each begins with the pool that asked least recently.
    if (!several_) {
      EXPECT_GE(pool.asked, asked_last_) << "taken from a more recent pool first";
    }
    asked_last_ = pool.asked;
    ++shrunk;
    pool.limit = std::min(pool.limit, std::max(limit, pool.in_use));
    return pool.limit;
  }

  std::optional<PoolId> Pick() {
    if (pools_.empty()) return std::nullopt;
    return std::next(pools_.begin(), rng_.Between(0, std::ssize(pools_) - 1))->first;
  }

  void Open() {
    if (pools_.size() == 6) return;
    const PoolId id(++next_);
    NaivePool& pool = pools_[id];
    pool.max = static_cast<int>(rng_.Between(1, 100));
    std::vector<BlockLedger::Share> shares;
    for (uint64_t a = 0; a < kAccounts; ++a) {
      if (rng_.Between(0, 1) == 0) continue;
      const int64_t bytes = rng_.Between(1, 30);
      pool.bytes[AccountId(a)] = bytes;
      shares.push_back({AccountId(a), bytes});
    }
    ledger_.Open(id, std::move(shares), pool.max);
  }

  void Close() {
    const auto id = Pick();
    if (!id) return;
    ledger_.Close(*id);
    pools_.erase(*id);
  }

  // Exact: memory is found if the other pools can give it on every account.
  void Raise() {
    const auto id = Pick();
    if (!id || pools_.at(*id).frozen) return;
    NaivePool& pool = pools_.at(*id);
    const int limit = std::min(pool.max, static_cast<int>(rng_.Between(0, 110)));
    bool fits = true;
    for (const auto& [account, bytes] : pool.bytes) {
      int64_t least = bytes * limit;
      for (const auto& [other_id, other] : pools_) {
        const auto theirs = other.bytes.find(account);
        if (other_id != *id && theirs != other.bytes.end()) least += theirs->second * other.least();
      }
      fits = fits && least <= capacity_.at(account);
    }
    fits = fits || limit <= pool.limit;
    const int before = pool.limit;
    asked_last_ = 0;
    several_ = pool.bytes.size() > 1;
    raising_ = *id;
    ASSERT_EQ(ledger_.Raise(*id, limit), fits);
    pool.limit = ledger_.limit(*id);
    pool.asked = ++clock_;
    ASSERT_GE(pool.limit, fits ? std::max(before, limit) : before);
    ++(fits ? raised : refused);
  }

  void RaiseIfFree() {
    const auto id = Pick();
    if (!id) return;
    NaivePool& pool = pools_.at(*id);
    int64_t more = std::max(0, static_cast<int>(rng_.Between(0, 110)) - pool.limit);
    const int limit = pool.limit + static_cast<int>(more);
    more = std::min<int64_t>(more, pool.max - pool.limit);
    for (const auto& [account, bytes] : pool.bytes) {
      more = std::min(more, (capacity_.at(account) - Held(account)) / bytes);
    }
    if (pool.frozen) more = 0;
    ASSERT_EQ(ledger_.RaiseIfFree(*id, limit), pool.limit + more);
    pool.limit += static_cast<int>(more);
    pool.asked = ++clock_;
  }

  void Keep() {
    const auto id = Pick();
    if (!id) return;
    pools_.at(*id).kept = static_cast<int>(rng_.Between(0, pools_.at(*id).max));
    ledger_.Keep(*id, pools_.at(*id).kept);
  }

  void Use() {
    const auto id = Pick();
    if (id) pools_.at(*id).in_use = static_cast<int>(rng_.Between(0, pools_.at(*id).limit));
  }

  void Freeze() {
    const auto id = Pick();
    if (!id) return;
    NaivePool& pool = pools_.at(*id);
    std::vector<AccountId> stay;
    std::erase_if(pool.bytes, [&](const auto& entry) {
      if (rng_.Between(0, 1) == 0) return true;
      stay.push_back(entry.first);
      return false;
    });
    pool.limit = static_cast<int>(rng_.Between(0, pool.limit));
    pool.in_use = std::min(pool.in_use, pool.limit);
    pool.frozen = true;
    ledger_.Freeze(*id, pool.limit, stay);
  }

  void Check() {
    ledger_.CheckIntegrity();
    for (const auto& [account, capacity] : capacity_) {
      ASSERT_EQ(ledger_.held(account), Held(account));
      ASSERT_LE(Held(account), capacity);
    }
    for (const auto& [id, pool] : pools_) ASSERT_EQ(ledger_.limit(id), pool.limit);
  }

  Rng rng_;
  std::map<AccountId, int64_t> capacity_;
  std::map<PoolId, NaivePool> pools_;
  PoolId raising_;
  bool several_ = false;
  uint64_t asked_last_ = 0, clock_ = 0, next_ = 0;
  BlockLedger ledger_;
};

TEST(BlockLedger, EqualsTheNaiveModel) {
  uint64_t raised = 0, refused = 0, shrunk = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    LedgerModel model(seed);
    for (int i = 0; i < 4'000 * TestScale(); ++i) {
      model.Step();
      if (testing::Test::HasFailure()) return;
    }
    raised += model.raised;
    refused += model.refused;
    shrunk += model.shrunk;
  }
  EXPECT_GT(raised, 300u);
  EXPECT_GT(refused, 300u);
  EXPECT_GT(shrunk, 300u);
}

TEST(BlockLedger, TakesFromThePoolThatAskedLeastRecently) {
  std::vector<PoolId> asked;
  BlockLedger ledger([&](PoolId pool, int limit) {
    asked.push_back(pool);
    return limit;
  });
  const AccountId worker(1);
  ledger.SetCapacity(worker, 100);
  for (uint64_t p = 1; p <= 3; ++p) ledger.Open(PoolId(p), {{worker, 10}}, 10);
  EXPECT_TRUE(ledger.Raise(PoolId(1), 4));
  EXPECT_TRUE(ledger.Raise(PoolId(2), 6));
  EXPECT_TRUE(ledger.Raise(PoolId(1), 4));  // was used again
  EXPECT_TRUE(ledger.Raise(PoolId(3), 7));
  EXPECT_EQ(asked, (std::vector{PoolId(2), PoolId(1)}));
  EXPECT_EQ(ledger.limit(PoolId(1)), 3);
  EXPECT_EQ(ledger.limit(PoolId(2)), 0);
  ledger.Keep(PoolId(1), 3);
  EXPECT_FALSE(ledger.Raise(PoolId(3), 8));
}

// A worker has less memory for KV than before, because it has loaded more weights.
TEST(BlockLedger, ALowerCapacityLetsNoPoolGrow) {
  BlockLedger ledger([](PoolId pool, int limit) { return pool == PoolId(1) ? limit : 3; });
  const AccountId worker(1);
  ledger.SetCapacity(worker, 100);
  for (uint64_t p = 1; p <= 2; ++p) ledger.Open(PoolId(p), {{worker, 10}}, 10);
  EXPECT_TRUE(ledger.Raise(PoolId(1), 6));
  EXPECT_TRUE(ledger.Raise(PoolId(2), 3));
  ledger.SetCapacity(worker, 60);
  ledger.CheckIntegrity();
  EXPECT_EQ(ledger.RaiseIfFree(PoolId(2), 4), 3);
  EXPECT_FALSE(ledger.Raise(PoolId(1), 7)) << "the other one gives nothing";
  EXPECT_TRUE(ledger.Raise(PoolId(2), 5)) << "what is missing comes from the other one";
  EXPECT_EQ(ledger.limit(PoolId(1)), 1);
  ledger.CheckIntegrity();
}

TEST(BlockLedger, SaysWhatWouldFitWithoutOthers) {
  BlockLedger ledger([](PoolId, int limit) { return limit; });
  const AccountId one(1), two(2);
  for (AccountId worker : {one, two}) ledger.SetCapacity(worker, 100);
  ledger.Open(PoolId(1), {{one, 10}}, 10);
  ledger.Open(PoolId(2), {{two, 20}}, 5);
  ledger.Open(PoolId(3), {{one, 10}, {two, 10}}, 10);
  EXPECT_TRUE(ledger.Raise(PoolId(1), 8));
  EXPECT_TRUE(ledger.Raise(PoolId(2), 2));
  const auto without = [&](std::set<PoolId> gone, int limit) {
    return ledger.FitsWithout([&](PoolId id) { return gone.contains(id); }, PoolId(3), limit);
  };
  EXPECT_TRUE(without({}, 2));
  EXPECT_FALSE(without({}, 3));
  EXPECT_FALSE(without({PoolId(2)}, 3));
  EXPECT_TRUE(without({PoolId(1)}, 6));
  EXPECT_FALSE(without({PoolId(1)}, 7));
  EXPECT_TRUE(without({PoolId(1), PoolId(2)}, 10));
  EXPECT_FALSE(without({PoolId(1), PoolId(2)}, 11));
}

TEST(BlockLedger, FrozenPoolsKeepTheirMemoryOnTheirAccounts) {
  BlockLedger ledger([](PoolId, int limit) { return limit; });
  const AccountId lost(1), survivor(2);
  ledger.SetCapacity(lost, 100);
  ledger.SetCapacity(survivor, 100);
  ledger.Open(PoolId(1), {{lost, 10}, {survivor, 5}}, 10);
  EXPECT_TRUE(ledger.Raise(PoolId(1), 10));
  ledger.Freeze(PoolId(1), 8, std::vector{survivor});
  ledger.CloseAccount(lost);
  EXPECT_EQ(ledger.held(survivor), 40);
  ledger.Open(PoolId(2), {{survivor, 10}}, 10);
  EXPECT_FALSE(ledger.Raise(PoolId(2), 10));
  EXPECT_EQ(ledger.limit(PoolId(2)), 6);
  ledger.Close(PoolId(1));
  EXPECT_TRUE(ledger.Raise(PoolId(2), 10));
}

}  // namespace
}  // namespace millrace::kv
