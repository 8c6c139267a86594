#include "cost/profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::cost {
namespace {

BatchShape PromptOf(int64_t tokens) {
  return {
      .prefill_tokens = tokens, .prefill_tokens_squared = tokens * tokens, .prefill_sequences = 1};
}
BatchShape DecodesOf(int32_t sequences, int64_t context) {
  return {.decode_sequences = sequences, .decode_context = sequences * context};
}

double PerSecond(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

}  // namespace

Result<Profile> FitProfile(Profile measured, StepKnots knots) {
  std::vector<StepSample> steps, layers;
  int64_t tokens_max = 1;
  for (const ProfileSample& sample : measured.samples) {
    steps.push_back({sample.batch, sample.step_s});
    layers.push_back({sample.batch, sample.layers_s});
    tokens_max = std::max(tokens_max, sample.batch.tokens());
  }
  std::erase_if(knots.tokens,
                [&](double knot) { return knot > 0 && knot >= static_cast<double>(tokens_max); });
  const size_t terms = 3 + knots.tokens.size() + knots.sequences.size();
  if (steps.size() < 2 * terms) {
    return InvalidArgument(
        fmt::format("{} measured batches are too few for {} terms", steps.size(), terms));
  }
  MR_ASSIGN_OR_RETURN(measured.step, FitStepModel(steps, knots));
  MR_ASSIGN_OR_RETURN(measured.layers, FitStepModel(layers, knots));
  measured.saturation_tokens = SaturationTokens(measured.step.model, tokens_max);
  return measured;
}

int64_t SaturationTokens(const StepCost& cost, int64_t tokens_max) {
  constexpr double kEnough = 0.9;
  const auto rate = [&](int64_t tokens) {
    return PerSecond(tokens, cost.Seconds(PromptOf(tokens)));
  };
  constexpr int64_t kGrid = 16;  // candidates are its multiples
  double best = 0;
  for (int64_t t = kGrid; t <= tokens_max; t += kGrid) best = std::max(best, rate(t));
  for (int64_t t = kGrid; t <= tokens_max; t += kGrid) {
    if (rate(t) >= kEnough * best) return t;
  }
  return tokens_max;
}

ProfileRates RatesOf(const Profile& profile) {
  const StepModel& step = profile.step.model;
  const int64_t prompt = profile.saturation_tokens;
  const BatchShape decodes = DecodesOf(ProfileRates::kDecodes, ProfileRates::kContext);
  return {.prefill_tokens_per_s = PerSecond(prompt, step.Seconds(PromptOf(prompt))),
          .decode_tokens_per_s = PerSecond(ProfileRates::kDecodes, step.Seconds(decodes))};
}

double PromptSeconds(const Profile& profile, int64_t tokens) {
  return profile.step.model.Seconds(PromptOf(tokens));
}

Status CheckPlausible(const Profile& profile) {
  constexpr double kSecondsMin = 1e-7, kSecondsMax = 1e4;
  const auto check = [&](std::string_view what, const StepModel& model, const BatchShape& batch) {
    const double seconds = model.Seconds(batch);
    if (seconds >= kSecondsMin && seconds <= kSecondsMax) return OkStatus();
    return InvalidArgument(
        fmt::format("{} takes {:g} s, which is outside [{:g}, {:g}]: the profile cannot be of a "
                    "real machine; measure again with `millrace profile`",
                    what, seconds, kSecondsMin, kSecondsMax));
  };
  const BatchShape decode = DecodesOf(1, 1), prompt = PromptOf(profile.saturation_tokens);
  MR_RETURN_IF_ERROR(check("a decode of one token", profile.step.model, decode));
  MR_RETURN_IF_ERROR(check("its part in the layers", profile.layers.model, decode));
  MR_RETURN_IF_ERROR(check(fmt::format("a prompt of {} tokens", profile.saturation_tokens),
                           profile.step.model, prompt));
  return check("its part in the layers", profile.layers.model, prompt);
}

MeasuredCost::MeasuredCost(const Profile& profile, LayerRange layers)
    : step_(profile.step.model),
      layers_(profile.layers.model),
      share_(static_cast<double>(layers.size()) / profile.num_layers),
      last_(layers.end == profile.num_layers) {
  MR_CHECK(layers.begin >= 0 && layers.begin <= layers.end && layers.end <= profile.num_layers)
      << layers.begin << ", " << layers.end << " of " << profile.num_layers;
}

double MeasuredCost::Seconds(const BatchShape& batch) const {
  const double layers = layers_.Seconds(batch);
  const double outside = std::max(0.0, step_.Seconds(batch) - layers);
  return layers * share_ + (last_ ? outside : 0.0);
}

}  // namespace millrace::cost
