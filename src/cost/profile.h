// Profile: what `millrace profile` measured on one machine for one model, and the file it is kept
// in (docs/formats/profile.md). MeasuredCost: the time of a stage from it. Immutable values; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/plan.h"
#include "cost/link_model.h"
#include "cost/pace.h"
#include "cost/step_model.h"

namespace millrace::cost {

// One measured batch: the medians of its repeats.
struct ProfileSample {
  BatchShape batch;
  double step_s = 0;    // all an executor does for the step, sampling included
  double layers_s = 0;  // of it, the layers
};

// What a server adds to its steps, measured on a server with the profiled model.
struct FrontEnd {
  double request_s = 0;   // to a request's first token: HTTP, tokenizing and the way back
  double step_s = 0;      // to a step: scheduler and delivery, before it and beside it
  double sequence_s = 0;  // the same, for each of its sequences
  double arrival_s = 0;   // to the step under way when a request comes in another's place
};

struct Profile {
  static constexpr size_t kBytesMax = 16 << 20;
  static constexpr size_t kSamplesMax = 100'000;
  static constexpr int kLayersMax = 4096;
  static constexpr int kThreadsMax = 4096;

  std::string model, architecture, dtype;
  int num_layers = 0;
  std::string device;
  int threads = 0;
  StepFit step;                        // the whole model
  StepFit layers;                      // its layers alone, all of them
  int64_t saturation_tokens = 0;       // DistServe's L_m; SaturationTokens(step)
  double memory_copy_bytes_per_s = 0;  // bytes copied, not read plus written
  std::optional<LinkFit> loopback;     // TCP on this machine
  std::optional<FrontEnd> front_end;
  std::optional<Pace> pace;  // of the machine while it was measured
  std::vector<ProfileSample> samples;
};

// Fits both models to the samples. Token knots beyond the largest step are dropped: a ramp nobody
// measured would be free. kInvalidArgument when there are too few samples.
Result<Profile> FitProfile(Profile measured, StepKnots knots);

std::string FormatProfile(const Profile& profile);
// `file` names the text in errors; each names the key.
Result<Profile> ParseProfile(std::string_view text, std::string_view file);
Result<Profile> LoadProfile(const std::string& path);

// The fewest prompt tokens in a step, at most `tokens_max`, that already get nine tenths of the
// best tokens per second: batching prompts beyond it gains little (DistServe section 4.3, L_m).
int64_t SaturationTokens(const StepCost& cost, int64_t tokens_max);

// A stage holding `layers` of the profiled model. Layers cost alike; what a step does outside them
// (embedding, vocabulary projection, sampling, bookkeeping) falls on the last stage.
class MeasuredCost : public StepCost {
 public:
  // REQUIRES: layers within [0, profile.num_layers). Without any at the end: what comes behind
  // them.
  MeasuredCost(const Profile& profile, LayerRange layers);
  // The whole model.
  explicit MeasuredCost(const Profile& profile)
      : MeasuredCost(profile, LayerRange{0, profile.num_layers}) {}
  double Seconds(const BatchShape& batch) const override;

 private:
  StepModel step_, layers_;
  double share_;  // of the layers
  bool last_;
};

}  // namespace millrace::cost
