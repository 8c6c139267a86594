#include "cost/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace millrace::cost {
namespace {

// The length of the ramp from knot i that lies below x.
double RampLength(const std::vector<double>& knots, size_t i, double x) {
  const double end = i + 1 < knots.size() ? knots[i + 1] : std::numeric_limits<double>::infinity();
  return std::max(0.0, std::min(x, end) - knots[i]);
}

double RampSum(const std::vector<double>& knots, const std::vector<double>& slopes, double x) {
  double sum = 0;
  for (size_t i = 0; i < knots.size() && knots[i] < x; ++i) {
    sum += slopes[i] * RampLength(knots, i, x);
  }
  return sum;
}

double Sequences(const BatchShape& batch) {
  return static_cast<double>(batch.prefill_sequences) + batch.decode_sequences;
}

std::vector<double> Terms(const StepKnots& knots, const BatchShape& batch) {
  std::vector<double> terms = {1, static_cast<double>(batch.prefill_tokens_squared),
                               static_cast<double>(batch.decode_context)};
  for (size_t i = 0; i < knots.tokens.size(); ++i) {
    terms.push_back(RampLength(knots.tokens, i, static_cast<double>(batch.tokens())));
  }
  for (size_t i = 0; i < knots.sequences.size(); ++i) {
    terms.push_back(RampLength(knots.sequences, i, Sequences(batch)));
  }
  return terms;
}

Status CheckKnots(const std::vector<double>& knots, const char* name) {
  if (knots.size() > StepKnots::kKnotsMax) {
    return InvalidArgument(
        fmt::format("{} {} knots, at most {}", knots.size(), name, StepKnots::kKnotsMax));
  }
  for (size_t i = 0; i < knots.size(); ++i) {
    const bool in_order = i == 0 ? knots[0] == 0 : knots[i - 1] < knots[i];
    if (!in_order || !std::isfinite(knots[i])) {
      return InvalidArgument(fmt::format("{} knots must begin at 0 and ascend, got {} at place {}",
                                         name, knots[i], i + 1));
    }
  }
  return {};
}

Status CheckCoefficient(double value, const char* name) {
  if (value >= 0 && std::isfinite(value)) return {};
  return InvalidArgument(fmt::format("{} must not be negative, got {}", name, value));
}

}  // namespace

Result<StepModel> StepModel::Create(StepKnots knots, StepCoefficients coefficients) {
  MR_RETURN_IF_ERROR(CheckKnots(knots.tokens, "token"));
  MR_RETURN_IF_ERROR(CheckKnots(knots.sequences, "sequence"));
  if (knots.tokens.size() != coefficients.token_s.size() ||
      knots.sequences.size() != coefficients.sequence_s.size()) {
    return InvalidArgument(fmt::format(
        "one slope per knot: {} and {} knots, {} and {} slopes", knots.tokens.size(),
        knots.sequences.size(), coefficients.token_s.size(), coefficients.sequence_s.size()));
  }
  MR_RETURN_IF_ERROR(CheckCoefficient(coefficients.fixed_s, "fixed_s"));
  MR_RETURN_IF_ERROR(CheckCoefficient(coefficients.prefill_squared_s, "prefill_squared_s"));
  MR_RETURN_IF_ERROR(CheckCoefficient(coefficients.decode_context_s, "decode_context_s"));
  for (const double v : coefficients.token_s) MR_RETURN_IF_ERROR(CheckCoefficient(v, "token_s"));
  for (const double v : coefficients.sequence_s) {
    MR_RETURN_IF_ERROR(CheckCoefficient(v, "sequence_s"));
  }
  return StepModel(std::move(knots), std::move(coefficients));
}

double StepModel::Seconds(const BatchShape& batch) const {
  if (batch.empty()) return 0;
  const StepCoefficients& c = coefficients_;
  return c.fixed_s + c.prefill_squared_s * static_cast<double>(batch.prefill_tokens_squared) +
         c.decode_context_s * static_cast<double>(batch.decode_context) +
         RampSum(knots_.tokens, c.token_s, static_cast<double>(batch.tokens())) +
         RampSum(knots_.sequences, c.sequence_s, Sequences(batch));
}

Result<StepFit> FitStepModel(std::span<const StepSample> samples, const StepKnots& knots) {
  std::vector<std::vector<double>> rows;
  std::vector<double> measured;
  for (const StepSample& sample : samples) {
    rows.push_back(Terms(knots, sample.batch));
    measured.push_back(sample.seconds);
  }
  MR_ASSIGN_OR_RETURN(const Fit fit, FitRelative(rows, measured));
  const std::vector<double>& x = fit.coefficients;
  StepCoefficients c{.fixed_s = x[0], .prefill_squared_s = x[1], .decode_context_s = x[2]};
  const auto ramps = x.begin() + 3;
  const auto split = ramps + static_cast<std::ptrdiff_t>(knots.tokens.size());
  c.token_s.assign(ramps, split);
  c.sequence_s.assign(split, x.end());
  MR_ASSIGN_OR_RETURN(StepModel model, StepModel::Create(knots, std::move(c)));
  return StepFit{std::move(model), fit.errors};
}

RelativeErrors ErrorsOn(const StepCost& cost, std::span<const StepSample> samples) {
  std::vector<double> predicted, measured;
  for (const StepSample& sample : samples) {
    predicted.push_back(cost.Seconds(sample.batch));
    measured.push_back(sample.seconds);
  }
  return ErrorsOf(predicted, measured);
}

}  // namespace millrace::cost
