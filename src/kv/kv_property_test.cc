// Random operations on tables against a naive model that recounts everything from scratch and keeps
// the content of every block: a table must always read back its own tokens.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "kv/kv_cache.h"

namespace millrace::kv {
namespace {

constexpr int kBlock = 3;
constexpr int kDeviceBlocks = 24;
constexpr int kHostBlocks = 10;
constexpr int kTablesMax = 8;

using Content = std::vector<std::vector<TokenId>>;  // by block

struct SequenceTables {
  std::vector<TokenId> tokens;
  PrefixChain chain;
  BlockTable device, host;
  bool swapped = false;
};

class Model {
 public:
  explicit Model(uint64_t seed)
      : rng_(seed),
        kv_({.block_size = kBlock,
             .num_blocks = kDeviceBlocks,
             .num_host_blocks = kHostBlocks,
             .eviction = seed % 2 == 0 ? "lru" : "slru",
             .hashes_collide = seed % 4 == 0}),
        device_(kDeviceBlocks, std::vector<TokenId>(kBlock)),
        host_(kHostBlocks, std::vector<TokenId>(kBlock)) {}

  void Step() {
    switch (rng_.Between(0, 12)) {
      case 0:
      case 1: Begin(); break;
      case 2:
      case 3:
      case 4: Append(); break;
      case 5: Fork(); break;
      case 6: End(); break;
      case 7: CompleteSteps(); break;
      case 8: Swap(); break;
      case 9: Pin(); break;
      case 10: Unpin(); break;
      case 11: rng_.Between(0, 200) == 0 ? kv_.ResetPrefixes() : IndexOne(); break;
      case 12: Limit(); break;
    }
    Check();
  }

  void Audit() {
    std::vector<const BlockTable*> device, host;
    for (auto& [id, life] : lives_) {
      device.push_back(&life.device);
      host.push_back(&life.host);
    }
    kv_.CheckIntegrity(device, host);
  }

  uint64_t hits = 0, copies = 0, swaps = 0, refused = 0, returned = 0;

 private:
  int CountDevice(bool (Model::*state)(BlockIndex) const) const {
    int count = 0;
    for (BlockIndex i = 0; i < kDeviceBlocks; ++i) count += (this->*state)(i) ? 1 : 0;
    return count;
  }
  bool Owned(BlockIndex block) const {
    for (const auto& [id, life] : lives_) {
      for (BlockHandle b : life.device) {
        if (b.index == block) return true;
      }
    }
    return false;
  }
  bool Pinned(BlockIndex block) const {
    if (Owned(block)) return false;
    for (const auto& [transfer, pin] : pins_) {
      if (pin.second.contains(block)) return true;
    }
    return false;
  }
  bool Pending(BlockIndex block) const {
    return !Owned(block) && !Pinned(block) && in_use_[block] > done_;
  }

  void Check() {
    const BlockPool& pool = kv_.device();
    ASSERT_EQ(pool.count(BlockState::kOwned), CountDevice(&Model::Owned));
    ASSERT_EQ(pool.count(BlockState::kPinned), CountDevice(&Model::Pinned));
    ASSERT_EQ(pool.count(BlockState::kPendingFree), CountDevice(&Model::Pending));
    ASSERT_EQ(pool.in_use(), std::ssize(Unavailable()));
    ASSERT_EQ(pool.available(), pool.limit() - pool.in_use());
    ASSERT_LE(pool.held(), pool.limit());
    for (const auto& [id, life] : lives_) {
      const BlockTable& table = life.swapped ? life.host : life.device;
      const Content& content = life.swapped ? host_ : device_;
      for (size_t p = 0; p < life.tokens.size(); ++p) {
        ASSERT_EQ(content[table[p / kBlock].index][p % kBlock], life.tokens[p])
            << "table " << id << " position " << p;
      }
    }
  }

  SequenceTables* Pick(bool swapped) {
    std::vector<SequenceTables*> some;
    for (auto& [id, life] : lives_) {
      if (life.swapped == swapped) some.push_back(&life);
    }
    return some.empty() ? nullptr : some[rng_.Between(0, std::ssize(some) - 1)];
  }

  // Blocks that get an owner now must have had none.
  void Written(SequenceTables& life, size_t from) {
    for (size_t p = from; p < life.tokens.size(); ++p) {
      device_[life.device[p / kBlock].index][p % kBlock] = life.tokens[p];
    }
  }
  std::set<BlockIndex> Unavailable() const {
    std::set<BlockIndex> blocks;
    for (BlockIndex i = 0; i < kDeviceBlocks; ++i) {
      if (Owned(i) || Pinned(i) || Pending(i)) blocks.insert(i);
    }
    return blocks;
  }
  bool Grow(SequenceTables& life, int tokens) {
    const auto taken = Unavailable();
    const size_t before = life.device.size();
    const int missing = kv_.BlocksFor(tokens) - static_cast<int>(before);
    const bool fits = missing <= kv_.device().limit() - static_cast<int>(taken.size());
    EXPECT_EQ(kv_.Grow(life.device, tokens), fits);
    refused += fits ? 0 : 1;
    for (size_t i = before; i < life.device.size(); ++i) {
      EXPECT_FALSE(taken.contains(life.device[i].index)) << "block allocated twice";
    }
    return fits;
  }

  void Begin() {
    if (lives_.size() == kTablesMax) return;
    SequenceTables life;
    // Few different prompts, so that prefixes often match.
    const TokenId first = static_cast<TokenId>(rng_.Between(0, 2));
    for (int64_t t = rng_.Between(1, 14); t > 0; --t) {
      life.tokens.push_back(rng_.Between(0, 9) == 0 ? 5 : first);
    }
    life.chain = kv_.NewChain(rng_.Between(0, 3) == 0 ? "salt" : "");
    const TokenView view{life.tokens, {}};
    const PrefixMatch match = kv_.Match(life.chain, view, view.size() - 1);
    kv_.TakeMatch(life.chain, life.device);
    hits += match.blocks;
    for (int p = 0; p < match.blocks * kBlock; ++p) {
      ASSERT_EQ(device_[life.device[p / kBlock].index][p % kBlock], life.tokens[p]) << "wrong hit";
    }
    const uint64_t id = next_++;
    SequenceTables& kept = lives_[id] = std::move(life);
    if (!Grow(kept, static_cast<int>(kept.tokens.size()))) {
      kv_.Free(kept.device, std::nullopt);
      lives_.erase(id);
      return;
    }
    Written(kept, match.blocks * kBlock);
  }

  void Append() {
    SequenceTables* life = Pick(false);
    if (!life) return;
    const size_t position = life->tokens.size();
    const size_t block = position / kBlock;
    if (block < life->device.size()) {
      if (kv_.NeedsCopy(life->device, static_cast<int>(block)) && kv_.available() == 0) return;
      std::vector<BlockCopy> list;
      if (kv_.MakeWritable(life->device, static_cast<int>(block), list)) ++copies;
      for (BlockCopy c : list) device_[c.to] = device_[c.from];
    } else if (!Grow(*life, static_cast<int>(position) + 1)) {
      return;
    }
    life->tokens.push_back(static_cast<TokenId>(rng_.Between(0, 5)));
    Written(*life, position);
  }

  void Fork() {
    SequenceTables* parent = Pick(false);
    if (!parent || lives_.size() == kTablesMax) return;
    SequenceTables child;
    child.tokens = parent->tokens;
    child.chain = parent->chain;
    kv_.Fork(parent->device, child.device);
    lives_[next_++] = std::move(child);
  }

  void End() {
    if (lives_.empty()) return;
    const auto it = std::next(lives_.begin(), rng_.Between(0, std::ssize(lives_) - 1));
    SequenceTables& life = it->second;
    std::optional<StepId> step;
    if (rng_.Between(0, 1)) {
      step = StepId(rng_.Between(done_, done_ + 4));
      for (BlockHandle b : life.device) {
        in_use_[b.index] = std::max(in_use_[b.index], static_cast<int64_t>(step->value()));
      }
    }
    kv_.Free(life.device, step);
    kv_.FreeHost(life.host);
    lives_.erase(it);
  }

  void CompleteSteps() {
    done_ += rng_.Between(0, 2);
    kv_.CompleteSteps(StepId(done_));
  }

  // Sometimes two sequences at once, so that shared blocks move once.
  void Swap() {
    const bool out = rng_.Between(0, 1);
    std::set<SequenceTables*> group;
    for (int64_t k = rng_.Between(1, 2); k > 0; --k) {
      if (SequenceTables* life = Pick(!out)) group.insert(life);
    }
    if (group.empty()) return;
    std::vector<SwapMove> moves;
    for (SequenceTables* life : group) {
      moves.push_back({out ? &life->device : &life->host, out ? &life->host : &life->device, {}});
    }
    std::vector<BlockCopy> list;
    if (!(out ? kv_.SwapOut(moves, list) : kv_.SwapIn(moves, list))) return;
    ++swaps;
    for (BlockCopy c : list) {
      if (out) {
        host_[c.to] = device_[c.from];
      } else {
        device_[c.to] = host_[c.from];
      }
    }
    for (SequenceTables* life : group) life->swapped = out;
  }

  void Pin() {
    SequenceTables* life = Pick(false);
    if (!life || pins_.size() == 3) return;
    const PinId transfer(next_++);
    std::set<BlockIndex> blocks;
    for (BlockHandle b : life->device) blocks.insert(b.index);
    const Time until{now_ + rng_.Between(1, 50)};
    kv_.device().Pin(transfer, life->device, until);
    pins_[transfer] = {until, blocks};
  }

  void Unpin() {
    if (rng_.Between(0, 1) && !pins_.empty()) {
      kv_.device().Unpin(pins_.begin()->first);
      pins_.erase(pins_.begin());
    }
    now_ += rng_.Between(0, 20);
    kv_.device().SweepPins(Time{now_});
    std::erase_if(pins_, [&](const auto& pin) { return pin.second.first <= Time{now_}; });
  }

  void IndexOne() {
    SequenceTables* life = Pick(false);
    if (!life) return;
    const TokenView view{life->tokens, {}};
    kv_.Index(life->chain, view, life->device,
              static_cast<int>(rng_.Between(0, std::ssize(life->tokens))));
  }

  // The content of a block that was taken away is gone, so no table may read it any more.
  void Limit() {
    const int in_use = static_cast<int>(Unavailable().size());
    const int before = kv_.device().limit();
    const int limit = static_cast<int>(rng_.Between(-2, kDeviceBlocks + 2));
    const int least = limit < before ? in_use : 0;
    ASSERT_EQ(kv_.SetLimit(limit), std::clamp(limit, least, kDeviceBlocks));
    const std::vector<BlockIndex> gone =
        kv_.device().TakeReturned([&](BlockIndex) { return rng_.Between(0, 2) == 0; });
    for (BlockIndex b : gone) device_[b].assign(kBlock, -1);
    returned += gone.size();
  }

  Rng rng_;
  KvCache kv_;
  Content device_, host_;
  std::map<uint64_t, SequenceTables> lives_;
  std::map<PinId, std::pair<Time, std::set<BlockIndex>>> pins_;
  std::vector<int64_t> in_use_ = std::vector<int64_t>(kDeviceBlocks, 0);
  int64_t done_ = 0;
  int64_t now_ = 0;
  uint64_t next_ = 1;
};

// Reliability case 60. The full suite does a million operations.
TEST(KvProperty, EqualsTheNaiveModel) {
  const int operations = 40'000 * TestScale();
  uint64_t hits = 0, copies = 0, swaps = 0, refused = 0, returned = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed);
    for (int i = 0; i < operations / 8; ++i) {
      model.Step();
      if (testing::Test::HasFailure()) return;
      if (i % 64 == 0) model.Audit();
    }
    hits += model.hits;
    copies += model.copies;
    swaps += model.swaps;
    refused += model.refused;
    returned += model.returned;
  }
  EXPECT_GT(hits, 300u);
  EXPECT_GT(copies, 300u);
  EXPECT_GT(swaps, 300u);
  EXPECT_GT(refused, 300u);
  EXPECT_GT(returned, 300u);
}

}  // namespace
}  // namespace millrace::kv
