// Profile: the results of `millrace profile` on one machine for one model, and their file
// (docs/formats/profile.md). MeasuredCost: the time of a stage from them. Immutable values; any
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
  double step_s = 0;    // everything a stage does for the step, with sampling
  double layers_s = 0;  // the part of the layers
};

// Time that a server adds, measured on a server with the profiled model.
struct FrontEnd {
  double request_s = 0;   // added to a request's first token: HTTP, tokenizing, return
  double step_s = 0;      // added to a step: scheduling and delivery, before and during it
  double sequence_s = 0;  // the same, per sequence of the step
  double arrival_s = 0;   // added to the current step when a request replaces another
};

struct Profile {
  static constexpr size_t kBytesMax = 16 << 20;
  static constexpr size_t kSamplesMax = 100'000;
  static constexpr int kLayersMax = 4096;
  static constexpr int kThreadsMax = 4096;

  std::string model, architecture, dtype;
  int num_layers = 0;
  std::string device;
  std::string numeric_class;  // whose kernels were measured; "": not known, older than cpu-bits-3
  int threads = 0;
  StepFit step;                                 // the whole model
  StepFit layers;                               // all layers, without the rest
  int64_t saturation_tokens = 0;                // DistServe's L_m; SaturationTokens(step)
  double memory_copy_bytes_per_s = 0;           // bytes copied, not read plus written
  std::optional<LinkFit> loopback;              // TCP on this machine
  std::optional<double> hand_over_bytes_per_s;  // KV from worker to worker on this machine
  std::optional<FrontEnd> front_end;
  std::optional<Pace> pace;  // of the machine during the measurement
  std::vector<ProfileSample> samples;
};

// Fits both models to the samples. Drops token knots beyond the largest step: the fit would set an
// unmeasured ramp to zero cost. kInvalidArgument if there are too few samples.
Result<Profile> FitProfile(Profile measured, StepKnots knots);

// Tokens per second of the whole model, for display.
struct ProfileRates {
  static constexpr int kDecodes = 8;    // sequences that decode together
  static constexpr int kContext = 256;  // cached tokens of each
  double prefill_tokens_per_s = 0;      // of a prompt of saturation_tokens
  double decode_tokens_per_s = 0;
};
ProfileRates RatesOf(const Profile& profile);

// The time of a step of the whole model with one prompt of this many tokens.
double PromptSeconds(const Profile& profile, int64_t tokens);

// kInvalidArgument: times that no machine can have, such as a step that takes none.
Status CheckPlausible(const Profile& profile);

std::string FormatProfile(const Profile& profile);
// One line, about 2 KB: the same without samples and pace, which only the simulator uses.
std::string FormatProfileLine(Profile profile);
// `file` names the text in errors; each error names the key.
Result<Profile> ParseProfile(std::string_view text, std::string_view file);
Result<Profile> LoadProfile(const std::string& path);

// The fewest prompt tokens in a step, at most `tokens_max`, that reach nine tenths of the best
// tokens per second. Batching more prompt tokens gains little (DistServe section 4.3, L_m).
int64_t SaturationTokens(const StepCost& cost, int64_t tokens_max);

// A stage with `layers` of the profiled model. All layers cost the same; the part of a step outside
// them (embedding, vocabulary projection, sampling, bookkeeping) is on the last stage.
class MeasuredCost : public StepCost {
 public:
  // REQUIRES: layers within [0, profile.num_layers). An empty range at the end stands for what
  // comes after the layers.
  MeasuredCost(const Profile& profile, LayerRange layers);
  // The whole model.
  explicit MeasuredCost(const Profile& profile)
      : MeasuredCost(profile, LayerRange{0, profile.num_layers}) {}
  double Seconds(const BatchShape& batch) const override;

 private:
  StepModel step_, layers_;
  double share_;  // of all layers
  bool last_;
};

}  // namespace millrace::cost
