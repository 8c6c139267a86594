// SplitwiseTable: the measured end-to-end rows of splitwise-sim (Splitwise, ISCA'24): prompt time
// and mean token time for (model, device, TP, prompt size, batch size, output size), with repeats.
// TableCost predicts from them like that simulator. Immutable after construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cost/piecewise_linear.h"
#include "cost/step_cost.h"
#include "cost/step_model.h"

namespace millrace::experiments::splitwise {

struct SplitwiseRow {
  std::string model, hardware;  // "llama2-70b", "a100-80gb"
  int tensor_parallel = 1;
  int64_t prompt_size = 0, batch_size = 0, token_size = 0;  // tokens, sequences, tokens
  double prompt_s = 0, token_s = 0;                         // of one batch, of one iteration

  // What the row measured: all prompts at once, and a decode at the mean context of its outputs.
  cost::StepSample Prompt() const;
  cost::StepSample Decode() const;
};

// `file` names the text in errors.
Result<std::vector<SplitwiseRow>> ParseSplitwiseRows(std::string text, std::string_view file);
Result<std::vector<SplitwiseRow>> LoadSplitwiseRows(const std::string& path);

// Medians of the measured prompt times against the prompt tokens in the batch, linear in between
// and beyond. Token times are against the same tokens (splitwise-sim) or against sequences. A mixed
// batch costs the prompt time of all its tokens times 1.1.
class TableCost : public cost::StepCost {
 public:
  enum class TokenAxis {
    kBatchTokens,  // as splitwise-sim: built on prompt x batch, read at the number of decodes
    kSequences,
  };
  static constexpr double kMixedFactor = 1.1;

  // kInvalidArgument if `rows` is empty or mixes models, devices or TP degrees.
  static Result<TableCost> Create(std::span<const SplitwiseRow> rows, TokenAxis axis);
  double Seconds(const cost::BatchShape& batch) const override;

  // Values of the curves themselves, so that a hold-out test can read each on its own axis.
  double PromptSeconds(double batch_tokens) const { return prompt_.At(batch_tokens); }
  double TokenSeconds(double x) const { return token_.At(x); }

 private:
  TableCost(cost::PiecewiseLinear prompt, cost::PiecewiseLinear token)
      : prompt_(std::move(prompt)), token_(std::move(token)) {}
  cost::PiecewiseLinear prompt_, token_;
};

}  // namespace millrace::experiments::splitwise
