// For tests: runs one sequence after another, or several together, through a Model, as a stage
// would.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::model {

// A sequence: its cached tokens and its next chunk.
struct TestSequence {
  std::vector<TokenId> tokens;
  std::vector<BlockIndex> blocks;
  int computed = 0;
};

class TestRunner {
 public:
  static constexpr int kBlockSize = 16, kBlocks = 64;

  // `kv_dtype`: of the cache; the model's by default.
  static Result<TestRunner> Open(const std::string& folder, LoadOptions options = {},
                                 int threads = 1, std::optional<DType> kv_dtype = {}) {
    TestRunner runner;
    MR_ASSIGN_OR_RETURN(runner.device_,
                        tensor::NewCpuDevice({.threads = threads, .pin_threads = false}));
    MR_ASSIGN_OR_RETURN(runner.model_, Model::Load(folder, *runner.device_, options));
    tensor::KvShape shape = runner.model_->KvShapeFor(kBlockSize, kBlocks);
    shape.dtype = kv_dtype.value_or(shape.dtype);
    MR_ASSIGN_OR_RETURN(runner.kv_, runner.device_->NewKvPool(shape));
    return runner;
  }

  Model& model() { return *model_; }
  tensor::Device& device() { return *device_; }
  tensor::KvPool& kv() { return *kv_; }

  // Blocks in a scattered order, so that a wrong table is detected.
  TestSequence NewSequence(std::vector<TokenId> tokens, int length_max) {
    TestSequence sequence{std::move(tokens), {}, 0};
    for (int i = 0; i * kBlockSize < length_max; ++i) {
      sequence.blocks.push_back((next_block_ * 37 + 5) % kBlocks);
      ++next_block_;
    }
    return sequence;
  }

  using HeadPart = tensor::Rows (Model::*)(int first, int count);

  // Computes chunks[i] tokens of sequence i in one batch. Returns the logits of every row, or what
  // they are made of.
  std::vector<std::vector<float>> Step(const std::vector<TestSequence*>& sequences,
                                       const std::vector<int>& chunks, HeadPart of = &Model::Head) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions;
    std::vector<tensor::AttentionSpan> spans;
    for (size_t i = 0; i < sequences.size(); ++i) {
      TestSequence& s = *sequences[i];
      spans.push_back({static_cast<int>(tokens.size()), chunks[i], s.computed, s.blocks});
      for (int j = 0; j < chunks[i]; ++j) {
        tokens.push_back(s.tokens[static_cast<size_t>(s.computed)]);
        positions.push_back(s.computed++);
      }
    }
    const int rows = static_cast<int>(tokens.size());
    const tensor::StepPart part{kv_.get(), model_->layers().begin, 0, rows, spans};
    const std::vector<int32_t> outputs = AllRows(rows);
    const tensor::RowRange all = model_->Begin({tokens, positions, {&part, 1}, outputs});
    model_->Embed(all);
    const Status ran = model_->Layers(all);
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    return Read(rows, of);
  }

  static std::vector<int32_t> AllRows(int rows) {
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Of the first `rows` of the step's outputs. Empty where the model has no head: a
  // tensor-parallel rank other than 0.
  std::vector<std::vector<float>> Logits(int rows) { return Read(rows, &Model::Head); }

  // What enters the vocabulary projection at every position of `tokens`.
  std::vector<std::vector<float>> HeadInputs(const std::vector<TokenId>& tokens) {
    next_block_ = 0;
    const int count = static_cast<int>(tokens.size());
    TestSequence s = NewSequence(tokens, count);
    return Step({&s}, {count}, &Model::HeadInput);
  }

  // Logits of every position of `tokens`, computed in chunks of `chunk`.
  std::vector<std::vector<float>> Prefill(const std::vector<TokenId>& tokens, int chunk) {
    next_block_ = 0;
    TestSequence s = NewSequence(tokens, static_cast<int>(tokens.size()));
    std::vector<std::vector<float>> all;
    while (s.computed < static_cast<int>(tokens.size())) {
      for (auto& row :
           Step({&s}, {std::min(chunk, static_cast<int>(tokens.size()) - s.computed)})) {
        all.push_back(std::move(row));
      }
    }
    return all;
  }

  std::vector<TokenId> Greedy(const std::vector<TokenId>& prompt, int new_tokens) {
    next_block_ = 0;
    TestSequence s = NewSequence(prompt, static_cast<int>(prompt.size()) + new_tokens);
    std::vector<TokenId> out;
    int chunk = static_cast<int>(prompt.size());
    for (; new_tokens > 0; --new_tokens, chunk = 1) {
      const std::vector<float> last = Step({&s}, {chunk}).back();
      out.push_back(
          static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin()));
      s.tokens.push_back(out.back());
    }
    return out;
  }

 private:
  std::vector<std::vector<float>> Read(int rows, HeadPart of) {
    std::vector<std::vector<float>> all;
    if (!model_->has_head()) return all;
    for (int first = 0; first < rows;) {
      const int n = std::min(rows - first, model_->max_logits_rows());
      const tensor::Rows read = ((*model_).*of)(first, n);
      std::vector<float> host(static_cast<size_t>(n) * static_cast<size_t>(read.cols));
      device_->Read(read, host.data());
      for (auto at = host.begin(); at != host.end(); at += read.cols) {
        all.emplace_back(at, at + read.cols);
      }
      first += n;
    }
    return all;
  }

  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<tensor::KvPool> kv_;
  int next_block_ = 0;
};

}  // namespace millrace::model
