// Weights from worker to worker over real data planes.
#include "cluster/weight_exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "cluster/testing/temp_folder.h"
#include "model/describe.h"
#include "model/make_model.h"
#include "model/model.h"
#include "model/shapes.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::cluster {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

constexpr int kLayers = 6;
constexpr auto kWanted = [](int64_t, int64_t) { return true; };
const model::ShapeNumbers kShape = {
    .layers = kLayers, .hidden = 256, .heads = 4, .vocab = 300, .positions = 128};

const std::string& Folder(uint64_t seed = 1, uint64_t shard_bytes_max = uint64_t{1} << 40) {
  static TempFolder folder;
  static std::map<std::pair<uint64_t, uint64_t>, std::string> made;
  std::string& path = made[{seed, shard_bytes_max}];
  if (!path.empty()) return path;
  path = fmt::format("{}/{}-{}", folder.path(), seed, shard_bytes_max);
  const Status status = model::MakeModel(*model::ShapeConfig("llama-160m", kShape), path,
                                         {.seed = seed, .shard_bytes_max = shard_bytes_max});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return path;
}

std::string Fingerprint(uint64_t seed) { return std::string(64, static_cast<char>('0' + seed)); }

struct Node {
  // `list`: what it answers whatever it is asked.
  explicit Node(std::optional<std::string> list = {}) {
    net::TcpDataPlaneOptions options;
    options.token = "a token";
    net::DataPlaneEvents events;
    events.on_pull = [this, list](const net::PeerAddress&,
                                  std::span<const std::byte> request) -> Result<net::PullSource> {
      if (list) {
        const auto text = std::make_shared<const std::string>(*list);
        return net::PullSource(net::PullSegments{{std::as_bytes(std::span(*text))}, text});
      }
      const int nth = ++asked;
      if (nth == die_after) dying.set_value();
      if (die_after > 0 && nth >= die_after) return Unavailable("it dies");
      return exchange.Serve(request);
    };
    plane = std::move(*net::StartTcpDataPlane(std::move(options), std::move(events)));
    exchange.Use(plane.get());
  }
  ~Node() { plane->Stop(); }
  void Offer(const std::string& path, uint64_t seed = 1) {
    const auto store = model::WeightStore::OfFolder(path);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    ASSERT_TRUE(exchange.Offer(*store, Fingerprint(seed)).ok());
  }
  WorkerAddress address() const {
    WorkerAddress address;
    address.data = plane->self().endpoint;
    address.incarnation = Incarnation(plane->self().incarnation);
    return address;
  }

  const SteadyClock clock;
  TempFolder folder;
  WeightExchange exchange{folder.path() + "/copy", clock};
  std::atomic<int> asked = 0;
  int die_after = 0;
  std::promise<void> dying;
  std::unique_ptr<net::DataPlane> plane;
};

LoadShard Load(LayerRange layers, std::initializer_list<const Node*> sources) {
  LoadShard load;
  load.layers = layers;
  for (const Node* node : sources) load.sources.push_back(node->address());
  return load;
}

// Whether every byte of these layers is as in the model's own folder.
void ExpectRight(const std::string& copy, LayerRange layers, const std::string& whole = Folder()) {
  const auto runs = model::WeightRunsOf(copy, layers, {});
  ASSERT_TRUE(runs.ok()) << runs.status().ToString();
  std::map<std::string, std::pair<std::string, std::string>> files;  // got and wanted
  for (const model::FileRun& run : *runs) {
    auto& [got, want] = files[run.path];
    if (got.empty()) {
      got = *ReadFile(run.path, 1 << 30);
      want = *ReadFile(whole + "/" + fs::path(run.path).filename().string(), 1 << 30);
    }
    const auto slice = [&](const std::string& text) {
      return std::string_view(text).substr(run.begin, run.end - run.begin);
    };
    ASSERT_TRUE(slice(got) == slice(want)) << run.path << " at " << run.begin;
  }
}

int64_t LoadedBytes(const std::string& folder, LayerRange layers) {
  auto device = tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
  const auto loaded = model::Model::Load(folder, **device, {.layers = layers});
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return loaded.ok() ? (*loaded)->loaded_bytes() : 0;
}

TEST(WeightExchange, OnlyWhatTheLayersNeedTravels) {
  Node owner, reader;
  owner.Offer(Folder());
  const auto folder = reader.exchange.Fetch(Load({1, 3}, {&owner}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  EXPECT_EQ(reader.exchange.fetched_fingerprint(), Fingerprint(1));
  ExpectRight(*folder, {1, 3});
  const int64_t layers = LoadedBytes(*folder, {1, 3}), model = LoadedBytes(Folder(), {0, kLayers});
  const auto pulled = static_cast<int64_t>(reader.exchange.counters().pulled_bytes);
  EXPECT_GE(pulled, layers);
  EXPECT_LT(pulled, layers + 16'384) << "and the files' heads";
  EXPECT_LT(pulled, model / 2);
  EXPECT_GE(reader.plane->stats().pull_bytes_received, static_cast<uint64_t>(layers));
  // Of the next layers only what is new.
  ASSERT_TRUE(reader.exchange.Fetch(Load({2, 4}, {&owner}), kWanted).ok());
  EXPECT_LT(static_cast<int64_t>(reader.exchange.counters().pulled_bytes) - pulled,
            layers * 6 / 10);
  ExpectRight(*folder, {1, 4});
  // What is here already needs nobody.
  EXPECT_TRUE(reader.exchange.Fetch(Load({1, 4}, {}), kWanted).ok());
  EXPECT_EQ(owner.exchange.counters().refused, 0u);
}

TEST(WeightExchange, ACopyIsPassedOnAsFarAsItGoes) {
  Node owner, first, second;
  owner.Offer(Folder(1, 300'000));
  ASSERT_TRUE(first.exchange.Fetch(Load({2, 5}, {&owner}), kWanted).ok());
  const uint64_t before = owner.exchange.counters().served_bytes;
  const auto folder = second.exchange.Fetch(Load({2, 5}, {&first}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {2, 5}, Folder(1, 300'000));
  EXPECT_EQ(owner.exchange.counters().served_bytes, before);
  // The rest from whoever has it: lacking a part is no failure.
  ASSERT_TRUE(second.exchange.Fetch(Load({0, 6}, {&first, &owner}), kWanted).ok());
  ExpectRight(*folder, {0, 6}, Folder(1, 300'000));
  EXPECT_EQ(second.exchange.counters().sources_failed, 0u);
  EXPECT_GT(owner.exchange.counters().served_bytes, before);
}

TEST(WeightExchange, AnotherSourceTakesOverFromOneThatDies) {
  Node dies, lives, reader;
  dies.Offer(Folder());
  lives.Offer(Folder());
  dies.die_after = 8;  // the list and two rounds of heads come first
  std::thread killer([&] {
    dies.dying.get_future().wait();
    dies.plane->Stop();
  });
  const auto folder = reader.exchange.Fetch(Load({0, kLayers}, {&dies, &lives}), kWanted);
  killer.join();
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, kLayers});
  EXPECT_EQ(reader.exchange.counters().sources_failed, 1u);
  EXPECT_GT(lives.exchange.counters().served, 2u);
}

TEST(WeightExchange, WithoutASourceTheLoadSaysWhy) {
  Node dies, reader;
  dies.Offer(Folder());
  dies.die_after = 8;
  std::thread killer([&] {
    dies.dying.get_future().wait();
    dies.plane->Stop();
  });
  const Status status = reader.exchange.Fetch(Load({0, kLayers}, {&dies}), kWanted).status();
  killer.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("layers 0-5 (" + dies.address().data), std::string::npos)
      << status.message();
  Node alone;
  EXPECT_NE(alone.exchange.Fetch(Load({0, 1}, {}), kWanted)
                .status()
                .message()
                .find("no other worker has weights"),
            std::string::npos);
  Node owner;
  owner.Offer(Folder());
  EXPECT_TRUE(reader.exchange.Fetch(Load({0, kLayers}, {&dies, &owner}), kWanted).ok());
  EXPECT_EQ(reader.exchange.Fetch(Load({0, 2}, {&owner}), kWanted).status().code(),
            StatusCode::kOk);
  Node other;
  int asked = 0;
  const auto twice = [&](int64_t, int64_t) { return ++asked < 2; };
  EXPECT_EQ(other.exchange.Fetch(Load({0, 2}, {&owner}), twice).status().code(),
            StatusCode::kCancelled);
}

TEST(WeightExchange, OtherWeightsAreNotMixedIn) {
  Node owner, another_model, otherwise_cut, nothing, reader;
  owner.Offer(Folder());
  another_model.Offer(Folder(2), 2);
  otherwise_cut.Offer(Folder(1, 300'000));
  ASSERT_TRUE(reader.exchange.Fetch(Load({0, 1}, {&owner}), kWanted).ok());
  const Status status =
      reader.exchange.Fetch(Load({0, 3}, {&another_model, &otherwise_cut, &nothing}), kWanted)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const char* why : {"another model", "cut in another way", "no weights are here"}) {
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  }
  const auto folder =
      reader.exchange.Fetch(Load({0, 3}, {&another_model, &owner, &otherwise_cut}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, 3});
}

TEST(WeightExchange, NothingButWeightsCanBeAskedFor) {
  Node owner;
  owner.Offer(Folder());
  const std::string layout = *(*model::WeightStore::OfFolder(Folder()))->Layout();
  struct {
    uint32_t magic = 0x54574c50, ask = 2;
    char layout[64] = {};
    uint64_t file = 1, begin = 0, end = 8;
  } wire;
  std::memcpy(wire.layout, layout.data(), sizeof wire.layout);
  const auto good = wire;
  const auto ask = [&](const auto& request) {
    return owner.exchange.Serve(std::as_bytes(std::span(&request, 1))).status().code();
  };
  EXPECT_EQ(ask(good), StatusCode::kOk);
  wire.layout[5] ^= 1;
  EXPECT_EQ(ask(wire), StatusCode::kNotFound);
  wire = good;
  wire.file = 3;  // config.json, generation_config.json, model.safetensors are all there are
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument);
  wire.file = ~uint64_t{0};
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument);
  wire = good;
  wire.end = uint64_t{1} << 41;
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument);
  wire.begin = wire.end = 4;
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument);
  wire = good;
  wire.file = 2;
  wire.end = kWeightPartBytes + 1;
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument) << "more than a part";
  wire = good;
  wire.ask = 3;
  EXPECT_EQ(ask(wire), StatusCode::kInvalidArgument);
  EXPECT_EQ(owner.exchange.Serve({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(owner.exchange.counters().refused, 8u);
  EXPECT_EQ(owner.exchange.counters().served, 1u);
}

TEST(WeightExchange, NonsenseFromASourceMakesNothing) {
  const std::string digest(64, 'a');
  const auto list = [&](const std::string& files) {
    return fmt::format(R"({{"fingerprint": "{}", "layout": "{}", "files": {}}})", digest, digest,
                       files);
  };
  for (const std::string& text :
       {std::string("{"), std::string("[1]"), std::string("{}"), list("7"), list("[7]"),
        list(R"([["config.json"]])"), list(R"([["config.json", -1]])"), list(R"([[1, 1]])"),
        list(R"([["config.json", 5], ["../../x.safetensors", 9]])"),
        list(R"([["config.json", 5], ["/tmp/x.safetensors", 9]])"),
        list(R"([["config.json", 1e300]])"), std::string(1 << 16, '[')}) {
    Node nonsense(text), reader;
    const Status status = reader.exchange.Fetch(Load({0, 1}, {&nonsense}), kWanted).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << text.substr(0, 200);
    for (const auto& entry : fs::recursive_directory_iterator(reader.folder.path())) {
      EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "lock") << entry.path();
    }
  }
  // A list that could be, and heads that are not what it promised.
  Node liar(list(R"([["config.json", 5], ["model.safetensors", 90]])")), reader, owner;
  EXPECT_FALSE(reader.exchange.Fetch(Load({0, 1}, {&liar}), kWanted).ok());
  owner.Offer(Folder());
  EXPECT_TRUE(reader.exchange.Fetch(Load({0, 1}, {&owner}), kWanted).ok()) << "nothing of it stays";
}

TEST(WeightExchange, TheCopyGoesWithItsOwner) {
  Node owner;
  owner.Offer(Folder());
  TempFolder folder;
  const SteadyClock clock;
  const std::string copies = folder.path() + "/copy";
  const auto count = [&] { return std::distance(fs::directory_iterator(folder.path()), {}); };
  {
    WeightExchange one(copies, clock), two(copies, clock);
    one.Use(owner.plane.get());
    two.Use(owner.plane.get());
    ASSERT_TRUE(one.Fetch(Load({0, 1}, {&owner}), kWanted).ok());
    ASSERT_TRUE(two.Fetch(Load({0, 1}, {&owner}), kWanted).ok());
    EXPECT_EQ(count(), 2) << "one each";
  }
  EXPECT_EQ(count(), 0);
}

}  // namespace
}  // namespace millrace::cluster
