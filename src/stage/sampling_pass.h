// SamplingPass: the end of a batch: turns the hidden rows that are needed, of all pipelines
// together, into tokens and log-probabilities, or into vectors. Owned by the stage; one thread, the
// stage's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"
#include "stage/model_pipeline.h"
#include "stage/sampler.h"
#include "stage/stage.h"
#include "tensor/device.h"

namespace millrace::stage {

class SamplingPass {
 public:
  SamplingPass(model::Model& model, tensor::Device& device);

  // Adds the rows that the part's plan needs, and creates its result without tokens. The plan's
  // rows start at `first_row` of the step.
  void Add(StagePart& part, ModelPipeline& pipeline, int first_row);
  // The added rows, in the order in which Run takes them: the step's outputs.
  std::span<const int32_t> Outputs();
  // Fills in the results of all added parts, and clears them.
  void Run();
  // Clears the added parts, because the batch failed.
  void Drop() {
    chosen_.clear();
    how_.clear();
    read_.clear();
    pooled_.clear();
  }

 private:
  // A row whose logits, or whose state, is needed, and its use.
  struct LogitsRow {
    StagePart* part = nullptr;
    ModelPipeline* pipeline = nullptr;
    int32_t row = 0;              // in the step
    size_t result = 0;            // in part->result.sequences
    int position = 0;             // tokens up to and including this row's
    bool sample = false;          // choose the next token, or return the vector
    bool prompt_logprob = false;  // log-probability of the known next token
  };
  void AddRows(const SequenceView& sequence, LogitsRow row);
  void ChooseRows(size_t first, tensor::Rows logits);
  void ReadRows(size_t first, tensor::Rows logits);
  void UseRow(const LogitsRow& wanted, std::span<float> logits);
  void PoolRows(size_t first, tensor::Rows states);

  model::Model& model_;
  tensor::Device& device_;
  Sampler sampler_;
  std::vector<LogitsRow> chosen_;        // the device chooses the token
  std::vector<tensor::ChooseSpec> how_;  // for each of them
  std::vector<std::optional<TokenId>> tokens_;
  std::vector<LogitsRow> read_;    // more than a token is wanted
  std::vector<LogitsRow> pooled_;  // states are wanted
  std::vector<int32_t> outputs_;
  std::vector<float> logits_;  // [max_logits_rows, vocab]
  std::vector<float> states_;  // [max_logits_rows, columns]; empty until the first is wanted
};

}  // namespace millrace::stage
