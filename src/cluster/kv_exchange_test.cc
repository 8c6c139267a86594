// KV from one exchange to another over real data planes, and where it is staged.
#include "cluster/kv_exchange.h"

#include <gtest/gtest.h>

#include <future>
#include <set>

#include "base/clock.h"
#include "base/rng.h"
#include "cluster/staging_pool.h"
#include "engine/hash_stage.h"

namespace millrace::cluster {
namespace {

constexpr int kTokens = 40'000, kBlockSize = 16;
const engine::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};
const LaneId kLane(1);

struct Node {
  Node() {
    engine::StageLane lane;
    lane.layers = {0, kModel.num_layers};
    lane.block_size = kBlockSize;
    lane.num_blocks = kTokens / kBlockSize;
    EXPECT_TRUE(stage->OpenLane(kLane, lane).ok());
    net::TcpDataPlaneOptions options;
    options.token = "a token";
    net::DataPlaneEvents events;
    events.on_pull = [this](const net::PeerAddress&, std::span<const std::byte> request) {
      return exchange.Serve(request);
    };
    plane = std::move(*net::StartTcpDataPlane(std::move(options), std::move(events)));
    exchange.Use(plane.get());
  }
  ~Node() { plane->Stop(); }

  const SteadyClock clock;
  KvExchange exchange{[](TensorRank) { return std::pair(0, kModel.heads); }, clock};
  std::shared_ptr<engine::HashStage> stage =
      std::make_shared<engine::HashStage>(kModel, LayerRange{0, kModel.num_layers});
  std::unique_ptr<net::DataPlane> plane;
};

TEST(KvExchange, WorkersOfOneHostMapWhatIsStaged) {
  Node owner, reader;
  std::vector<BlockIndex> blocks(kTokens / kBlockSize);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = BlockIndex(static_cast<int>(i));
  const engine::KvBox all{{0, kModel.num_layers}, 0, kModel.heads, 0, kTokens};
  std::vector<std::byte> want(owner.stage->KvBytes(all)), got(want.size());
  Rng rng(3);
  for (std::byte& b : want) b = static_cast<std::byte>(rng.Next());
  ASSERT_TRUE(owner.stage->WriteKv(kLane, all, blocks, want).ok());

  ExposeKv expose;
  expose.handle = {.lane = kLane, .generation = 9};
  expose.blocks = blocks;
  expose.tokens = kTokens;
  expose.lease = Duration::Seconds(60);
  owner.exchange.Expose(all.layers, owner.stage, expose);
  PullKv pull;
  pull.lane = kLane;
  pull.blocks = blocks;
  pull.end_token = kTokens;
  KvSource source;
  source.from.data = owner.plane->self().endpoint;
  source.from.incarnation = Incarnation(owner.plane->self().incarnation);
  source.handle = expose.handle;
  source.layers = all.layers;
  pull.sources.push_back(source);
  std::promise<PullDone> done;
  reader.exchange.Pull(all.layers, reader.stage, pull,
                       [&](PullDone result) { done.set_value(std::move(result)); });
  const PullDone result = done.get_future().get();
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.bytes, std::ssize(want));
  ASSERT_TRUE(reader.stage->ReadKv(kLane, all, blocks, got).ok());
  EXPECT_EQ(got, want);
  const net::DataPlaneStats stats = reader.plane->stats();
  EXPECT_GE(stats.pulls_ok, want.size() / kKvBoxBytesMax);
  EXPECT_EQ(stats.pulls_mapped, stats.pulls_ok);
}

TEST(StagingPool, BuffersComeBackAndMoreThanItHasAreOrdinaryMemory) {
  Node node;
  auto pool = std::make_unique<StagingPool>(64 << 10);
  std::vector<StagingPool::Buffer> taken;
  std::set<const std::byte*> places;
  for (size_t i = 0; i < kStagingBuffersMax + 3; ++i) {
    taken.push_back(pool->Take(*node.plane, 64 << 10));
    ASSERT_EQ(taken.back().bytes.size(), size_t{64} << 10);
    std::ranges::fill(taken.back().bytes, std::byte{1});
    places.insert(taken.back().bytes.data());
  }
  EXPECT_EQ(places.size(), taken.size());
  const std::byte* last = taken[5].bytes.data();
  taken.erase(taken.begin() + 5);
  const StagingPool::Buffer again = pool->Take(*node.plane, 100);
  EXPECT_EQ(again.bytes.data(), last);
  EXPECT_EQ(again.bytes.size(), 100u);
  pool.reset();  // what is still being pulled outlives it
  node.plane->Stop();
  std::ranges::fill(taken[0].bytes, std::byte{2});
  EXPECT_EQ(taken[0].bytes[100], std::byte{2});
}

}  // namespace
}  // namespace millrace::cluster
