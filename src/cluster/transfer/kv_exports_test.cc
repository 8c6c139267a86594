#include "cluster/transfer/kv_exports.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "base/testing/test_time.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster {
namespace {

constexpr int kBlockSize = 4;
constexpr LayerRange kLayers{2, 6};
constexpr Duration kLease = Duration::Seconds(10);

KvHandle Handle(uint64_t generation, uint64_t pipeline = 1, uint8_t nonce = 7) {
  KvHandle handle{.pipeline = PipelineId(pipeline), .generation = generation};
  handle.nonce.fill(nonce);
  return handle;
}

std::vector<BlockIndex> Blocks(int count, BlockIndex first = 0) {
  std::vector<BlockIndex> blocks(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) blocks[static_cast<size_t>(i)] = first + i;
  return blocks;
}

ExportKv Exported(const KvHandle& handle, int tokens, Duration lease = kLease) {
  return {handle, Blocks((tokens + kBlockSize - 1) / kBlockSize), tokens, lease};
}

std::shared_ptr<stage::Stage> AnyStage() {
  return std::make_shared<stage::HashStage>(stage::HashModel{.num_layers = 8, .heads = 4},
                                            LayerRange{0, 8}, std::pair(0, 2));
}

stage::KvBox Tokens(int first, int end) { return {kLayers, 0, 2, first, end}; }

class KvExportsTest : public ::testing::Test {
 protected:
  Status Export(const ExportKv& message, Time now = At(0)) {
    const Status status = kv_.Export(kLayers, stage_, message, now);
    kv_.CheckIntegrity();
    return status;
  }
  StatusCode Pull(const KvHandle& handle, int first, int end, Time now = At(1)) {
    const auto lease = kv_.BeginPull(handle, Tokens(first, end), now);
    if (lease.ok()) {
      EXPECT_TRUE(kv_.EndPull(lease->ticket).ok());
    }
    kv_.CheckIntegrity();
    return lease.status().code();
  }
  const std::shared_ptr<stage::Stage> stage_ = AnyStage();
  KvExports kv_{{.exports = 4, .blocks = 64, .pulls_each = 2, .remembered = 3}};
};

TEST_F(KvExportsTest, FromComputingToReleased) {
  const KvHandle h = Handle(1);
  ASSERT_TRUE(Export(Exported(h, 0)).ok());
  EXPECT_EQ(kv_.StateOf(h), ExportState::kComputing);
  EXPECT_EQ(Pull(h, 0, 1), StatusCode::kNotFound) << "not there yet";
  ASSERT_TRUE(Export(Exported(h, 10)).ok());
  EXPECT_EQ(kv_.StateOf(h), ExportState::kHeld);
  const auto lease = kv_.BeginPull(h, Tokens(3, 10), At(1));
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(*lease->blocks, Blocks(3));
  EXPECT_EQ(kv_.StateOf(h), ExportState::kPulling);
  ASSERT_TRUE(Export(Exported(h, 14)).ok()) << "extended while it is read";
  EXPECT_EQ(lease->blocks->size(), 3u) << "the pull keeps its table";
  EXPECT_TRUE(kv_.EndPull(lease->ticket).ok());
  EXPECT_EQ(Pull(h, 10, 14), StatusCode::kOk);
  EXPECT_EQ(Pull(h, 10, 15), StatusCode::kNotFound);
  EXPECT_EQ(Pull(h, 4, 4), StatusCode::kInvalidArgument);
  EXPECT_EQ(Pull(h, -1, 4), StatusCode::kInvalidArgument);
  kv_.Release(h);
  EXPECT_EQ(kv_.size(), 0u);
  EXPECT_EQ(Pull(h, 0, 4), StatusCode::kFailedPrecondition) << "never again";
  KvHandle forged = h;
  forged.nonce[3] ^= 1;
  EXPECT_EQ(Pull(forged, 0, 4), StatusCode::kNotFound) << "only its holder is told that it ended";
  EXPECT_EQ(Export(Exported(h, 20)).code(), StatusCode::kFailedPrecondition) << "replayed";
  const KvExportsCounters& c = kv_.counters();
  EXPECT_EQ(c.exposed, 1u);
  EXPECT_EQ(c.released, 1u);
  EXPECT_EQ(c.extended, 2u);
  EXPECT_EQ(c.pulls_begun, 2u);
  EXPECT_EQ(c.pulls_ended, 2u);
  EXPECT_EQ(c.stale, 2u);
  EXPECT_EQ(c.replayed, 1u);
}

TEST_F(KvExportsTest, AWrongNonceIsRefused) {
  const KvHandle h = Handle(1);
  ASSERT_TRUE(Export(Exported(h, 10)).ok());
  for (size_t i = 0; i < h.nonce.size(); ++i) {
    KvHandle wrong = h;
    wrong.nonce[i] ^= 1;
    EXPECT_EQ(Pull(wrong, 0, 4), StatusCode::kNotFound);
    kv_.Release(wrong);
    EXPECT_FALSE(Export(Exported(wrong, 12)).ok());
    EXPECT_FALSE(kv_.StateOf(wrong).has_value());
  }
  EXPECT_EQ(kv_.counters().forged, 48u);
  EXPECT_EQ(Pull(Handle(2), 0, 4), StatusCode::kNotFound) << "the same answer";
  EXPECT_EQ(kv_.counters().unknown, 1u);
  EXPECT_EQ(kv_.StateOf(h), ExportState::kHeld);
}

TEST_F(KvExportsTest, AnExpiredLeaseWaitsForThePull) {
  const KvHandle h = Handle(1);
  ASSERT_TRUE(Export(Exported(h, 10)).ok());
  ASSERT_TRUE(Export(Exported(h, 10), At(5)).ok()) << "renewed";
  const auto lease = kv_.BeginPull(h, Tokens(0, 10), At(14));
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(Pull(h, 0, 4, At(15)), StatusCode::kFailedPrecondition) << "expired, though not swept";
  kv_.Sweep(At(16));
  EXPECT_EQ(kv_.StateOf(h), ExportState::kPulling);
  EXPECT_EQ(Pull(h, 0, 4, At(14)), StatusCode::kFailedPrecondition) << "no new pull";
  EXPECT_EQ(Export(Exported(h, 12), At(16)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(kv_.EndPull(lease->ticket).code(), StatusCode::kFailedPrecondition)
      << "taken back meanwhile";
  EXPECT_EQ(kv_.size(), 0u);
  EXPECT_EQ(kv_.counters().expired, 1u);
  EXPECT_EQ(kv_.counters().taken_back, 1u);
}

TEST_F(KvExportsTest, AClosedPipelineWaitsForItsReaders) {
  ASSERT_TRUE(Export(Exported(Handle(1, 1), 4)).ok());
  ASSERT_TRUE(Export(Exported(Handle(2, 1), 4)).ok());
  ASSERT_TRUE(Export(Exported(Handle(3, 2), 4)).ok());
  const auto lease = kv_.BeginPull(Handle(2, 1), Tokens(0, 4), At(1));
  kv_.ClosePipeline(PipelineId(1));
  kv_.CheckIntegrity();
  EXPECT_EQ(kv_.size(), 2u);
  EXPECT_EQ(kv_.StateOf(Handle(2, 1)), ExportState::kPulling);
  EXPECT_FALSE(kv_.EndPull(lease->ticket).ok());
  EXPECT_EQ(kv_.size(), 1u);
}

TEST_F(KvExportsTest, OnlyGrows) {
  const KvHandle h = Handle(1);
  ASSERT_TRUE(Export(Exported(h, 10)).ok());
  EXPECT_EQ(Export(Exported(h, 9)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Export({h, Blocks(4), 13, Duration{}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Export({h, Blocks(4), -1, kLease}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(kv_.Export(kLayers, nullptr, Exported(h, 12), At(0)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Pull(h, 0, 10), StatusCode::kOk) << "unchanged";
  // Its request may have been preempted and computed again elsewhere.
  ASSERT_TRUE(Export({h, Blocks(3, 7), 11, kLease}).ok());
  const auto lease = kv_.BeginPull(h, Tokens(0, 11), At(1));
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(*lease->blocks, Blocks(3, 7));
}

TEST_F(KvExportsTest, OnlyBoxesWithinTheExportAreRead) {
  const KvHandle h = Handle(1);
  ASSERT_TRUE(Export(Exported(h, 10)).ok());
  for (const stage::KvBox& box :
       {stage::KvBox{{1, 3}, 0, 2, 0, 4}, stage::KvBox{{2, 7}, 0, 2, 0, 4},
        stage::KvBox{{3, 3}, 0, 0, 0, 4}, stage::KvBox{kLayers, 0, 3, 0, 4},
        stage::KvBox{kLayers, -1, 2, 0, 4}, stage::KvBox{kLayers, 1, 1, 0, 4}}) {
    EXPECT_EQ(kv_.BeginPull(h, box, At(1)).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(kv_.counters().refused, 6u);
  EXPECT_TRUE(kv_.BeginPull(h, stage::KvBox{{3, 4}, 1, 2, 0, 4}, At(1)).ok());
}

TEST_F(KvExportsTest, EveryLimitHolds) {
  EXPECT_EQ(Export(Exported(Handle(1), 64 * 4 + 1)).code(), StatusCode::kResourceExhausted);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(Export(Exported(Handle(i), 16)).ok());
  EXPECT_EQ(Export(Exported(Handle(5), 16)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Export(Exported(Handle(1), 60 * 4)).code(), StatusCode::kResourceExhausted);
  const auto a = kv_.BeginPull(Handle(1), Tokens(0, 4), At(1)),
             b = kv_.BeginPull(Handle(1), Tokens(0, 4), At(1));
  EXPECT_EQ(kv_.BeginPull(Handle(1), Tokens(0, 4), At(1)).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(kv_.counters().refused, 4u);
  // An export that ended long ago is unknown, not stale.
  for (uint64_t i = 10; i < 15; ++i) {
    kv_.Release(Handle(2));
    ASSERT_TRUE(i > 10 || Export(Exported(Handle(i), 4)).ok());
    kv_.Release(Handle(i));
    (void)Export(Exported(Handle(i + 1), 4));
  }
  kv_.CheckIntegrity();
  EXPECT_EQ(Pull(Handle(10), 0, 4), StatusCode::kNotFound);
  EXPECT_GT(kv_.counters().unknown, 0u);
}

// Compares with a naive model, over random calls.
TEST(KvExportsProperty, FollowTheModel) {
  struct Naive {
    int tokens = 0;
    Time until;
    bool ending = false;
    int pulls = 0;
  };
  uint64_t leases = 0, expired = 0;
  for (uint64_t seed = 0; seed < 200 * static_cast<uint64_t>(TestScale()); ++seed) {
    Rng rng(seed);
    const std::shared_ptr<stage::Stage> stage = AnyStage();
    KvExports kv({.exports = 1000, .blocks = 100000, .pulls_each = 3, .remembered = 1000});
    std::map<uint64_t, Naive> model;
    std::map<uint64_t, bool> gone;
    std::vector<std::pair<KvTicket, uint64_t>> tickets;
    Time now;
    const auto settle = [&](uint64_t g) {
      const auto it = model.find(g);
      if (it == model.end() || !it->second.ending || it->second.pulls > 0) return;
      model.erase(it);
      gone[g] = true;
    };
    for (int op = 0; op < 300; ++op) {
      const auto g = static_cast<uint64_t>(rng.Between(1, 8));
      const auto it = model.find(g);
      switch (rng.Between(0, 5)) {
        case 0: {
          const int tokens = static_cast<int>(rng.Between(0, 40));
          const bool ok = it != model.end() ? !it->second.ending && tokens >= it->second.tokens
                                            : !gone.contains(g);
          const ExportKv message{Handle(g), Blocks(10), tokens, Duration::Seconds(5)};
          ASSERT_EQ(kv.Export(kLayers, stage, message, now).ok(), ok) << "seed " << seed;
          if (!ok) break;
          model[g].tokens = tokens;
          model[g].until = std::max(model[g].until, now + Duration::Seconds(5));
          break;
        }
        case 1:
        case 2: {
          const int end = static_cast<int>(rng.Between(1, 40));
          const auto lease = kv.BeginPull(Handle(g), Tokens(0, end), now);
          const bool ok = it != model.end() && !it->second.ending && it->second.until > now &&
                          end <= it->second.tokens && it->second.pulls < 3;
          ASSERT_EQ(lease.ok(), ok) << "seed " << seed << " op " << op;
          if (!ok) break;
          ++it->second.pulls;
          ++leases;
          tickets.emplace_back(lease->ticket, g);
          break;
        }
        case 3:
          if (tickets.empty()) break;
          ASSERT_NE(kv.EndPull(tickets.back().first).ok(), model.at(tickets.back().second).ending);
          --model.at(tickets.back().second).pulls;
          settle(tickets.back().second);
          tickets.pop_back();
          break;
        case 4:
          if (rng.Between(0, 3) != 0) break;
          kv.Release(Handle(g));
          if (it != model.end()) it->second.ending = true;
          settle(g);
          break;
        default:
          now = now + Duration::Seconds(static_cast<double>(rng.Between(0, 2)));
          kv.Sweep(now);
          for (uint64_t i = 1; i <= 8; ++i) {
            const auto held = model.find(i);
            if (held == model.end() || held->second.until > now) continue;
            expired += !held->second.ending;
            held->second.ending = true;
            settle(i);
          }
      }
      kv.CheckIntegrity();
      ASSERT_EQ(kv.size(), model.size()) << "seed " << seed << " op " << op;
      for (const auto& [name, held] : model) {
        const ExportState state = held.pulls > 0    ? ExportState::kPulling
                                  : held.tokens > 0 ? ExportState::kHeld
                                                    : ExportState::kComputing;
        ASSERT_EQ(kv.StateOf(Handle(name)), state);
      }
    }
  }
  EXPECT_GT(leases, 1000u);
  EXPECT_GT(expired, 100u);
}

}  // namespace
}  // namespace millrace::cluster
