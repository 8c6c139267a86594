// LayerTable: the time of one layer of a model on one device, as in Helix (ASPLOS'25, section 5):
// milliseconds against the tokens of the batch, separately for prompt and decode, linear in
// between. LayerTableCost: a stage of several layers. Immutable after construction; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "cost/piecewise_linear.h"
#include "cost/step_cost.h"

namespace millrace::cost {

class LayerTable {
 public:
  static constexpr int64_t kTokensMax = int64_t{1} << 32;
  static constexpr double kLayerMsMax = 1e9;

  // Each text has lines "tokens,milliseconds" with ascending tokens and no header. The names are
  // for errors.
  static Result<LayerTable> Parse(std::string_view prompt_csv, std::string_view prompt_file,
                                  std::string_view decode_csv, std::string_view decode_file);
  // `folder` holds prompt_bs2time.csv and decode_bs2time.csv.
  static Result<LayerTable> Load(const std::string& folder);

  // Seconds of one layer for `tokens` in the batch; zero for none. Past the last point, continues
  // with the mean slope of the upper half (PiecewiseLinear::AtSmoothed). Below the first point,
  // uses the line from the origin. Averages may be fractions of a token.
  double PromptSeconds(double tokens) const;
  double DecodeSeconds(double tokens) const;
  const PiecewiseLinear& prompt_ms() const { return prompt_; }
  const PiecewiseLinear& decode_ms() const { return decode_; }

 private:
  LayerTable(PiecewiseLinear prompt, PiecewiseLinear decode)
      : prompt_(std::move(prompt)), decode_(std::move(decode)) {}

  PiecewiseLinear prompt_, decode_;  // milliseconds
};

// Helix's rule: the prompt part and the decode part of a batch add up, and the cost of attention
// does not grow with the context. A decode of one token costs as much as one of two: the tables
// begin with (0, 0), and reading the weights does not get cheaper with half the batch.
class LayerTableCost : public StepCost {
 public:
  // REQUIRES: layers >= 0.
  LayerTableCost(LayerTable table, int layers);
  double Seconds(const BatchShape& batch) const override;

 private:
  LayerTable table_;
  int layers_;
};

}  // namespace millrace::cost
