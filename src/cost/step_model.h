// StepModel: the time of a step as a sum of terms, each with a non-negative coefficient, so that
// more work never costs less:
//
//   fixed                  reading the weights, launching, and other costs of every step
//   ramps over tokens      tokens through the weight products; straight between knots, because
//                          small batches are bound by memory and large ones by arithmetic
//   ramps over sequences   sampling, and the vocabulary projection
//   prefill squared        attention of prompts: sum of end^2 - start^2
//   decode context         attention of decodes: tokens read from the cache
//
// FitStepModel finds the coefficients from measured steps. Immutable after construction; any
// thread.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "cost/fit.h"
#include "cost/step_cost.h"

namespace millrace::cost {

// Starting points of the ramps, ascending, the first at 0. Each ramp ends where the next begins;
// the last has no end. An empty list: no such term.
struct StepKnots {
  static constexpr size_t kKnotsMax = 24;
  std::vector<double> tokens{0};
  std::vector<double> sequences{0};
};

struct StepCoefficients {
  double fixed_s = 0;
  double prefill_squared_s = 0;
  double decode_context_s = 0;
  std::vector<double> token_s;     // per token, one per knot
  std::vector<double> sequence_s;  // per sequence, one per knot
};

class StepModel : public StepCost {
 public:
  StepModel() : StepModel({.tokens = {}, .sequences = {}}, {}) {}  // costs nothing
  // kInvalidArgument for knots out of order or too many, a list with a different length than its
  // knots, and coefficients that are negative or not finite.
  static Result<StepModel> Create(StepKnots knots, StepCoefficients coefficients);

  double Seconds(const BatchShape& batch) const override;
  const StepKnots& knots() const { return knots_; }
  const StepCoefficients& coefficients() const { return coefficients_; }

 private:
  StepModel(StepKnots knots, StepCoefficients coefficients)
      : knots_(std::move(knots)), coefficients_(std::move(coefficients)) {}

  StepKnots knots_;
  StepCoefficients coefficients_;
};

struct StepSample {
  BatchShape batch;
  double seconds = 0;
};

struct StepFit {
  StepModel model;
  RelativeErrors errors;  // on the samples themselves
};

// Least squares on the relative error (FitRelative). Terms without samples stay zero.
Result<StepFit> FitStepModel(std::span<const StepSample> samples, const StepKnots& knots);

// The errors of `cost` on samples that it was not fitted to. REQUIRES: samples not empty, their
// seconds above zero.
RelativeErrors ErrorsOn(const StepCost& cost, std::span<const StepSample> samples);

}  // namespace millrace::cost
