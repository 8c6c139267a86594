// Tensor parallelism: the ranks of a model together give the same bits as one device.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/testing/source_path.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/sharding.h"
#include "model/test_folder.h"
#include "model/test_runner.h"
#include "net/testing/in_process_collective.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

using Logits = std::vector<std::vector<float>>;

const std::vector<TokenId> kPrompt = {5, 99, 17, 0,  42, 8, 99, 23, 7,
                                      7, 7,  50, 31, 66, 2, 90, 1,  13};
const std::vector<TokenId> kOther = {77, 3, 3, 61, 12, 9, 30};

// Everything at once; in chunks that cross blocks; token by token, as in decoding; and two
// sequences in mixed batches.
Logits RunAll(TestRunner& runner) {
  Logits all;
  const auto append = [&](Logits rows) {
    for (auto& row : rows) all.push_back(std::move(row));
  };
  append(runner.Prefill(kPrompt, 1000));
  append(runner.Prefill(kPrompt, 5));
  append(runner.Prefill(kOther, 1));
  TestSequence one = runner.NewSequence(kPrompt, static_cast<int>(kPrompt.size()));
  TestSequence two = runner.NewSequence(kOther, static_cast<int>(kOther.size()));
  append(runner.Step({&one, &two}, {4, 1}));
  append(runner.Step({&two, &one}, {6, 1}));
  append(runner.Step({&one}, {13}));
  return all;
}

struct RankResult {
  Status status;
  Logits logits;
  std::pair<int, int> kv_heads;
  int64_t loaded_bytes = 0;
  int kv_shape_heads = 0;
  bool spec_is_whole = false;
};

// `threads`: of each rank's device.
std::vector<RankResult> RunSharded(const std::string& folder, int size, const ModelSpec& whole,
                                   int threads = 1) {
  auto group = *net::NewInProcessCollectives(size);
  std::vector<RankResult> results(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      net::Collective& collective = *group[static_cast<size_t>(r)];
      RankResult& result = results[static_cast<size_t>(r)];
      LoadOptions options;
      options.tensor_rank = {r, size};
      options.collective = &collective;
      Result<TestRunner> runner = TestRunner::Open(folder, options, threads);
      result.status = runner.status();
      if (!runner.ok()) return collective.Abort("a rank could not load");
      const Model& model = runner->model();
      result.kv_heads = model.kv_heads();
      result.loaded_bytes = model.loaded_bytes();
      result.kv_shape_heads = model.KvShapeFor(16, 1).num_kv_heads;
      result.spec_is_whole = model.spec().num_parameters == whole.num_parameters &&
                             model.spec().weight_bytes == whole.weight_bytes &&
                             model.spec().num_heads == whole.num_heads &&
                             model.spec().num_kv_heads == whole.num_kv_heads;
      result.logits = RunAll(*runner);
    });
  }
  for (std::thread& t : ranks) t.join();
  return results;
}

// The first difference, for a message.
std::string Difference(const Logits& got, const Logits& expected) {
  if (got.size() != expected.size()) return "different number of rows";
  for (size_t row = 0; row < got.size(); ++row) {
    for (size_t i = 0; i < got[row].size(); ++i) {
      if (got[row][i] == expected[row][i]) continue;
      return "row " + std::to_string(row) + ", logit " + std::to_string(i) + ": " +
             std::to_string(got[row][i]) + ", expected " + std::to_string(expected[row][i]);
    }
  }
  return "";
}

void ExpectTheSameBits(const std::string& folder, std::initializer_list<int> sizes,
                       int threads = 1) {
  Result<TestRunner> one = TestRunner::Open(folder);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  const Logits expected = RunAll(*one);
  const ModelSpec& whole = one->model().spec();
  for (int size : sizes) {
    const auto results = RunSharded(folder, size, whole, threads);
    for (int r = 0; r < size; ++r) {
      const RankResult& result = results[static_cast<size_t>(r)];
      ASSERT_TRUE(result.status.ok()) << result.status.ToString();
      EXPECT_TRUE(result.spec_is_whole);
      EXPECT_EQ(result.kv_heads.second - result.kv_heads.first, result.kv_shape_heads);
      EXPECT_EQ(result.kv_shape_heads, std::max(1, whole.num_kv_heads / size));
      EXPECT_EQ(result.kv_heads.first, whole.num_kv_heads * r / size);
      EXPECT_EQ(result.logits.empty(), r != 0);
      EXPECT_LT(result.loaded_bytes, one->model().loaded_bytes());
    }
    EXPECT_EQ(Difference(results[0].logits, expected), "") << folder << ", " << size << " ranks";
  }
}

std::string Make(const TestFolder& folder, const char* shape, const ShapeNumbers& numbers,
                 DType dtype) {
  static int count = 0;
  const std::string path = folder.path(std::string(shape) + std::to_string(count++));
  const Status made = MakeModel(*ShapeConfig(shape, numbers), path, {.seed = 11, .dtype = dtype});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

TEST(Sharded, RanksGiveTheBitsOfOneDeviceInEveryFamily) {
  TestFolder folder;
  ShapeNumbers tiny = {.layers = 2, .hidden = 64, .heads = 8, .vocab = 300, .positions = 64};
  for (const char* shape : {"llama-160m", "mistral-7b", "qwen2-0.5b", "qwen3-0.6b", "opt-125m",
                            "opt-350m", "gpt2", "pythia-160m"}) {
    SCOPED_TRACE(shape);
    ExpectTheSameBits(Make(folder, shape, tiny, DType::kBF16), {2, 4, 8});
  }
}

TEST(Sharded, KvHeadsAreSharedByRanksWhereThereAreFewer) {
  TestFolder folder;
  const ShapeNumbers numbers = {.layers = 2,
                                .hidden = 96,
                                .heads = 8,
                                .kv_heads = 2,
                                .head_dim = 24,
                                .intermediate = 8 * 13,
                                .vocab = 300,
                                .positions = 64};
  for (const char* shape : {"llama-160m", "qwen2-0.5b", "qwen3-0.6b"}) {
    SCOPED_TRACE(shape);
    ExpectTheSameBits(Make(folder, shape, numbers, DType::kF32), {2, 4, 8});
  }
}

// K of the row-parallel products is not a multiple of the virtual shards.
TEST(Sharded, CutsNeedNotAlignWithTheVirtualShards) {
  TestFolder folder;
  const ShapeNumbers numbers = {.layers = 1,
                                .hidden = 20,
                                .heads = 2,
                                .head_dim = 10,
                                .intermediate = 2 * 31,
                                .vocab = 300,
                                .positions = 64};
  ExpectTheSameBits(Make(folder, "llama-160m", numbers, DType::kF16), {2});
}

TEST(Sharded, ThreadsOfARanksDeviceChangeNoBit) {
  TestFolder folder;
  const ShapeNumbers tiny = {.layers = 2, .hidden = 64, .heads = 8, .vocab = 300, .positions = 64};
  ExpectTheSameBits(Make(folder, "llama-160m", tiny, DType::kBF16), {2}, 2);
}

// Trained and odd configurations: biases, windows, interleaved and transposed weights.
TEST(Sharded, RanksGiveTheBitsOfOneDeviceForEveryGolden) {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(SourcePath("tests/goldens"))) {
    if (!fs::exists(entry.path() / "golden.json")) continue;
    const std::string folder = entry.path().string();
    SCOPED_TRACE(entry.path().filename().string());
    Result<TestRunner> one = TestRunner::Open(folder);
    ASSERT_TRUE(one.ok());
    for (int size : {2, 4}) {
      if (!CheckSharding(one->model().spec(), {0, size}).ok()) continue;
      ExpectTheSameBits(folder, {size});
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
}

TEST(Sharded, UnevenDegreesGiveOneLineWithTheNumbers) {
  ModelSpec spec;
  spec.num_heads = 14;
  spec.num_kv_heads = 2;
  spec.intermediate_size = 4864;
  EXPECT_TRUE(CheckSharding(spec, {1, 2}).ok());
  const Status four = CheckSharding(spec, {1, 4});
  EXPECT_EQ(four.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(four.message(),
            "tensor parallelism of 4 does not divide the model's 14 heads, 2 KV heads and 4864 "
            "feed-forward columns; possible: 1, 2");
  EXPECT_FALSE(CheckSharding(spec, {0, 3}).ok());
  EXPECT_FALSE(CheckSharding(spec, {2, 2}).ok());
  spec.num_heads = 24;
  spec.num_kv_heads = 6;  // neither 4 into 6 nor 6 into 4
  EXPECT_FALSE(CheckSharding(spec, {0, 4}).ok());
}

TEST(Sharded, SharesCoverAllUnitsInOrder) {
  for (int size : {1, 2, 4, 8}) {
    int next = 0;
    for (int r = 0; r < size; ++r) {
      const Share share = ShareOf(24, {r, size});
      EXPECT_EQ(share.first, next);
      next = share.end;
    }
    EXPECT_EQ(next, 24);
  }
  // Two heads for eight ranks: the first four ranks share the first head.
  for (int r = 0; r < 8; ++r) EXPECT_EQ(ShareOf(2, {r, 8}).first, r / 4) << r;
}

}  // namespace
}  // namespace millrace::model
