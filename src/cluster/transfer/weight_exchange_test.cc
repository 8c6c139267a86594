// Weights from worker to worker over real data planes.
#include "cluster/transfer/weight_exchange.h"

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
#include "base/json.h"
#include "base/mutex.h"
#include "base/testing/temp_folder.h"
#include "model/describe.h"
#include "model/make_model.h"
#include "model/model.h"
#include "model/shapes.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::cluster {
namespace {

namespace fs = std::filesystem;
using Ask = WeightRequest::Ask;

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

std::shared_ptr<const model::WeightDigests> Digests(const std::string& folder) {
  static std::map<std::string, std::shared_ptr<const model::WeightDigests>> known;
  auto& digests = known[folder];
  if (!digests) {
    auto read = model::WeightDigests::OfFolder(folder);
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    digests = std::make_shared<const model::WeightDigests>(std::move(read).value());
  }
  return digests;
}
std::string Fingerprint(uint64_t seed) { return Digests(Folder(seed))->fingerprint(); }

net::PullSource Answer(std::string text) {
  const auto kept = std::make_shared<const std::string>(std::move(text));
  return net::PullSource(net::PullSegments{{std::as_bytes(std::span(*kept))}, kept});
}
// The false answer of a source to a request; nullopt: it answers correctly.
using Lie = std::function<std::optional<std::string>(const WeightRequest& request)>;

struct WeightNode {
  explicit WeightNode(Lie lie = {}) {
    net::TcpDataPlaneOptions options;
    options.token = "a token";
    net::DataPlaneEvents events;
    events.on_pull = [this, lie](const net::PeerAddress&,
                                 std::span<const std::byte> request) -> Result<net::PullSource> {
      const int nth = ++asked;
      const auto wanted = std::get<WeightRequest>(*DecodePullRequest(request));
      if (lie) {
        if (const auto said = lie(wanted)) return Answer(*said);
      }
      if (nth == die_after) dying.set_value();
      if (die_after > 0 && nth >= die_after) return Unavailable("it dies");
      return exchange.Serve(wanted);
    };
    plane = std::move(*net::StartTcpDataPlane(std::move(options), std::move(events)));
    exchange.Use(plane.get());
  }
  ~WeightNode() { plane->Stop(); }
  void Offer(const std::string& path) { Offer(path, Digests(path)); }
  void Offer(const std::string& path, std::shared_ptr<const model::WeightDigests> digests) {
    const auto store = model::WeightStore::OfFolder(path);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    ASSERT_TRUE(exchange.Offer(*store, std::move(digests)).ok());
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

LoadShard Load(LayerRange layers, std::initializer_list<const WeightNode*> sources) {
  LoadShard load;
  load.layers = layers;
  for (const WeightNode* node : sources) load.sources.push_back(node->address());
  return load;
}

// Expects every byte of these layers to equal the model's own folder.
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

TEST(WeightExchange, OnlyTheNeededLayersArePulled) {
  WeightNode owner, reader;
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
  // The next fetch pulls only the missing layers.
  ASSERT_TRUE(reader.exchange.Fetch(Load({2, 4}, {&owner}), kWanted).ok());
  EXPECT_LT(static_cast<int64_t>(reader.exchange.counters().pulled_bytes) - pulled,
            layers * 6 / 10);
  ExpectRight(*folder, {1, 4});
  // Layers that are already copied need no source.
  EXPECT_TRUE(reader.exchange.Fetch(Load({1, 4}, {}), kWanted).ok());
  EXPECT_EQ(owner.exchange.counters().refused, 0u);
}

// The bytes on the wire are those of the layers that the worker lacks, and of the files' heads.
TEST(WeightExchange, WeightsThatAreHereAreNotPulled) {
  WeightNode owner, reader;
  owner.Offer(Folder());
  auto device = *tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
  auto old = *model::Model::Load(Folder(), *device, {.layers = LayerRange{0, 4}});
  const auto folder = reader.exchange.Fetch(Load({2, 6}, {&owner}), kWanted, old->weights());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  auto next =
      *model::Model::Load(*folder, *device, {.layers = LayerRange{2, 6}, .here = old->weights()});
  const auto needed = static_cast<uint64_t>(next->read_bytes());
  EXPECT_LT(next->read_bytes(), next->loaded_bytes() * 6 / 10);
  const uint64_t wire = reader.plane->stats().pull_bytes_received;
  EXPECT_GE(wire, needed);
  EXPECT_LE(wire, needed * 102 / 100);
  // What is here in full needs no source.
  const uint64_t asked = owner.asked;
  EXPECT_TRUE(reader.exchange.Fetch(Load({2, 6}, {&owner}), kWanted, next->weights()).ok());
  EXPECT_EQ(owner.asked, asked);
}

// In the file, layer 10 is before layer 2.
TEST(WeightExchange, FrontLayersArePulledFirst) {
  TempFolder folder;
  const std::string path = folder.path() + "/model";
  model::ShapeNumbers shape = kShape;
  shape.layers = 12;
  ASSERT_TRUE(model::MakeModel(*model::ShapeConfig("llama-160m", shape), path, {}).ok());
  Mutex mutex;
  std::vector<uint64_t> asked;
  WeightNode reader;
  WeightNode owner([&](const WeightRequest& request) -> std::optional<std::string> {
    const MutexLock lock(mutex);
    if (request.ask == Ask::kRange) asked.push_back(request.range.begin);
    return std::nullopt;
  });
  owner.Offer(path);
  ASSERT_TRUE(reader.exchange.Fetch(Load({1, 12}, {&owner}), kWanted).ok());
  const auto first_of = [&](int layer) {
    const auto runs = *model::WeightRunsOf(path, {layer, layer + 1}, {});
    return std::ranges::find_if(asked, [&](uint64_t begin) {
      return std::ranges::any_of(
          runs, [&](const model::FileRun& run) { return run.begin <= begin && begin < run.end; });
    });
  };
  ASSERT_NE(first_of(10), asked.end());
  EXPECT_LT(first_of(2), first_of(10));
}

TEST(WeightExchange, APartialCopyIsServedToOthers) {
  WeightNode owner, first, second;
  owner.Offer(Folder(1, 300'000));
  ASSERT_TRUE(first.exchange.Fetch(Load({2, 5}, {&owner}), kWanted).ok());
  const uint64_t before = owner.exchange.counters().served_bytes;
  const auto folder = second.exchange.Fetch(Load({2, 5}, {&first}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {2, 5}, Folder(1, 300'000));
  EXPECT_EQ(owner.exchange.counters().served_bytes, before);
  // The rest comes from a source that has it. A source that lacks a part does not count as failed.
  ASSERT_TRUE(second.exchange.Fetch(Load({0, 6}, {&first, &owner}), kWanted).ok());
  ExpectRight(*folder, {0, 6}, Folder(1, 300'000));
  EXPECT_EQ(second.exchange.counters().sources_failed, 0u);
  EXPECT_GT(owner.exchange.counters().served_bytes, before);
}

TEST(WeightExchange, AnotherSourceTakesOverWhenOneDies) {
  WeightNode dies, lives, reader;
  dies.Offer(Folder());
  lives.Offer(Folder());
  dies.die_after = 9;  // list, heads and digests come first
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

TEST(WeightExchange, WithoutASourceTheErrorHasTheReasons) {
  WeightNode dies, reader;
  dies.Offer(Folder());
  dies.die_after = 9;
  std::thread killer([&] {
    dies.dying.get_future().wait();
    dies.plane->Stop();
  });
  const Status status = reader.exchange.Fetch(Load({0, kLayers}, {&dies}), kWanted).status();
  killer.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("layers 0-5 (" + dies.address().data), std::string::npos)
      << status.message();
  WeightNode alone;
  EXPECT_NE(alone.exchange.Fetch(Load({0, 1}, {}), kWanted)
                .status()
                .message()
                .find("no other worker has weights"),
            std::string::npos);
  WeightNode owner;
  owner.Offer(Folder());
  EXPECT_TRUE(reader.exchange.Fetch(Load({0, kLayers}, {&dies, &owner}), kWanted).ok());
  EXPECT_EQ(reader.exchange.Fetch(Load({0, 2}, {&owner}), kWanted).status().code(),
            StatusCode::kOk);
  WeightNode other;
  int asked = 0;
  const auto twice = [&](int64_t, int64_t) { return ++asked < 2; };
  EXPECT_EQ(other.exchange.Fetch(Load({0, 2}, {&owner}), twice).status().code(),
            StatusCode::kCancelled);
}

TEST(WeightExchange, OtherWeightsAreNotMixedIn) {
  WeightNode owner, another_model, otherwise_cut, nothing, reader;
  owner.Offer(Folder());
  another_model.Offer(Folder(2));
  otherwise_cut.Offer(Folder(1, 300'000));
  ASSERT_TRUE(reader.exchange.Fetch(Load({0, 1}, {&owner}), kWanted).ok());
  const Status status =
      reader.exchange.Fetch(Load({0, 3}, {&another_model, &otherwise_cut, &nothing}), kWanted)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const char* why : {"another model", "split differently", "has no weights to copy"}) {
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  }
  const auto folder =
      reader.exchange.Fetch(Load({0, 3}, {&another_model, &owner, &otherwise_cut}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, 3});
}

TEST(WeightExchange, OnlyWeightsCanBePulled) {
  WeightNode owner;
  owner.Offer(Folder());
  const std::string layout = *(*model::WeightStore::OfFolder(Folder()))->Layout();
  const WeightRequest good{Ask::kRange, layout, {1, 0, 8}};
  const auto ask = [&](const WeightRequest& request) {
    return owner.exchange.Serve(request).status().code();
  };
  EXPECT_EQ(ask(good), StatusCode::kOk);
  WeightRequest request = good;
  request.layout[5] ^= 1;
  EXPECT_EQ(ask(request), StatusCode::kNotFound);
  request = good;
  // There are only config.json, generation_config.json and model.safetensors.
  for (const size_t file : {size_t{3}, ~size_t{0}}) {
    request.range.file = file;
    EXPECT_EQ(ask(request), StatusCode::kInvalidArgument);
  }
  request = good;
  request.range.end = uint64_t{1} << 19;
  EXPECT_EQ(ask(request), StatusCode::kInvalidArgument) << "beyond the file";
  request = good;
  request.ask = Ask::kDigests;
  EXPECT_EQ(ask(request), StatusCode::kOk);
  request.range.end = kWeightPartBytes;
  EXPECT_EQ(ask(request), StatusCode::kInvalidArgument) << "more than there are";
  EXPECT_EQ(owner.exchange.counters().refused, 5u);
  EXPECT_EQ(owner.exchange.counters().served, 2u);
}

TEST(WeightExchange, MalformedAnswersLeaveNoFiles) {
  const auto list = [](std::vector<model::WeightFile> files) {
    return Encode(WeightList{std::string(64, 'a'), std::string(64, 'b'), std::move(files)});
  };
  for (const std::string& text :
       {std::string("{"), std::string(), Encode(WeightList{}), list({}), list({{"", 1}}),
        list({{"config.json", 5}, {"config.json", 5}}),
        list({{"config.json", 5}, {"../../x.safetensors", 9}}),
        list({{"config.json", 5}, {"/tmp/x.safetensors", 9}}),
        list({{"config.json", uint64_t{1} << 60}}), std::string(1 << 16, '[')}) {
    WeightNode nonsense([&](const WeightRequest&) { return text; }), reader;
    const Status status = reader.exchange.Fetch(Load({0, 1}, {&nonsense}), kWanted).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << text.substr(0, 200);
    for (const auto& entry : fs::recursive_directory_iterator(reader.folder.path())) {
      EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "lock") << entry.path();
    }
  }
  // A valid list, but heads that do not match it.
  const std::string promise = list({{"config.json", 5}, {"model.safetensors", 90}});
  WeightNode liar([&](const WeightRequest&) { return promise; }), reader, owner;
  EXPECT_FALSE(reader.exchange.Fetch(Load({0, 1}, {&liar}), kWanted).ok());
  owner.Offer(Folder());
  EXPECT_TRUE(reader.exchange.Fetch(Load({0, 1}, {&owner}), kWanted).ok())
      << "the bad copy must be gone";
}

// A folder with the same heads and other weights, served with the digests of the right ones: as if
// the disk was changed after its digests were computed.
TEST(WeightExchange, ASourceWithWrongBytesIsDisabled) {
  WeightNode changed, owner, reader;
  changed.Offer(Folder(2), Digests(Folder(1)));
  owner.Offer(Folder(1));
  const Status alone = reader.exchange.Fetch(Load({0, 2}, {&changed}), kWanted).status();
  EXPECT_EQ(alone.code(), StatusCode::kUnavailable);
  EXPECT_NE(alone.message().find("of model.safetensors do not match the model's digests"),
            std::string::npos)
      << alone.message();
  EXPECT_EQ(reader.exchange.counters().sources_disabled, 1u);
  const int asked = changed.asked;
  const auto folder = reader.exchange.Fetch(Load({0, kLayers}, {&changed, &owner}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, kLayers});
  EXPECT_EQ(changed.asked, asked) << "a disabled source gets no requests";
  EXPECT_EQ(reader.exchange.counters().sources_disabled, 1u);
  EXPECT_EQ(reader.exchange.counters().sources_failed, 1u);
}

TEST(WeightExchange, AWrongByteIsFoundAndPulledFromAnotherSource) {
  WeightNode owner;
  owner.Offer(Folder());
  const auto store = *model::WeightStore::OfFolder(Folder());
  const uint64_t middle = store->files()[2].bytes / 2;
  std::atomic<int> lies = 0;
  WeightNode liar([&](const WeightRequest& request) -> std::optional<std::string> {
    const model::WeightRange& range = request.range;
    if (request.ask != Ask::kRange || range.file != 2 || range.begin > middle ||
        range.end <= middle) {
      return {};
    }
    std::string bytes(range.end - range.begin, 0);
    EXPECT_TRUE(store->Read(range, std::as_writable_bytes(std::span(bytes))).ok());
    bytes[middle - range.begin] ^= 1;
    ++lies;
    return bytes;
  });
  WeightNode reader;
  liar.Offer(Folder());
  const auto folder = reader.exchange.Fetch(Load({0, kLayers}, {&liar, &owner}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, kLayers});
  EXPECT_EQ(lies, 1);
  EXPECT_EQ(reader.exchange.counters().sources_disabled, 1u);
}

TEST(WeightExchange, ListHeadsAndDigestsOfASourceMustMatch) {
  // Another model with the fingerprint of the right one.
  const auto renamed = [](const WeightRequest& request) -> std::optional<std::string> {
    if (request.ask != Ask::kList) return {};
    const auto store = *model::WeightStore::OfFolder(Folder(2));
    return Encode(WeightList{Fingerprint(1), *store->Layout(), store->files()});
  };
  // The right digests with another configuration.
  TempFolder other;
  fs::copy(Folder(), other.path() + "/model");
  const std::string config = other.path() + "/model/config.json";
  Json json = *ParseJson(*ReadFile(config, 1 << 20));
  json["rope_theta"] = 77.0;
  ASSERT_TRUE(WriteFileAtomically(config, DumpJson(json)).ok());
  WeightNode named(renamed), configured, short_of_digests([](const WeightRequest&request) {
    const bool digests = request.ask == Ask::kDigests;
    return digests ? std::optional<std::string>("few") : std::nullopt;
  });
  named.Offer(Folder(2));
  configured.Offer(other.path() + "/model", Digests(Folder()));
  short_of_digests.Offer(Folder());
  WeightNode reader, owner;
  owner.Offer(Folder());
  const Status status =
      reader.exchange.Fetch(Load({0, 2}, {&named, &configured, &short_of_digests}), kWanted)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(reader.exchange.counters().sources_failed, 3u) << status.message();
  EXPECT_EQ(reader.exchange.counters().sources_disabled, 2u) << status.message();
  EXPECT_TRUE(reader.exchange.fetched_fingerprint().empty());
  const auto folder = reader.exchange.Fetch(Load({0, 2}, {&named, &configured, &owner}), kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, 2});
  EXPECT_EQ(reader.exchange.fetched_fingerprint(), Fingerprint(1));
}

// A source may serve another model correctly. Only the load knows which model is wanted.
TEST(WeightExchange, TheLoadNamesTheModel) {
  WeightNode other, owner, reader, mistaken;
  other.Offer(Folder(2));
  owner.Offer(Folder(1));
  LoadShard load = Load({0, 2}, {&other, &owner});
  ASSERT_TRUE(mistaken.exchange.Fetch(load, kWanted).ok());
  EXPECT_EQ(mistaken.exchange.fetched_fingerprint(), Fingerprint(2))
      << "the model of the first source";
  load.model_fingerprint = Fingerprint(1);
  const auto folder = reader.exchange.Fetch(load, kWanted);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectRight(*folder, {0, 2});
  EXPECT_EQ(reader.exchange.fetched_fingerprint(), Fingerprint(1));
  EXPECT_EQ(reader.exchange.counters().sources_disabled, 0u);
  // An exchange copies one model only.
  EXPECT_EQ(mistaken.exchange.Fetch(load, kWanted).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(WeightExchange, TheCopyIsRemovedWithItsExchange) {
  WeightNode owner;
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
    EXPECT_EQ(count(), 2) << "one folder each";
  }
  EXPECT_EQ(count(), 0);
}

}  // namespace
}  // namespace millrace::cluster
