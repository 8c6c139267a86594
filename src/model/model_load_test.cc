// Loading: stages, limits, and folders whose files do not fit together.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/rng.h"
#include "model/describe.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "model/test_runner.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

const ShapeNumbers kTiny = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 300, .positions = 128};
const std::vector<TokenId> kPrompt = {5, 299, 17, 0, 42, 8, 99, 123, 7, 7, 7, 250, 31};

std::string Make(const TestFolder& folder, const char* shape, DType dtype = DType::kBF16) {
  const std::string path = folder.path(shape);
  const Status made = MakeModel(*ShapeConfig(shape, kTiny), path, {.seed = 11, .dtype = dtype});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

void Edit(const std::string& folder, const std::function<void(Json&)>& edit) {
  Json config = *ParseJson(*ReadFile(folder + "/config.json", 1 << 20));
  edit(config);
  ASSERT_TRUE(WriteFileAtomically(folder + "/config.json", DumpJson(config)).ok());
}

void ExpectError(const std::string& folder, StatusCode code, std::string_view part,
                 LoadOptions options = {}) {
  Result<TestRunner> runner = TestRunner::Open(folder, options);
  ASSERT_FALSE(runner.ok());
  EXPECT_EQ(runner.status().code(), code) << runner.status().ToString();
  EXPECT_NE(runner.status().message().find(part), std::string::npos) << runner.status().ToString();
  EXPECT_EQ(runner.status().message().find('\n'), std::string::npos);
}

TEST(ModelLoad, EveryMadeFamilyGivesFiniteAndDistinctLogits) {
  TestFolder folder;
  for (const char* shape : {"llama-160m", "mistral-7b", "qwen2-0.5b", "qwen3-0.6b", "opt-125m",
                            "opt-350m", "gpt2", "pythia-160m"}) {
    Result<TestRunner> runner = TestRunner::Open(Make(folder, shape));
    ASSERT_TRUE(runner.ok()) << shape << runner.status().ToString();
    const auto rows = runner->Prefill(kPrompt, 1000);
    for (float logit : rows.back()) ASSERT_TRUE(std::isfinite(logit)) << shape;
    EXPECT_NE(rows[0], rows[1]) << shape;
    EXPECT_GT(runner->model().spec().num_parameters, 10000) << shape;
    EXPECT_EQ(runner->model().spec().weight_bytes, 2 * runner->model().spec().num_parameters)
        << shape;
  }
}

TEST(ModelLoad, StagesInARowAreTheWholeModel) {
  TestFolder folder;
  for (const char* shape : {"llama-160m", "opt-350m", "pythia-160m"}) {
    const std::string path = Make(folder, shape);
    Result<TestRunner> whole = TestRunner::Open(path);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    const auto expected = whole->Prefill(kPrompt, 1000);

    std::unique_ptr<tensor::Device> device =
        *tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
    std::vector<std::unique_ptr<Model>> stages;
    for (LayerRange range : {LayerRange{0, 1}, LayerRange{1, 3}, LayerRange{3, 4}}) {
      Result<std::unique_ptr<Model>> stage = Model::Load(path, *device, {.layers = range});
      ASSERT_TRUE(stage.ok()) << stage.status().ToString();
      EXPECT_EQ((*stage)->spec().num_parameters, whole->model().spec().num_parameters);
      EXPECT_LT((*stage)->loaded_bytes(), whole->model().loaded_bytes());
      EXPECT_EQ((*stage)->KvShapeFor(16, 4).num_layers, range.size());
      stages.push_back(std::move(*stage));
    }
    const int rows = static_cast<int>(kPrompt.size());
    std::vector<int32_t> positions(kPrompt.size());
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<BlockIndex> blocks = {2};
    const std::vector<tensor::AttentionSpan> spans = {{0, rows, 0, blocks}};
    std::vector<float> between(kPrompt.size() * static_cast<size_t>(stages[0]->spec().hidden_size));
    for (size_t i = 0; i < stages.size(); ++i) {
      if (i > 0) {
        device->Read(stages[i - 1]->Hidden(rows), between.data());
        device->Write(between.data(), stages[i]->Hidden(rows));
      }
      std::unique_ptr<tensor::KvPool> pool = *device->NewKvPool(stages[i]->KvShapeFor(16, 4));
      const tensor::StepPart part{pool.get(), stages[i]->layers().begin, 0, rows, spans};
      const tensor::RowRange all = stages[i]->Begin({kPrompt, positions, {&part, 1}, positions});
      if (i == 0) stages[i]->Embed(all);
      ASSERT_TRUE(stages[i]->Layers(all).ok());
    }
    std::vector<float> logits(kPrompt.size() * 300);
    device->Read(stages.back()->Head(0, rows), logits.data());
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_EQ(logits[i], expected[i / 300][i % 300]) << shape << i;
  }
}

// What a model with layers [1, 3) of the folder would read, if `here` is there.
int64_t BytesToRead(const std::string& path, LayerRange layers, const LoadedWeights& here) {
  const auto runs = WeightRunsOf(path, layers, {}, here);
  EXPECT_TRUE(runs.ok()) << runs.status().ToString();
  int64_t bytes = 0;
  for (const FileRun& run : *runs) bytes += static_cast<int64_t>(run.end - run.begin);
  return bytes;
}

TEST(ModelLoad, TakesWhatAnotherModelHasAndReadsTheRest) {
  TestFolder folder;
  for (const char* shape : {"llama-160m", "qwen3-0.6b", "gpt2", "opt-350m", "pythia-160m"}) {
    const std::string path = Make(folder, shape);
    Result<TestRunner> whole = TestRunner::Open(path);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    const auto expected = whole->Prefill(kPrompt, 1000);
    const LoadedWeights all = whole->model().weights();
    LoadedWeights here;
    int64_t front_bytes = 0;
    {  // on a device that is gone when its weights are used
      Result<TestRunner> front = TestRunner::Open(path, {.layers = LayerRange{0, 3}});
      ASSERT_TRUE(front.ok()) << front.status().ToString();
      here = front->model().weights();
      front_bytes = front->model().loaded_bytes();
      EXPECT_EQ(front->model().read_bytes(), front_bytes);
    }
    int64_t progress = 0;
    Result<TestRunner> shared = TestRunner::Open(
        path, {.here = here, .progress = [&](int64_t done, int64_t) { progress = done; }});
    ASSERT_TRUE(shared.ok()) << shared.status().ToString();
    const Model& model = shared->model();
    EXPECT_EQ(model.loaded_bytes(), whole->model().loaded_bytes()) << shape;
    EXPECT_EQ(progress, model.read_bytes()) << shape;
    EXPECT_EQ(BytesToRead(path, {0, 4}, here), model.read_bytes()) << shape;
    // A tied head is packed from the embedding, which is read again.
    const int64_t rest = model.loaded_bytes() - front_bytes;
    EXPECT_GE(model.read_bytes(), rest) << shape;
    EXPECT_LE(model.read_bytes(), rest + 2 * 300 * model.spec().hidden_size) << shape;
    here.clear();
    EXPECT_EQ(shared->Prefill(kPrompt, 1000), expected) << shape;
    EXPECT_EQ(whole->Prefill(kPrompt, 1000), expected) << shape << ": both have them";
    EXPECT_EQ(BytesToRead(path, {1, 4}, all), 0) << shape;
  }
}

TEST(ModelLoad, SharedWeightsAreFreedWithTheLastModel) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  std::map<std::string, std::weak_ptr<const LoadedWeight>> watched;
  auto device = *tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
  auto front = *Model::Load(path, *device, {.layers = LayerRange{0, 2}});
  for (const auto& [key, weight] : front->weights()) watched[key] = weight;
  auto next = *Model::Load(path, *device, {.layers = LayerRange{1, 3}, .here = front->weights()});
  const int64_t before = front->loaded_bytes();
  front.reset();
  int64_t left = 0;
  for (const auto& [key, weight] : watched) {
    if (const auto held = weight.lock()) {
      left += held->bytes;
      EXPECT_NE(key.find("layers.1."), std::string::npos) << key;
    }
  }
  EXPECT_EQ(left, next->loaded_bytes() - next->read_bytes());
  EXPECT_LT(left, before);
}

// Bits of a rank are not those of another one, or of the whole.
TEST(ModelLoad, ARankTakesOnlyWhatIsNotCut) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  auto device = *tensor::NewCpuDevice({.threads = 1, .pin_threads = false});
  auto whole = *Model::Load(path, *device, {.layers = LayerRange{1, 3}});
  const auto reads = [&](TensorRank rank, const LoadedWeights& here) {
    const auto runs = *WeightRunsOf(path, {1, 3}, rank, here);
    int64_t bytes = 0;
    for (const FileRun& run : runs) {
      bytes += static_cast<int64_t>(run.end - run.begin);
    }
    return bytes;
  };
  const int64_t norms = 2 * 2 * 32 * 2;  // two in each of two layers, bf16
  EXPECT_EQ(reads({0, 2}, whole->weights()), reads({0, 2}, {}) - norms);
  EXPECT_EQ(reads({}, whole->weights()), 0);
}

TEST(ModelLoad, AModelBeyondItsBoundIsRefusedWithTheNumbers) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  ExpectError(path, StatusCode::kResourceExhausted, "but only 1000 bytes is available (the bound)",
              {.memory = MemoryAvailable{1000, "the bound"}});
}

TEST(ModelLoad, ReportsProgressToTheEnd) {
  TestFolder folder;
  std::vector<std::pair<int64_t, int64_t>> seen;
  LoadOptions options;
  options.progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); };
  Result<TestRunner> runner = TestRunner::Open(Make(folder, "llama-160m"), options);
  ASSERT_TRUE(runner.ok());
  ASSERT_GT(seen.size(), 10u);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].first, seen[i - 1].first);
  EXPECT_EQ(seen.back().first, seen.back().second);
  EXPECT_EQ(seen.back().second, runner->model().loaded_bytes());
}

TEST(ModelLoad, ConfigurationAndWeightsMustAgree) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  Edit(path, [](Json& c) { c["vocab_size"] = 301; });
  ExpectError(path, StatusCode::kInvalidArgument,
              "`model.embed_tokens.weight` has shape [300, 32], config.json asks for [301, 32]");
  Edit(path, [](Json& c) {
    c["vocab_size"] = 300;
    c["intermediate_size"] = 1 << 20;
  });
  ExpectError(path, StatusCode::kInvalidArgument, "config.json asks for [1048576, 32]");
  Edit(path, [](Json& c) {
    c["intermediate_size"] = 128;
    c["attention_bias"] = true;
  });
  ExpectError(path, StatusCode::kNotFound,
              "tensor `model.layers.0.self_attn.q_proj.bias` [32] is missing");
}

TEST(ModelLoad, OptionsHaveBounds) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  ExpectError(path, StatusCode::kInvalidArgument, "max-model-len 129 is outside [1, 128]",
              {.max_model_len = 129});
  ExpectError(path, StatusCode::kInvalidArgument, "layers [2, 9)", {.layers = LayerRange{2, 9}});
  ExpectError(path, StatusCode::kInvalidArgument, "layers [2, 2)", {.layers = LayerRange{2, 2}});
  ExpectError(path, StatusCode::kInvalidArgument, "must be positive", {.max_batched_tokens = 0});
  ExpectError(folder.path("nothing"), StatusCode::kNotFound, "no such model folder");
}

// A header whose first tensor is one byte long makes every weight unaligned.
TEST(ModelLoad, UnalignedWeightsGiveTheSameAnswer) {
  TestFolder folder;
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const std::string path = Make(folder, dtype == DType::kBF16 ? "gpt2" : "llama-160m", dtype);
    const auto expected = TestRunner::Open(path)->Prefill(kPrompt, 1000);
    const std::string file = *ReadFile(path + "/model.safetensors", 1 << 26);
    const SafetensorsHeader header = *ParseSafetensors(Bytes(file));
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), 8);
    Json json = *ParseJson(std::string_view(file).substr(8, header_bytes));
    for (auto& [name, entry] : json.items()) {
      if (name == "__metadata__") continue;
      for (Json& offset : entry["data_offsets"]) offset = offset.get<uint64_t>() + 1;
    }
    json["0"] = {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}};
    std::string text = DumpJson(json);
    text.append(8 - text.size() % 8, ' ');
    std::string odd = SafetensorsFile(text, 1) + file.substr(8 + header_bytes);
    ASSERT_TRUE(WriteFileAtomically(path + "/model.safetensors", odd).ok());
    Result<TestRunner> runner = TestRunner::Open(path);
    ASSERT_TRUE(runner.ok()) << runner.status().ToString();
    EXPECT_EQ(runner->Prefill(kPrompt, 1000), expected);
  }
}

TEST(ModelLoad, RefusesOtherDTypesOnlyWhereTheyAreNeeded) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  std::string file = *ReadFile(path + "/model.safetensors", 1 << 26);
  // Names are sorted: the first tensor of the header is lm_head.weight.
  const size_t at = file.find(R"("BF16")", file.find("lm_head.weight"));
  file.replace(at, 6, R"("I16" )");
  ASSERT_TRUE(WriteFileAtomically(path + "/model.safetensors", file).ok());
  ExpectError(path, StatusCode::kUnimplemented,
              "tensor `lm_head.weight` has dtype I16; F32, F16 and BF16");
  Edit(path, [](Json& c) { c["tie_word_embeddings"] = true; });
  EXPECT_TRUE(TestRunner::Open(path).ok());
}

TEST(ModelLoad, EveryTruncationIsRefused) {
  TestFolder folder;
  const std::string path = Make(folder, "llama-160m");
  const std::string file = path + "/model.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(file));
  Rng rng(1);
  std::vector<int64_t> cuts;
  for (int i = 0; i < 100; ++i) cuts.push_back(rng.Between(0, size - 1));
  std::sort(cuts.rbegin(), cuts.rend());
  for (int64_t cut : cuts) {
    fs::resize_file(file, static_cast<uintmax_t>(cut));
    ExpectError(path, StatusCode::kDataLoss, "model.safetensors: truncated");
  }
}

// A sparse file of 1.4 TB: the header is valid, the disk holds one page.
TEST(ModelLoad, ModelLargerThanMemoryIsRefusedWithTheNumbers) {
  TestFolder folder;
  const Json config = *ShapeConfig("opt-175b");  // ThreadSanitizer maps no more than about 1 TB
  folder.Write("config.json", DumpJson(config));
  std::unique_ptr<Decoder> decoder = *NewDecoder(config, "x");
  WeightPlan plan(nullptr);
  decoder->Declare({0, decoder->dims().spec.num_layers}, plan);
  Json header = Json::object();
  int64_t end = 0;
  for (const WeightNeed& need : plan.Needs()) {
    const int64_t begin = std::exchange(end, end + 4 * need.elements());
    header[need.name] = {{"dtype", "F32"}, {"shape", need.shape}, {"data_offsets", {begin, end}}};
  }
  const std::string start = SafetensorsFile(DumpJson(header), 0);
  folder.Write("model.safetensors", start);
  std::error_code error;
  fs::resize_file(folder.path("model.safetensors"), start.size() + static_cast<size_t>(end), error);
  ASSERT_FALSE(error) << error.message();
  ExpectError(folder.path(), StatusCode::kResourceExhausted,
              fmt::format("GB of memory ({:.1f} GB weights", static_cast<double>(end) * 1e-9));
  ExpectError(folder.path(), StatusCode::kResourceExhausted, "available (");
}

}  // namespace
}  // namespace millrace::model
