// Every architecture against an independent implementation: tests/goldens holds tiny models with
// the logits and greedy tokens of Hugging Face transformers for them, in f32.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/testing/source_path.h"
#include "model/test_folder.h"
#include "model/test_runner.h"
#include "model/weight_files.h"
#include "model/weight_plan.h"
#include "tensor/cpu/cpu_features.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

// Largest absolute difference of a logit; logits reach 15. The reference computes in f32 with the
// stored weights, and so does this with an f32 cache. Only where weights are bf16, activations are
// two numbers of 8 bits.
double Tolerance(DType dtype) { return dtype == DType::kBF16 ? 5e-4 : 1e-4; }

// The tolerance as served, with a cache in the weights' type: keys and values have 11 or 8 bits,
// and so do activations where they meet bf16 weights.
double ToleranceAsServed(DType dtype) {
  switch (dtype) {
    case DType::kF32: return Tolerance(dtype);
    case DType::kF16: return 0.03;
    case DType::kBF16: return 0.15;
  }
  return 0;
}

std::string GoldenRoot() { return SourcePath("tests/goldens"); }

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(GoldenRoot())) {
    if (fs::exists(entry.path() / "golden.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Prompt {
  std::vector<TokenId> tokens, greedy;
  Json logits;
};

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { ASSERT_TRUE(tensor::SetCpuActivations("bf16").ok()); }
  void SetUp() override {
    folder_ = GoldenRoot() + "/" + GetParam();
    const Json golden = *ParseJson(*ReadFile(folder_ + "/golden.json", 1 << 24));
    for (const Json& p : golden["prompts"]) {
      prompts_.push_back({p["tokens"].get<std::vector<TokenId>>(),
                          p["greedy"].get<std::vector<TokenId>>(), p["logits"]});
    }
    architecture_ = golden["architecture"];
    dtype_name_ = golden["stored_dtype"];
  }

  // transformers rotates a whole prompt that exceeds the original length by that length, which no
  // chunking can reproduce; docs/decisions/0004-dynamic-rope.md. Shorter prompts and their
  // continuations agree.
  bool Comparable(const Prompt& prompt) const {
    return GetParam() != "llama-rope-dynamic" || prompt.tokens.size() <= 32;
  }

  // With greedy tokens where the arithmetic is the reference's.
  void Compare(TestRunner& runner, double tolerance, bool greedy) {
    double worst = 0;
    for (const Prompt& prompt : prompts_) {
      if (!Comparable(prompt)) continue;
      const auto rows = runner.Prefill(prompt.tokens, 1000);
      for (const Json& at : prompt.logits) {
        const auto expected = at["values"].get<std::vector<float>>();
        const std::vector<float>& got = rows[at["position"].get<size_t>()];
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          worst = std::max<double>(worst, std::abs(got[i] - expected[i]));
        }
      }
      if (greedy) {
        EXPECT_EQ(runner.Greedy(prompt.tokens, static_cast<int>(prompt.greedy.size())),
                  prompt.greedy);
      }
    }
    RecordProperty("worst_difference", std::to_string(worst));
    EXPECT_LT(worst, tolerance);
  }

  std::string folder_, architecture_, dtype_name_;
  std::vector<Prompt> prompts_;
};

TEST_P(Golden, AgreesWithTheReference) {
  ASSERT_TRUE(tensor::SetCpuActivations("bf16x2").ok());
  Result<TestRunner> runner = TestRunner::Open(folder_, {}, 1, DType::kF32);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  EXPECT_EQ(runner->model().spec().architecture, architecture_);
  EXPECT_EQ(DTypeName(runner->model().spec().dtype), dtype_name_);
  Compare(*runner, Tolerance(runner->model().spec().dtype), true);
}

TEST_P(Golden, AgreesWithTheReferenceAsServed) {
  Result<TestRunner> runner = TestRunner::Open(folder_);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  Compare(*runner, ToleranceAsServed(runner->model().spec().dtype), false);
}

// The numbers of the stored matrix that makes logits, [vocab][columns].
std::vector<float> HeadMatrix(const std::string& folder) {
  const Result<WeightFiles> files = WeightFiles::Open(folder);
  for (const char* name : {"lm_head", "embed_out", "model.embed_tokens", "gpt_neox.embed_in",
                           "model.decoder.embed_tokens", "transformer.wte", "wte"}) {
    const auto stored = files->Find(std::string(name) + ".weight");
    if (stored) return ToFloats(*stored);
  }
  ADD_FAILURE() << folder << " has no head";
  return {};
}

// The states of which vectors are made are those that make the reference's logits.
TEST_P(Golden, TheStatesThatEnterTheHeadAreTheReferences) {
  ASSERT_TRUE(tensor::SetCpuActivations("bf16x2").ok());
  Result<TestRunner> runner = TestRunner::Open(folder_, {}, 1, DType::kF32);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  const std::vector<float> head = HeadMatrix(folder_);
  const auto columns = static_cast<size_t>(runner->model().spec().embedding_size);
  double worst = 0;
  for (const Prompt& prompt : prompts_) {
    if (!Comparable(prompt)) continue;
    const auto states = runner->HeadInputs(prompt.tokens);
    for (const Json& at : prompt.logits) {
      const auto expected = at["values"].get<std::vector<float>>();
      const std::vector<float>& state = states[at["position"].get<size_t>()];
      ASSERT_EQ(state.size(), columns);
      ASSERT_EQ(head.size(), expected.size() * columns);
      for (size_t token = 0; token < expected.size(); ++token) {
        double logit = 0;
        for (size_t c = 0; c < columns; ++c) {
          logit += double{state[c]} * double{head[token * columns + c]};
        }
        worst = std::max(worst, std::abs(logit - double{expected[token]}));
      }
    }
  }
  EXPECT_LT(worst, Tolerance(runner->model().spec().dtype));
}

TEST_P(Golden, OtherSpellingOfTheConfigurationMeansTheSame) {
  ASSERT_TRUE(tensor::SetCpuActivations("bf16x2").ok());
  TestFolder copy;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name != "config.json")
      fs::copy(entry.path(), copy.path(name == "config.alt.json" ? "config.json" : name));
  }
  Result<TestRunner> runner = TestRunner::Open(copy.path(), {}, 1, DType::kF32);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  Compare(*runner, Tolerance(runner->model().spec().dtype), true);
}

TEST_P(Golden, ChunksThreadsAndBatchesChangeNoBit) {
  Result<TestRunner> one = TestRunner::Open(folder_), two = TestRunner::Open(folder_, {}, 2);
  ASSERT_TRUE(one.ok() && two.ok());
  std::vector<std::vector<std::vector<float>>> alone;
  for (const Prompt& prompt : prompts_) {
    alone.push_back(one->Prefill(prompt.tokens, 1000));
    for (int chunk : {1, 3, 7, 16, 17})
      EXPECT_EQ(one->Prefill(prompt.tokens, chunk), alone.back()) << chunk;
    EXPECT_EQ(two->Prefill(prompt.tokens, 5), alone.back());
  }
  // All prompts in one mixed batch, at different positions in it, twice.
  std::vector<TestSequence> sequences;
  for (const Prompt& p : prompts_) {
    sequences.push_back(one->NewSequence(p.tokens, static_cast<int>(p.tokens.size())));
  }
  std::vector<TestSequence*> pointers;
  std::vector<int> first, rest;
  for (TestSequence& s : sequences) {
    pointers.push_back(&s);
    first.push_back(static_cast<int>(s.tokens.size()) / 3);
    rest.push_back(static_cast<int>(s.tokens.size()) - first.back());
  }
  std::vector<size_t> seen(sequences.size(), 0);
  for (const std::vector<int>& chunks : {first, rest}) {
    const auto rows = one->Step(pointers, chunks);
    size_t row = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int i = 0; i < chunks[s]; ++i) EXPECT_EQ(rows[row++], alone[s][seen[s]++]) << s;
    }
  }
}

TEST_P(Golden, ALayerTooManyIsOneClearError) {
  TestFolder copy;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    fs::copy(entry.path(), copy.path(entry.path().filename().string()));
  }
  Json config = *ParseJson(*ReadFile(folder_ + "/config.json", 1 << 20));
  const char* layers = config.contains("n_layer") ? "n_layer" : "num_hidden_layers";
  config[layers] = 3;
  config.erase("layer_types");
  copy.Write("config.json", DumpJson(config));
  Result<TestRunner> runner = TestRunner::Open(copy.path());
  ASSERT_FALSE(runner.ok());
  EXPECT_EQ(runner.status().code(), StatusCode::kNotFound);
  EXPECT_NE(runner.status().message().find("is missing from the weight files"), std::string::npos)
      << runner.status().message();
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(GoldenNames()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Goldens, ExistForEveryArchitecture) {
  std::set<std::string> seen;
  for (const std::string& name : GoldenNames()) {
    seen.insert((*ParseJson(
        *ReadFile(GoldenRoot() + "/" + name + "/golden.json", 1 << 24)))["architecture"]);
  }
  for (const Architecture& a : Architectures())
    EXPECT_TRUE(seen.contains(std::string(a.name))) << a.name;
}

}  // namespace
}  // namespace millrace::model
