// SamplingPass: the last step of a batch: from the hidden rows whose logits are wanted, of all
// lanes together, to tokens and log-probabilities. One thread, the stage's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model_lane.h"
#include "engine/sampler.h"
#include "engine/stage.h"
#include "model/model.h"
#include "tensor/device.h"

namespace millrace::engine {

class SamplingPass {
 public:
  SamplingPass(model::Model& model, tensor::Device& device);

  // Adds the rows that the part's plan wants and makes its result, as yet without tokens. The
  // plan's rows begin at `first_row` of the hidden rows.
  void Add(StagePart& part, ModelLane& lane, int first_row);
  // Fills in the results of all parts added, and forgets them.
  void Run();
  // Forgets the parts added: the batch failed.
  void Drop() { wanted_.clear(); }

 private:
  // A row whose logits are wanted, and what for.
  struct LogitsRow {
    StagePart* part = nullptr;
    ModelLane* lane = nullptr;
    int32_t row = 0;              // in the batch
    size_t result = 0;            // in part->result.sequences
    int position = 0;             // tokens up to and including this row's
    bool sample = false;          // choose the next token
    bool prompt_logprob = false;  // log-probability of the known next token
  };
  void AddRows(const SequenceStep& step, LogitsRow row);
  void UseRow(const LogitsRow& wanted, std::span<float> logits);

  model::Model& model_;
  tensor::Device& device_;
  Sampler sampler_;
  std::vector<LogitsRow> wanted_;
  std::vector<int32_t> rows_;
  std::vector<float> logits_;  // [max_logits_rows, vocab]
};

}  // namespace millrace::engine
