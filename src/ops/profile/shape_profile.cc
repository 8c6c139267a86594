#include "ops/profile/shape_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/architecture.h"
#include "model/make_model.h"
#include "model/model.h"
#include "model/weight_plan.h"
#include "ops/profile/links.h"
#include "ops/profile/measure.h"
#include "ops/profile/repeats.h"
#include "ops/profile/step_rig.h"
#include "tensor/devices/make_device.h"

namespace millrace::ops {
namespace {

constexpr ProfileLimits kLimits{
    .max_tokens = 512, .max_sequences = 32, .max_context = 1024, .context_tokens = 4096};
constexpr int kRepeatsMax = 9;
constexpr int kCopyRepeats = 5;

// Removes the folder, also when measuring failed, and first what a killed process left there.
class Scratch {
 public:
  explicit Scratch(std::string folder) : folder_(std::move(folder)) { Remove(); }
  ~Scratch() { Remove(); }
  const std::string& folder() const { return folder_; }

 private:
  void Remove() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  const std::string folder_;
};

// The same shape with another number of layers.
Json WithLayers(Json config, int layers) {
  config[config.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = layers;
  config.erase("layer_types");  // one per layer
  return config;
}

Result<ModelSpec> SpecOf(const Json& config, DType dtype) {
  MR_ASSIGN_OR_RETURN(const auto decoder, model::NewDecoder(config, "config.json"));
  ModelSpec spec = decoder->dims().spec;
  spec.dtype = dtype;
  model::WeightPlan plan(nullptr);
  decoder->Declare({0, spec.num_layers}, plan);
  spec.weight_bytes = 0;
  for (const auto& need : plan.Needs()) {
    spec.weight_bytes += need.elements() * static_cast<int64_t>(BytesOf(spec.dtype));
  }
  return spec;
}

// One layer, or as many small ones as the processor's caches do not hold.
Result<int> LayersToMeasure(const ShapeProfileOptions& options, int num_layers) {
  MR_ASSIGN_OR_RETURN(const ModelSpec one, SpecOf(WithLayers(options.config, 1), options.dtype));
  MR_ASSIGN_OR_RETURN(const ModelSpec two, SpecOf(WithLayers(options.config, 2), options.dtype));
  const int64_t layer_bytes = std::max<int64_t>(1, two.weight_bytes - one.weight_bytes);
  const int64_t needed = (ShapeProfileOptions::kLayersBytesMin + layer_bytes - 1) / layer_bytes;
  return static_cast<int>(std::clamp<int64_t>(needed, 1, num_layers));
}

// The clock without the time that was spent waiting.
class WorkTime {
 public:
  WorkTime(const ShapeProfileOptions& options, const Clock& clock)
      : options_(options), clock_(clock), end_(clock.Now() + options.limit) {}
  bool over() const { return clock_.Now() >= end_; }
  void Restart() { end_ = clock_.Now() + options_.limit; }
  Status WaitForLeave() {
    const Time before = clock_.Now();
    const bool go_on = options_.may_go_on();
    end_ = end_ + (clock_.Now() - before);
    return go_on ? OkStatus() : Status(StatusCode::kCancelled, "the machine has other work");
  }

 private:
  const ShapeProfileOptions& options_;
  const Clock& clock_;
  Time end_;
};

Result<std::unique_ptr<StepRig>> MakeRig(const ShapeProfileOptions& options, const Json& config,
                                         const std::string& folder, ProfileLimits& limits,
                                         WorkTime& time, const Clock& clock) {
  MR_ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(config, options.dtype));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<tensor::Device> device,
                      tensor::MakeDevice(tensor::kCpu, {.threads = options.threads}));
  const int64_t free_bytes = device->MemoryAvailable().bytes;
  const int64_t weights_max = std::min(ShapeProfileOptions::kWeightBytesMax, free_bytes / 4);
  if (spec.weight_bytes > weights_max) {
    return ResourceExhausted(fmt::format(
        "a layer and the head have {}, and {} may be used to measure them; measure with "
        "`millrace profile` and give the file as --profile",
        FormatBytes(spec.weight_bytes), FormatBytes(weights_max)));
  }
  model::MakeModelOptions make{.dtype = options.dtype};
  make.go_on = [&]() -> Status {
    MR_RETURN_IF_ERROR(time.WaitForLeave());
    if (!time.over()) return OkStatus();
    return ResourceExhausted(fmt::format(
        "{} of random weights were not written within {:g} s; measure with `millrace profile` and "
        "give the file as --profile",
        FormatBytes(spec.weight_bytes), options.limit.seconds()));
  };
  MR_RETURN_IF_ERROR(model::MakeModel(config, folder, make));
  model::LoadOptions load;
  load.max_batched_tokens = limits.max_tokens;
  MR_ASSIGN_OR_RETURN(auto weights, model::Model::Load(folder, *device, load));
  MR_ASSIGN_OR_RETURN(limits, FitLimits(limits, weights->spec(), free_bytes / 4));
  stage::StageRunnerOptions runner_options;
  runner_options.block_size = kProfileBlockSize;
  runner_options.num_blocks = StepRig::BlocksFor(limits, kProfileBlockSize);
  MR_ASSIGN_OR_RETURN(auto runner, stage::StageRunner::Create(std::move(device), std::move(weights),
                                                              runner_options));
  return StepRig::Create(std::move(runner), limits, 1, clock);
}

// Goes round the batches, the small ones first, until the time is over.
Result<std::vector<cost::ProfileSample>> MeasureSteps(StepRig& rig, const ProfileLimits& limits,
                                                      WorkTime& time) {
  std::vector<ProfileBatch> grid = ProfileGrid(limits);
  std::stable_sort(grid.begin(), grid.end(), [](const ProfileBatch& a, const ProfileBatch& b) {
    return a.Shape().tokens() < b.Shape().tokens();
  });
  std::vector<std::vector<StepRig::Timing>> timings(grid.size());
  for (int round = 0; round < kRepeatsMax; ++round) {
    for (size_t i = 0; i < grid.size() && !time.over(); ++i) {
      MR_RETURN_IF_ERROR(time.WaitForLeave());
      MR_ASSIGN_OR_RETURN(const StepRig::Timing timing, rig.Run(grid[i]));
      timings[i].push_back(timing);
    }
  }
  std::erase_if(timings, [](const auto& repeats) { return repeats.empty(); });  // the last ones
  const std::vector<StepRig::Timing> steps = InTheLongRun(timings);
  std::vector<cost::ProfileSample> samples;
  for (size_t i = 0; i < steps.size(); ++i) {
    samples.push_back({grid[i].Shape(), steps[i].step_s, steps[i].layers_s});
  }
  return samples;
}

}  // namespace

Result<cost::Profile> MeasureShape(const ShapeProfileOptions& options, const Clock& clock) {
  WorkTime time(options, clock);
  MR_RETURN_IF_ERROR(time.WaitForLeave());
  MR_ASSIGN_OR_RETURN(const ModelSpec whole, SpecOf(options.config, options.dtype));
  const Scratch scratch(options.scratch);
  ProfileLimits limits = kLimits;
  MR_ASSIGN_OR_RETURN(const int layers, LayersToMeasure(options, whole.num_layers));
  MR_ASSIGN_OR_RETURN(const auto rig, MakeRig(options, WithLayers(options.config, layers),
                                              scratch.folder(), limits, time, clock));
  time.Restart();  // a slow machine took a part of it to write and load the weights
  MR_ASSIGN_OR_RETURN(auto samples, MeasureSteps(*rig, limits, time));
  for (cost::ProfileSample& sample : samples) {
    const double outside_s = std::max(0.0, sample.step_s - sample.layers_s);
    sample.layers_s *= static_cast<double>(whole.num_layers) / layers;
    sample.step_s = sample.layers_s + outside_s;
  }
  cost::Profile profile{.model = options.model,
                        .architecture = rig->runner().model().spec().architecture,
                        .dtype = DTypeName(whole.dtype),
                        .num_layers = whole.num_layers,
                        .device = rig->runner().device().Name(),
                        .numeric_class = rig->runner().device().NumericClass(),
                        .threads = options.threads,
                        .samples = std::move(samples)};
  profile.memory_copy_bytes_per_s = MeasureMemoryCopy(kCopyRepeats, clock);
  const size_t measured = profile.samples.size();
  auto fitted = cost::FitProfile(std::move(profile), ProfileKnots());
  if (fitted.ok()) return fitted;
  return ResourceExhausted(
      fmt::format("{} kinds of steps were measured in {:.0f} s, too few; measure with `millrace "
                  "profile` and give the file as --profile",
                  measured, options.limit.seconds()));
}

}  // namespace millrace::ops
