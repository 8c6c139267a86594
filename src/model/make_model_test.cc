#include "model/make_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/architecture.h"
#include "model/make_tokenizer.h"
#include "model/random_weights.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "text/tokenizer.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

const ShapeNumbers kTiny = {.layers = 2, .hidden = 32, .heads = 4, .vocab = 300, .positions = 64};

TEST(MakeModel, EveryFamilyWritesAFolderThatItsArchitectureAccepts) {
  for (const char* shape : {"llama-160m", "mistral-7b", "qwen2-0.5b", "qwen3-0.6b", "opt-125m",
                            "opt-350m", "gpt2", "pythia-160m"}) {
    TestFolder folder;
    const std::string path = folder.path("m");
    const Json config = *ShapeConfig(shape, kTiny);
    const Status made = MakeModel(config, path, {.seed = 5});
    ASSERT_TRUE(made.ok()) << shape << made.ToString();
    EXPECT_FALSE(fs::exists(path + ".partial"));
    Result<WeightFiles> files = WeightFiles::Open(path);
    ASSERT_TRUE(files.ok()) << files.status().ToString();
    Result<Json> written = ReadConfig(path);
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    EXPECT_EQ((*written)["torch_dtype"], "bfloat16");
    Result<std::unique_ptr<Decoder>> decoder = NewDecoder(*written, path);
    ASSERT_TRUE(decoder.ok()) << decoder.status().ToString();
    WeightPlan plan(&*files);
    (*decoder)->Declare({0, 2}, plan);
    const Status resolved = plan.Resolve();
    EXPECT_TRUE(resolved.ok()) << shape << resolved.ToString();
    EXPECT_EQ(plan.dtype(), DType::kBF16);
    EXPECT_EQ(ReadGenerationConfig(path, *written, 300)->eos, (std::vector<TokenId>{kMadeEos}));
  }
}

TEST(MakeModel, ShardsHoldTheSameWeightsAsOneFile) {
  TestFolder folder;
  const Json config = *ShapeConfig("llama-160m", kTiny);
  ASSERT_TRUE(MakeModel(config, folder.path("one"), {.seed = 9, .dtype = DType::kF32}).ok());
  ASSERT_TRUE(MakeModel(config, folder.path("many"),
                        {.seed = 9, .dtype = DType::kF32, .shard_bytes_max = 20000})
                  .ok());
  EXPECT_TRUE(fs::exists(folder.path("many/model.safetensors.index.json")));
  Result<WeightFiles> one = WeightFiles::Open(folder.path("one")),
                      many = WeightFiles::Open(folder.path("many"));
  ASSERT_TRUE(one.ok() && many.ok()) << many.status().ToString();
  WeightPlan plan(&*one);
  std::unique_ptr<Decoder> decoder = *NewDecoder(config, "x");
  decoder->Declare({0, 2}, plan);
  std::set<std::string> paths;
  for (const WeightNeed& need : plan.Needs()) {
    ASSERT_TRUE(many->Find(need.name)) << need.name;
    paths.insert(*many->Find(need.name)->path);
    const std::vector<float> a = ToFloats(*one->Find(need.name)),
                             b = ToFloats(*many->Find(need.name));
    EXPECT_EQ(a, b) << need.name;
    if (need.kind == WeightKind::kNormWeight) {
      EXPECT_EQ(a, std::vector<float>(a.size(), 1.0f));
    }
  }
  EXPECT_GT(paths.size(), 2u);
}

TEST(MakeModel, IsAtomicAndRefusesAFullFolder) {
  TestFolder folder;
  folder.Write("there", "x");
  const Json config = *ShapeConfig("llama-160m", kTiny);
  EXPECT_EQ(MakeModel(config, folder.path()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeModel(config, folder.path("there/below")).code(), StatusCode::kFailedPrecondition);
  Json small = config;
  small["vocab_size"] = 100;
  EXPECT_EQ(MakeModel(small, folder.path("small")).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(folder.path("small")));
  fs::create_directory(folder.path("empty"));
  EXPECT_TRUE(MakeModel(config, folder.path("empty/")).ok());
  EXPECT_TRUE(fs::exists(folder.path("empty/config.json")));
}

TEST(Shapes, GivenNumbersReplaceThoseOfTheShape) {
  const Json config = *ShapeConfig(
      "llama-1b", {.layers = 3, .hidden = 64, .heads = 8, .kv_heads = 2, .vocab = 500});
  EXPECT_EQ(config["num_hidden_layers"], 3);
  EXPECT_EQ(config["intermediate_size"], 256);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_FALSE(ShapeConfig("opt-125m", {.kv_heads = 2}).ok());
  Result<Json> unknown = ShapeConfig("llama-2b");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("llama-160m, llama-1b"), std::string::npos);
}

// Published parameter counts, within the rounding of their names.
TEST(Shapes, HaveThePublishedNumberOfParameters) {
  const std::pair<const char*, double> published[] = {
      {"llama-7b", 6.738e9},           {"llama-13b", 13.016e9},
      {"llama-70b", 68.977e9},         {"llama3-8b", 8.030e9},
      {"mistral-7b", 7.242e9},         {"qwen2-0.5b", 0.494e9},
      {"qwen3-0.6b", 0.596e9},         {"opt-125m", 0.1252e9},
      {"opt-350m", 0.3312e9},          {"opt-13b", 12.853e9},
      {"opt-66b", 65.718e9},           {"gpt2", 0.12444e9},
      {"gpt2-xl", 1.5576e9},           {"gpt-neox-20b", 20.554e9},
      {"pythia-160m", 0.16232e9},      {"llama-1.1b", 1.100e9},
      {"llama-65b", 65.286e9},         {"llama3.2-3b", 3.213e9},
      {"llama3-405b", 405.853e9},      {"mistral-nemo-12b", 12.248e9},
      {"mistral-small-24b", 23.572e9}, {"mistral-large-123b", 122.610e9},
      {"qwen2-72b", 72.706e9},         {"qwen2.5-3b", 3.086e9},
      {"qwen2.5-14b", 14.770e9},       {"qwen2.5-32b", 32.764e9},
      {"qwen3-1.7b", 1.7206e9},        {"qwen3-4b", 4.0225e9},
      {"qwen3-14b", 14.768e9},         {"qwen3-32b", 32.762e9}};
  for (const auto& [name, expected] : published) {
    std::unique_ptr<Decoder> decoder = *NewDecoder(*ShapeConfig(name), name);
    WeightPlan plan(nullptr);
    decoder->Declare({0, decoder->dims().spec.num_layers}, plan);
    double count = 0;
    for (const WeightNeed& need : plan.Needs()) count += static_cast<double>(need.elements());
    EXPECT_NEAR(count / expected, 1.0, 0.001) << name << " " << count;
  }
}

TEST(RandomWeights, DependOnSeedTensorAndIndexOnly) {
  const uint64_t key = TensorKey(1, "a");
  EXPECT_NE(key, TensorKey(2, "a"));
  EXPECT_NE(key, TensorKey(1, "b"));
  std::vector<float> whole(1000), part(100);
  const auto bytes = [](std::vector<float>& v) {
    return std::span(reinterpret_cast<uint8_t*>(v.data()), v.size() * sizeof(float));
  };
  FillWeights(key, WeightKind::kMatrix, DType::kF32, 0, bytes(whole));
  FillWeights(key, WeightKind::kMatrix, DType::kF32, 400, bytes(part));
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[400 + i]);
}

TEST(RandomWeights, HaveTheStatedMomentsInEveryDType) {
  constexpr size_t kCount = 200000;
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    const TensorEntry probe{.dtype = dtype};
    const DType type = *probe.compute_dtype();
    const std::string header = std::string(R"({"a":{"dtype":")") + dtype +
                               R"(","shape":[200000],"data_offsets":[0,)" +
                               std::to_string(kCount * BytesOf(type)) + "]}}";
    TestFolder folder;
    std::string file = SafetensorsFile(header, kCount * BytesOf(type));
    FillWeights(TensorKey(3, "a"), WeightKind::kMatrix, type, 0,
                std::span(reinterpret_cast<uint8_t*>(file.data()) + 8 + header.size(),
                          kCount * BytesOf(type)));
    folder.Write("model.safetensors", file);
    Result<WeightFiles> files = WeightFiles::Open(folder.path());
    ASSERT_TRUE(files.ok()) << files.status().ToString();
    double sum = 0, squares = 0, most = 0;
    for (float v : ToFloats(*files->Find("a"))) {
      sum += v;
      squares += v * v;
      most = std::max<double>(most, std::abs(v));
    }
    EXPECT_NEAR(sum / kCount, 0, 2e-4) << dtype;
    EXPECT_NEAR(std::sqrt(squares / kCount), kRandomWeightStd, 2e-4) << dtype;
    EXPECT_LT(most, 0.0348) << dtype;
  }
}

TEST(MadeTokenizer, LoadsAndRoundTripsAnyText) {
  for (int vocab_size : {kMadeVocabMin, 300, 32000}) {
    Result<std::shared_ptr<const text::Tokenizer>> tokenizer =
        text::Tokenizer::FromJson(MadeTokenizerJson(vocab_size));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    const std::string sample = "Hello w\xc3\xb6rld, \xe4\xbd\xa0!\n  the end\t\xf0\x9f\x99\x82";
    Result<std::vector<TokenId>> ids = (*tokenizer)->Encode(sample, {});
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    EXPECT_EQ((*tokenizer)->Decode(*ids, false), sample);
    EXPECT_LE(ids->size(), sample.size());
    for (TokenId id : *ids) EXPECT_TRUE(id > kMadePad && id < vocab_size) << id;
  }
}

TEST(MadeTokenizer, IdsAreDenseAndMergesAreKnown) {
  for (int vocab_size : {kMadeVocabMin, 300, 4 + 256 + 65536 + 700}) {
    const Json tokenizer = Json::parse(MadeTokenizerJson(vocab_size));
    const Json& vocab = tokenizer["model"]["vocab"];
    ASSERT_EQ(vocab.size(), static_cast<size_t>(vocab_size));
    std::set<int> ids;
    for (const auto& [token, id] : vocab.items()) ids.insert(id.get<int>());
    EXPECT_EQ(*ids.begin(), 0);
    EXPECT_EQ(*ids.rbegin(), vocab_size - 1);
    EXPECT_EQ(ids.size(), vocab.size());
    for (const Json& merge : tokenizer["model"]["merges"]) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      EXPECT_TRUE(vocab.contains(text.substr(0, space)) && vocab.contains(text.substr(space + 1)));
      EXPECT_TRUE(vocab.contains(text.substr(0, space) + text.substr(space + 1)));
    }
  }
}

}  // namespace
}  // namespace millrace::model
