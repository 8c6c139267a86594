// A copy that has only the ranges needed by some layers computes the same as the whole folder.
#include "model/weight_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/rng.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "model/test_runner.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

const ShapeNumbers kStoreShape = {
    .layers = 4, .hidden = 64, .heads = 4, .vocab = 300, .positions = 128};

std::string MakeStored(const TestFolder& folder, const char* shape, uint64_t shard_bytes_max) {
  const std::string path = folder.path(shape);
  const Status made = MakeModel(*ShapeConfig(shape, kStoreShape), path,
                                {.seed = 11, .shard_bytes_max = shard_bytes_max});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

// Copies the ranges; returns the number of bytes.
uint64_t Copy(const WeightStore& from, WeightStore& to, const std::vector<WeightRange>& ranges) {
  uint64_t bytes = 0;
  for (const WeightRange& range : ranges) {
    for (const WeightRange& part : to.Missing(range)) {
      std::vector<std::byte> data(part.end - part.begin);
      EXPECT_TRUE(from.Read(part, data).ok());
      EXPECT_TRUE(to.Write(part, data).ok());
      bytes += data.size();
    }
    EXPECT_TRUE(to.Missing(range).empty());
    EXPECT_TRUE(to.Check(range).ok());
  }
  return bytes;
}

// Output rows of a stage for arbitrary input rows; logits if it has a head.
std::vector<float> StageRows(const std::string& folder, LayerRange layers) {
  auto runner = TestRunner::Open(folder, {.layers = layers});
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  std::vector<TokenId> tokens(16);
  std::vector<int32_t> positions(tokens.size());
  std::iota(tokens.begin(), tokens.end(), 40);
  std::iota(positions.begin(), positions.end(), 0);
  TestSequence sequence = runner->NewSequence(tokens, 16);
  const std::vector<tensor::AttentionSpan> spans = {{0, 16, 0, sequence.blocks}};
  const tensor::StepPart part{&runner->kv(), layers.begin, 0, 16, spans};
  const std::vector<int32_t> outputs = TestRunner::AllRows(16);
  Model& model = runner->model();
  const tensor::RowRange all = model.Begin({tokens, positions, {&part, 1}, outputs});
  std::vector<float> rows(16 * static_cast<size_t>(model.spec().hidden_size));
  if (layers.begin == 0) {
    model.Embed(all);
  } else {
    Rng rng(5);
    for (float& x : rows) x = static_cast<float>(rng.Uniform()) - 0.5f;
    runner->device().Write(rows.data(), model.Hidden(16));
  }
  EXPECT_TRUE(model.Layers(all).ok());
  runner->device().Read(model.Hidden(16), rows.data());
  for (const auto& logits : runner->Logits(16)) {
    rows.insert(rows.end(), logits.begin(), logits.end());
  }
  return rows;
}

TEST(WeightStore, ACopyOfSomeLayersComputesTheSameAsTheWholeFolder) {
  TestFolder folder;
  for (const char* shape : {"llama-160m", "gpt2", "opt-125m"}) {
    const uint64_t shard_bytes = std::string(shape) == "llama-160m" ? uint64_t{1} << 40 : 100'000;
    const auto whole = WeightStore::OfFolder(MakeStored(folder, shape, shard_bytes));
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    EXPECT_EQ((*whole)->files().size() > 3, shard_bytes == 100'000) << "cut into shards";
    const auto digests = WeightDigests::OfFolder((*whole)->folder());
    ASSERT_TRUE(digests.ok()) << digests.status().ToString();
    const auto chunks = (*whole)->RangesOf(*digests);
    ASSERT_TRUE(chunks.ok()) << chunks.status().ToString();
    for (const LayerRange layers : {LayerRange{0, 1}, LayerRange{1, 3}, LayerRange{3, 4}}) {
      const std::string path = folder.path(fmt::format("{}-{}", shape, layers.begin));
      fs::create_directories(path);
      const auto copy = WeightStore::NewCopy(path, (*whole)->files());
      ASSERT_TRUE(copy.ok()) << copy.status().ToString();
      EXPECT_FALSE((*copy)->HeadRanges().ok());
      Copy(**whole, **copy, (*copy)->LengthRanges());
      Copy(**whole, **copy, *(*copy)->HeadRanges());
      EXPECT_EQ(*(*copy)->Layout(), *(*whole)->Layout());
      const auto ranges = (*copy)->RangesFor(layers, {});
      ASSERT_TRUE(ranges.ok()) << ranges.status().ToString();
      for (const WeightRange& range : *ranges) {
        EXPECT_TRUE(std::ranges::any_of(*chunks, [&](const WeightRange& chunk) {
          return chunk.file == range.file && chunk.begin <= range.begin && range.end <= chunk.end;
        })) << "bytes without a digest";
      }
      const uint64_t bytes = Copy(**whole, **copy, *ranges);
      auto device = tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
      const auto loaded = Model::Load(path, **device, {.layers = layers});
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      EXPECT_EQ(static_cast<int64_t>(bytes), (*loaded)->loaded_bytes());
      EXPECT_EQ(StageRows(path, layers), StageRows((*whole)->folder(), layers))
          << shape << layers.begin;
    }
  }
}

TEST(WeightStore, ARankReadsItsShareOfAContiguousTensor) {
  TestFolder folder;
  const auto whole = WeightStore::OfFolder(MakeStored(folder, "llama-160m", uint64_t{1} << 40));
  ASSERT_TRUE(whole.ok());
  const auto bytes = [&](TensorRank rank) {
    uint64_t sum = 0;
    const auto ranges = (*whole)->RangesFor({1, 3}, rank);
    EXPECT_TRUE(ranges.ok()) << ranges.status().ToString();
    for (const WeightRange& range : *ranges) sum += range.end - range.begin;
    return sum;
  };
  EXPECT_LT(bytes({0, 2}), bytes({}) * 3 / 4);
  EXPECT_EQ((*whole)->RangesFor({1, 5}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*whole)->RangesFor({1, 2}, {0, 3}).status().code(), StatusCode::kInvalidArgument);
}

TEST(WeightStore, RangesThatWereNotCopiedAreNotRead) {
  TestFolder folder;
  fs::create_directories(folder.path("copy"));
  const auto copy = WeightStore::NewCopy(folder.path("copy"),
                                         {{"config.json", 100}, {"model.safetensors", 1000}});
  ASSERT_TRUE(copy.ok());
  WeightStore& store = **copy;
  std::vector<std::byte> data(1000, std::byte{7});
  const auto read = [&](uint64_t begin, uint64_t end) {
    std::vector<std::byte> out(end > begin ? end - begin : 0);
    return store.Read({1, begin, end}, out).code();
  };
  const auto write = [&](uint64_t begin, uint64_t end) {
    return store.Write({1, begin, end}, std::span(data).first(end - begin));
  };
  EXPECT_EQ(read(0, 1), StatusCode::kNotFound);
  ASSERT_TRUE(write(100, 200).ok());
  ASSERT_TRUE(write(300, 400).ok());
  EXPECT_EQ(read(100, 200), StatusCode::kOk);
  EXPECT_EQ(read(100, 201), StatusCode::kNotFound);
  EXPECT_EQ(read(99, 200), StatusCode::kNotFound);
  const auto missing = store.Missing({1, 50, 450});
  ASSERT_EQ(missing.size(), 3u);
  EXPECT_EQ(missing[1].begin, 200u);
  EXPECT_EQ(missing[1].end, 300u);
  ASSERT_TRUE(write(150, 350).ok());
  EXPECT_EQ(read(100, 400), StatusCode::kOk);
  EXPECT_EQ(store.Missing({1, 120, 380}).size(), 0u);
  EXPECT_EQ(read(900, 1001), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(5, 5), StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Check({2, 0, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Check({1, 8, 4}).code(), StatusCode::kInvalidArgument);
}

TEST(WeightStore, AnImpossibleListOfFilesIsRefused) {
  TestFolder folder;
  const auto refused = [&](std::vector<WeightFile> files) {
    const std::string path = folder.path("copy");
    fs::remove_all(path);
    fs::create_directories(path);
    const auto copy = WeightStore::NewCopy(path, std::move(files));
    EXPECT_TRUE(copy.ok() || fs::is_empty(path)) << "no file is created";
    return copy.status().code() == StatusCode::kInvalidArgument;
  };
  const WeightFile config{"config.json", 10}, weights{"model.safetensors", 1000};
  EXPECT_FALSE(refused({config, weights}));
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({weights}));
  EXPECT_TRUE(refused({config, weights, weights}));
  for (const char* name : {"../model.safetensors", "/etc/x.safetensors", "a/b.safetensors",
                           ".safetensors", "tokenizer.json", "lock", "", "x.safetensors\n/"}) {
    EXPECT_TRUE(refused({config, {name, 1000}})) << name;
  }
  EXPECT_TRUE(refused({{"config.json", uint64_t{1} << 40}, weights}));
  EXPECT_TRUE(refused({config, {"model.safetensors", 7}}));
  EXPECT_TRUE(refused({config, {"model.safetensors", kWeightFileBytesMax + 1}}));
  // A header longer than its file.
  fs::remove_all(folder.path("copy"));
  fs::create_directories(folder.path("copy"));
  const auto copy = WeightStore::NewCopy(folder.path("copy"), {config, weights});
  ASSERT_TRUE(copy.ok());
  const std::vector<std::byte> huge(8, std::byte{0x7f});
  ASSERT_TRUE((*copy)->Write({1, 0, 8}, huge).ok());
  EXPECT_EQ((*copy)->HeadRanges().status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::model
