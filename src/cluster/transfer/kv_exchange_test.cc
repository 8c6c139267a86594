// KV transfers between exchanges over real data planes, and the pool that stages them.
#include "cluster/transfer/kv_exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <set>

#include "base/clock.h"
#include "base/rng.h"
#include "cluster/transfer/kv_plane.h"
#include "cluster/transfer/staging_pool.h"
#include "stage/activation_caching_stage.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster {
namespace {

constexpr int kTokens = 40'000, kBlockSize = 16;
const stage::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};
const PipelineId kPipeline(1);

struct Node {
  Node() {
    stage::StagePipeline pipeline;
    pipeline.layers = {0, kModel.num_layers};
    pipeline.block_size = kBlockSize;
    pipeline.num_blocks = kTokens / kBlockSize;
    EXPECT_TRUE(stage->OpenPipeline(kPipeline, pipeline).ok());
    net::TcpDataPlaneOptions options;
    options.token = "a token";
    net::DataPlaneEvents events;
    events.on_pull = [this](const net::PeerAddress&, std::span<const std::byte> request) {
      before_serving();
      return kv_plane.Serve(std::get<KvRequest>(*DecodePullRequest(request)));
    };
    plane = std::move(*net::StartTcpDataPlane(std::move(options), std::move(events)));
    kv_plane.Use(plane.get());
  }
  ~Node() { plane->Stop(); }

  // Pulls everything that `owner` has exported.
  std::future<PullDone> Pull(const Node& owner, const ExportKv& exported, bool background) {
    PullKv pull{.pipeline = kPipeline, .blocks = exported.blocks, .end_token = exported.tokens};
    pull.background = background;
    KvSource source;
    source.from.data = owner.plane->self().endpoint;
    source.from.incarnation = Incarnation(owner.plane->self().incarnation);
    source.handle = exported.handle;
    source.layers = stage->layers();
    pull.sources.push_back(source);
    auto done = std::make_shared<std::promise<PullDone>>();
    exchange.Pull(stage->layers(), stage, pull,
                  [done](PullDone result) { done->set_value(std::move(result)); });
    return done->get_future();
  }

  const SteadyClock clock;
  std::function<void()> before_serving = [] {};
  KvExchange exchange{clock};
  KvPlane kv_plane{exchange};
  std::shared_ptr<stage::HashStage> stage =
      std::make_shared<stage::HashStage>(kModel, LayerRange{0, kModel.num_layers});
  std::unique_ptr<net::DataPlane> plane;
};

TEST(KvExchange, WorkersOnOneHostMapTheStagedBytes) {
  Node owner, reader;
  std::vector<BlockIndex> blocks(kTokens / kBlockSize);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = BlockIndex(static_cast<int>(i));
  const stage::KvBox all{{0, kModel.num_layers}, 0, kModel.heads, 0, kTokens};
  std::vector<std::byte> want(owner.stage->KvBytes(all)), got(want.size());
  Rng rng(3);
  for (std::byte& b : want) b = static_cast<std::byte>(rng.Next());
  ASSERT_TRUE(owner.stage->WriteKv(kPipeline, all, blocks, want).ok());

  ExportKv exported;
  exported.handle = {.pipeline = kPipeline, .generation = 9};
  exported.blocks = blocks;
  exported.tokens = kTokens;
  exported.lease = Duration::Seconds(60);
  owner.exchange.Export(all.layers, owner.stage, exported);
  const PullDone result = reader.Pull(owner, exported, false).get();
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.bytes, std::ssize(want));
  ASSERT_TRUE(reader.stage->ReadKv(kPipeline, all, blocks, got).ok());
  EXPECT_EQ(got, want);
  const net::DataPlaneStats stats = reader.plane->stats();
  EXPECT_GE(stats.pulls_ok, want.size() / kPullChunkBytes);
  EXPECT_EQ(stats.pulls_mapped, stats.pulls_ok);
  const KvExchangeCounters served = owner.exchange.counters();
  EXPECT_EQ(served.exposed, 1u);
  EXPECT_EQ(served.served_bytes, want.size());
  EXPECT_EQ(served.exports.pulls_ended, served.served);
  owner.exchange.PipelineClosed(kPipeline);
  EXPECT_EQ(owner.exchange.counters().exposed, 0u);
  EXPECT_EQ(owner.exchange.counters().exports.released, 1u);
}

// A stage that has computed six tokens, so that it caches their activations.
std::shared_ptr<stage::ActivationCachingStage> StageWithActivations(LayerRange layers, int at) {
  auto stage = std::make_shared<stage::ActivationCachingStage>(
      std::make_shared<stage::HashStage>(kModel, layers));
  EXPECT_TRUE(stage
                  ->OpenPipeline(kPipeline, {.layers = layers,
                                             .block_size = 4,
                                             .num_blocks = 2,
                                             .first = true,
                                             .cache_activations_at = {at}})
                  .ok());
  StepPlan plan{.id = StepId(1)};
  plan.tokens = {1, 2, 3, 4, 5, 6};
  plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                   std::make_shared<std::vector<TokenId>>(plan.tokens)}};
  plan.blocks = {1, 0};
  plan.sequences = {{.id = SequenceId(1), .num_tokens = 6, .num_new_blocks = 2}};
  SequenceTables tables;
  stage::StagePart part{kPipeline, &plan, tables.Advance(plan)};
  EXPECT_TRUE(stage->Run({&part, 1}).ok() && part.result.error.ok());
  return stage;
}

// The activations that left the pulled layers come over the network with the KV. The source may
// have cached them at the end of its layers or between them.
void ExpectActivationsComeAlong(LayerRange held, LayerRange pulled) {
  Node owner, reader;
  const auto source = StageWithActivations(held, pulled.end);
  ExportKv exported;
  exported.handle = {.pipeline = kPipeline, .generation = 9};
  exported.blocks = {1, 0};
  exported.tokens = 6;
  exported.lease = Duration::Seconds(60);
  owner.exchange.Export(held, source, exported);
  for (const PulledActivations asked :
       {PulledActivations::kNone, PulledActivations::kLocal, PulledActivations::kAny}) {
    const bool activations = asked == PulledActivations::kAny;
    const auto stage = std::make_shared<stage::ActivationCachingStage>(
        std::make_shared<stage::HashStage>(kModel, LayerRange{0, 6}));
    ASSERT_TRUE(
        stage->OpenPipeline(kPipeline, {.layers = {0, 6}, .block_size = 4, .num_blocks = 3}).ok());
    PullKv pull{.pipeline = kPipeline,
                .blocks = {2, 1},
                .end_token = 6,
                .layers = pulled,
                .activations = asked};
    KvSource from;
    from.from.data = owner.plane->self().endpoint;
    from.from.incarnation = Incarnation(owner.plane->self().incarnation);
    from.handle = exported.handle;
    from.layers = held;
    pull.sources.push_back(from);
    std::promise<PullDone> done;
    reader.exchange.Pull(pulled, stage, pull,
                         [&](PullDone result) { done.set_value(std::move(result)); });
    const PullDone result = done.get_future().get();
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_EQ(result.activations, activations);
    EXPECT_EQ(stage->HoldsActivations(kPipeline, {3, 0, 6}, pull.blocks), activations);
    const stage::KvBox kv{pulled, 0, kModel.heads, 0, 6};
    const size_t activation_bytes = activations ? 6 * stage->row_bytes() : 0;
    EXPECT_EQ(result.bytes, static_cast<int64_t>(stage->KvBytes(kv) + activation_bytes));
    if (!activations) continue;
    std::vector<std::byte> want(activation_bytes), got(activation_bytes);
    const stage::ActivationRange range{3, 0, 6};
    ASSERT_TRUE(source->ReadActivations(kPipeline, range, exported.blocks, want).ok());
    ASSERT_TRUE(stage->ReadActivations(kPipeline, range, pull.blocks, got).ok());
    EXPECT_EQ(got, want);
  }
}

TEST(KvExchange, ActivationsComeWithAPullThatAsksForThem) {
  ExpectActivationsComeAlong({0, 3}, {0, 3});
  ExpectActivationsComeAlong({0, 5}, {0, 3});
}

TEST(KvExchange, UrgentPullsDoNotWaitForBackgroundPulls) {
  Node slow, fast, reader;
  std::promise<void> go;
  slow.before_serving = [may = go.get_future().share()] { may.wait(); };
  const ExportKv exported{
      {.pipeline = kPipeline, .generation = 9}, {BlockIndex(0)}, 16, Duration::Seconds(60)};
  for (Node* owner : {&slow, &fast}) {
    owner->exchange.Export(owner->stage->layers(), owner->stage, exported);
  }
  auto background = reader.Pull(slow, exported, true);
  const PullDone urgent = reader.Pull(fast, exported, false).get();
  EXPECT_TRUE(urgent.status.ok()) << urgent.status.ToString();
  EXPECT_EQ(background.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  go.set_value();
  EXPECT_TRUE(background.get().status.ok());
}

// Calls `during` within each read: the owner may release the KV at any moment.
class InterruptedStage : public stage::HashStage {
 public:
  using HashStage::HashStage;
  Status ReadKv(PipelineId pipeline, const stage::KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override {
    during();
    return HashStage::ReadKv(pipeline, box, blocks, out);
  }
  std::function<void()> during;
};

TEST(KvExchange, ForgedStaleOrReleasedHandlesAreNotServed) {
  Node owner;
  const auto stage = std::make_shared<InterruptedStage>(kModel, LayerRange{0, 6});
  ASSERT_TRUE(
      stage->OpenPipeline(kPipeline, {.layers = {0, 6}, .block_size = 16, .num_blocks = 4}).ok());
  stage->during = [] {};
  ExportKv exported;
  exported.handle = {.pipeline = kPipeline, .generation = 9};
  exported.handle.nonce.fill(7);
  exported.blocks = {BlockIndex(0), BlockIndex(1)};
  exported.tokens = 20;
  exported.lease = Duration::Seconds(60);
  owner.exchange.Export({0, 6}, stage, exported);
  const auto ask = [&](const KvHandle& handle, const stage::TransferItem& item) {
    return owner.kv_plane.Serve({handle, item}).status().code();
  };
  const stage::KvBox box{{0, 6}, 0, 2, 0, 20};
  EXPECT_EQ(ask(exported.handle, box), StatusCode::kOk);
  KvHandle forged = exported.handle;
  forged.nonce[15] ^= 1;
  EXPECT_EQ(ask(forged, box), StatusCode::kNotFound);
  EXPECT_EQ(ask(exported.handle, stage::KvBox{{0, 6}, 0, 2, 0, 21}), StatusCode::kNotFound)
      << "not yet";
  EXPECT_EQ(ask(exported.handle, stage::KvBox{{0, 7}, 0, 2, 0, 20}), StatusCode::kInvalidArgument);
  for (const int layer : {0, 7}) {
    EXPECT_EQ(ask(exported.handle, stage::ActivationRange{layer, 0, 20}),
              StatusCode::kInvalidArgument)
        << "activations that do not leave a layer of this worker";
  }
  stage->during = [&] { owner.exchange.Release(exported.handle); };
  EXPECT_EQ(ask(exported.handle, box), StatusCode::kFailedPrecondition)
      << "the blocks may belong to another request now";
  EXPECT_EQ(ask(exported.handle, box), StatusCode::kFailedPrecondition);
  owner.exchange.Export({0, 6}, stage, exported);
  const KvExchangeCounters counters = owner.exchange.counters();
  EXPECT_EQ(counters.exposed, 0u);
  EXPECT_EQ(counters.served, 1u);
  EXPECT_EQ(counters.refused, 7u);
  EXPECT_EQ(counters.exports.forged, 1u);
  EXPECT_EQ(counters.exports.refused, 4u);
  EXPECT_EQ(counters.exports.taken_back, 1u);
  EXPECT_EQ(counters.exports.stale, 1u);
  EXPECT_EQ(counters.exports.replayed, 1u);
}

TEST(StagingPool, BuffersAreReusedAndExtraOnesAreOrdinaryMemory) {
  Node node;
  auto pool = std::make_unique<StagingPool>(64 << 10);
  std::vector<PullBuffer> taken;
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
  const PullBuffer again = pool->Take(*node.plane, 100);
  EXPECT_EQ(again.bytes.data(), last);
  EXPECT_EQ(again.bytes.size(), 100u);
  pool.reset();  // buffers that are still in use outlive it
  node.plane->Stop();
  std::ranges::fill(taken[0].bytes, std::byte{2});
  EXPECT_EQ(taken[0].bytes[100], std::byte{2});
}

}  // namespace
}  // namespace millrace::cluster
