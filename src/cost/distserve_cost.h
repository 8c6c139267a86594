// DistServeCost: the fitted latency model of DistServe (OSDI'24, Appendix A; the released simulator
// adds a batch-size term), read from its coefficients file. One set per (model, TP degree):
//
//   prefill ms = a + b * tokens + c * sum of length^2
//   decode  ms = a + b * context + c * sequences     (two sets, split at a batch size)
//
// A stage takes total / PP. Immutable after construction; any thread.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cost/step_cost.h"

namespace millrace::cost {

// Milliseconds for a whole model on `TP` devices.
struct DistServeCoefficients {
  std::array<double, 3> prefill{};
  std::array<double, 3> decode_small{};  // fewer sequences than decode_threshold
  std::array<double, 3> decode_large{};
  int decode_threshold = 95;
};

// A coefficients file: one set per (model, TP). Published sets may hold a negative coefficient (a
// fit artefact); times are still never below zero.
class DistServeProfile {
 public:
  static constexpr size_t kBytesMax = 4 << 20;

  // `file` names the text in errors.
  static Result<DistServeProfile> Parse(std::string_view text, std::string_view file);
  static Result<DistServeProfile> Load(const std::string& path);

  // `model` as in the file ("facebook/opt-13b") or its last part ("opt-13b", any case). kNotFound
  // lists the available sets.
  Result<DistServeCoefficients> Find(std::string_view model, int tensor_parallel) const;
  std::vector<std::pair<std::string, int>> Keys() const;

 private:
  std::map<std::pair<std::string, int>, DistServeCoefficients> sets_;
};

// The stage's place in the pipeline, and the cost of a step besides the fitted time.
struct DistServeStage {
  int pipeline_parallel = 1;
  bool first = true;
  double prefill_ms_per_stage = 0;  // times pipeline_parallel, in every stage of a prefill
  double step_ms = 0;               // the first stage only
  double step_ms_per_token = 0;     // the first stage only; tokens in the cache or computed

  // The constants of the released simulator: 1 ms per stage of prefill, and 2 ms + 0.0001 ms per
  // token for handing a step to the first stage ("Ray overhead").
  static DistServeStage Released(int pipeline_parallel, bool first) {
    return {pipeline_parallel, first, 1, 2, 1e-4};
  }
};

// The published model has no batches with both prefill and decode. Here such a batch costs the
// prefill of all its tokens plus the cache reads of the decodes, and at least the decodes alone.
class DistServeCost : public StepCost {
 public:
  // REQUIRES: stage.pipeline_parallel >= 1.
  explicit DistServeCost(const DistServeCoefficients& coefficients, DistServeStage stage = {});
  double Seconds(const BatchShape& batch) const override;

 private:
  double WholeModelMs(const BatchShape& batch) const;

  DistServeCoefficients coefficients_;
  DistServeStage stage_;
};

}  // namespace millrace::cost
