// One model under every name that its tensors may have: as saved from the model with a vocabulary
// projection, and from the base model. The logits are the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/file.h"
#include "model/describe.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "model/test_runner.h"

namespace millrace::model {
namespace {

const ShapeNumbers kSmall = {.layers = 2, .hidden = 32, .heads = 4, .vocab = 300, .positions = 128};
const std::vector<TokenId> kTokens = {5, 299, 17, 0, 42, 8, 99, 123};
constexpr size_t kLength = 8;

std::string NewModel(const TestFolder& folder, const std::string& shape) {
  const std::string path = folder.path(shape);
  std::filesystem::remove_all(path);
  const Status made = MakeModel(*ShapeConfig(shape, kSmall), path, {.seed = 11});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

void SetConfig(const std::string& path, const Json& changes) {
  Json config = *ParseJson(*ReadFile(path + "/config.json", 1 << 20));
  config.update(changes);
  ASSERT_TRUE(WriteFileAtomically(path + "/config.json", DumpJson(config)).ok());
}

using Rename = std::function<std::optional<std::string>(std::string name)>;

// Writes the weights again; tensors without a new name are left out of the file.
void RenameTensors(const std::string& path, const Rename& rename) {
  const std::string file = path + "/model.safetensors";
  const std::string bytes = *ReadFile(file, 1 << 26);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLength);
  const Json header = *ParseJson(bytes.substr(kLength, length));
  const std::string data = bytes.substr(kLength + length);
  Json renamed = Json::object();
  std::string kept;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::optional<std::string> to = rename(name);
    if (!to) continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    Json moved = entry;
    moved["data_offsets"] = {kept.size(), kept.size() + end - begin};
    kept += data.substr(begin, end - begin);
    renamed[*to] = std::move(moved);
  }
  std::string text = DumpJson(renamed);
  text.resize((text.size() + kLength - 1) / kLength * kLength, ' ');
  length = text.size();
  std::string out(kLength, '\0');
  std::memcpy(out.data(), &length, kLength);
  ASSERT_TRUE(WriteFileAtomically(file, out + text + kept).ok());
}

// Replaces the beginning of names; a name without it stays.
Rename Prefixed(const std::string& from, const std::string& to) {
  return [from, to](const std::string& name) -> std::optional<std::string> {
    return name.starts_with(from) ? to + name.substr(from.size()) : name;
  };
}

std::vector<std::vector<float>> LogitsOf(const std::string& path) {
  Result<TestRunner> runner = TestRunner::Open(path);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  return runner.ok() ? runner->Prefill(kTokens, 1000) : std::vector<std::vector<float>>();
}

struct Names {
  const char *shape, *from, *to;
};

TEST(TensorNames, WithEveryPrefixTheLogitsAreTheSame) {
  TestFolder folder;
  for (const Names& names :
       {Names{"llama-160m", "model.", "language_model.model."},
        Names{"llama-160m", "model.", "model.language_model."}, Names{"mistral-7b", "model.", ""},
        Names{"qwen2-0.5b", "model.", ""}, Names{"qwen3-0.6b", "model.", ""},
        Names{"opt-125m", "model.decoder.", "decoder."}, Names{"opt-350m", "model.decoder.", ""},
        Names{"gpt2", "transformer.", ""}, Names{"pythia-160m", "gpt_neox.", ""}}) {
    SCOPED_TRACE(std::string(names.shape) + " as " + names.to);
    const std::string path = NewModel(folder, names.shape);
    const auto before = LogitsOf(path);
    RenameTensors(path, Prefixed(names.from, names.to));
    EXPECT_EQ(LogitsOf(path), before);
    EXPECT_TRUE(DescribeModel(path)->spec.generates);
  }
}

// The shape of Qwen3-Embedding and of E5-Mistral: bare names, no vocabulary projection.
TEST(TensorNames, ABaseModelWithoutAProjectionMakesEmbeddingsOnly) {
  TestFolder folder;
  for (const char* shape : {"llama-160m", "mistral-7b", "pythia-160m"}) {
    SCOPED_TRACE(shape);
    const std::string path = NewModel(folder, shape);
    Result<TestRunner> whole = TestRunner::Open(path);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    TestSequence first = whole->NewSequence(kTokens, 64);
    const auto before = whole->Step({&first}, {8}, &Model::HeadInput);
    RenameTensors(path, [](const std::string& name) -> std::optional<std::string> {
      if (name == "lm_head.weight" || name == "embed_out.weight") return {};
      return name.substr(name.find('.') + 1);
    });
    Result<TestRunner> base = TestRunner::Open(path);
    ASSERT_TRUE(base.ok()) << base.status().ToString();
    EXPECT_FALSE(base->model().spec().generates);
    ASSERT_EQ(base->model().notes().size(), 1u);
    EXPECT_NE(base->model().notes()[0].find("base model"), std::string::npos);
    TestSequence second = base->NewSequence(kTokens, 64);
    EXPECT_EQ(base->Step({&second}, {8}, &Model::HeadInput), before);
    SetConfig(path, {{"tie_word_embeddings", true}});
    EXPECT_TRUE(DescribeModel(path)->spec.generates);
  }
}

TEST(TensorNames, ConfigurationsOfBaseModelsAreKnown) {
  TestFolder folder;
  for (const auto& [shape, base] :
       std::vector<std::pair<std::string, std::string>>{{"llama-160m", "LlamaModel"},
                                                        {"mistral-7b", "MistralModel"},
                                                        {"qwen2-0.5b", "Qwen2Model"},
                                                        {"qwen3-0.6b", "Qwen3Model"},
                                                        {"opt-125m", "OPTModel"},
                                                        {"gpt2", "GPT2Model"},
                                                        {"pythia-160m", "GPTNeoXModel"}}) {
    SCOPED_TRACE(base);
    const std::string path = NewModel(folder, shape);
    const auto before = LogitsOf(path);
    SetConfig(path, {{"architectures", {base}}});
    EXPECT_EQ(LogitsOf(path), before);
    EXPECT_EQ(DescribeModel(path)->spec.architecture, base);
  }
}

TEST(TensorNames, AModelThatLacksItsProjectionIsRefused) {
  TestFolder folder;
  const std::string path = NewModel(folder, "llama-160m");
  RenameTensors(path, [](const std::string& name) -> std::optional<std::string> {
    if (name == "lm_head.weight") return {};
    return name;
  });
  const Status status = DescribeModel(path).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("tie_word_embeddings"), std::string::npos) << status.message();
  SetConfig(path, {{"architectures", {"LlamaModel"}}});
  EXPECT_FALSE(DescribeModel(path)->spec.generates);
}

TEST(TensorNames, AStoredProjectionBesideATiedOneIsNoted) {
  TestFolder folder;
  const std::string path = NewModel(folder, "llama-160m");
  SetConfig(path, {{"tie_word_embeddings", true}});
  const auto described = DescribeModel(path);
  ASSERT_TRUE(described.ok()) << described.status().ToString();
  ASSERT_EQ(described->notes.size(), 1u);
  EXPECT_NE(described->notes[0].find("`lm_head.weight` is not used"), std::string::npos);
  EXPECT_NE(described->notes[0].find("which differs"), std::string::npos);
  EXPECT_NE(LogitsOf(path), std::vector<std::vector<float>>());
  EXPECT_TRUE(DescribeModel(NewModel(folder, "qwen2-0.5b"))->notes.empty());
}

}  // namespace
}  // namespace millrace::model
