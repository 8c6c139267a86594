// millrace profile: measures a model's step times on this machine, for the simulator and the
// planner.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/engine_flags.h"
#include "apps/common/hub_flags.h"
#include "apps/profile/front_end.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/statistics.h"
#include "base/units.h"
#include "cost/profile.h"
#include "model/model.h"
#include "ops/hub/fetch_model.h"
#include "ops/profile/grid.h"
#include "ops/profile/hand_over.h"
#include "ops/profile/links.h"
#include "ops/profile/measure.h"
#include "ops/profile/repeats.h"
#include "ops/profile/step_rig.h"
#include "tensor/devices/make_device.h"

namespace millrace::apps {
namespace {

// A slow batch is repeated less: beyond this time it gets at most kRepeatsMin repeats.
constexpr double kBatchSecondsMax = 5;
constexpr int kRepeatsMin = 3;
constexpr double kErrorSuspicious = 0.25;  // P95
constexpr double kUndisturbedMin = 0.85;
constexpr double kRestMaxS = 86400;
struct ProfileFlags {
  std::string model, output = "profile.json";
  ops::HubFlags hub;
  ops::ProfileLimits limits;
  std::optional<int> threads;
  int repeats = 9;
  double temperature = 1;
  double rest_s = 0;
};

struct Loaded {
  std::unique_ptr<ops::StepRig> rig;
  ops::ProfileLimits limits;
  std::string model, folder, device;
  int threads = 0;
};

Result<Loaded> LoadRig(const ProfileFlags& flags, const Clock& clock) {
  Loaded loaded;
  MR_ASSIGN_OR_RETURN(const model::ModelPath path, ops::FetchModel(flags.model, flags.hub));
  loaded.model = path.name;
  loaded.folder = path.folder;
  loaded.threads = flags.threads.value_or(DefaultThreads());
  MR_ASSIGN_OR_RETURN(std::unique_ptr<tensor::Device> device,
                      tensor::MakeDevice(tensor::kCpu, {.threads = loaded.threads}));
  loaded.device = device->Name();
  Progress progress("Loading", ProgressUnit::kBytes, 0, stderr, ProgressStyle::ForStream(stderr),
                    clock);
  model::LoadOptions load;
  load.max_batched_tokens = flags.limits.max_tokens;
  load.progress = [&progress](int64_t done, int64_t total) { progress.UpdateTotal(done, total); };
  MR_ASSIGN_OR_RETURN(auto weights, model::Model::Load(path.folder, *device, load));
  progress.Finish();
  MR_ASSIGN_OR_RETURN(loaded.limits, ops::FitLimits(flags.limits, weights->spec(),
                                                    device->MemoryAvailable().bytes));
  stage::StageRunnerOptions options;
  options.block_size = ops::kProfileBlockSize;
  options.num_blocks = ops::StepRig::BlocksFor(loaded.limits, ops::kProfileBlockSize);
  MR_ASSIGN_OR_RETURN(auto runner,
                      stage::StageRunner::Create(std::move(device), std::move(weights), options));
  MR_ASSIGN_OR_RETURN(
      loaded.rig, ops::StepRig::Create(std::move(runner), loaded.limits, flags.temperature, clock));
  return loaded;
}

struct Measured {
  std::vector<cost::ProfileSample> samples;
  std::optional<cost::Pace> pace;
  double undisturbed = 0;  // median over the batches
};

void Rest(double seconds) {
  if (seconds <= 0) return;
  fmt::print(stderr, "\nPausing for {:g} s\n", seconds);
  std::fflush(stderr);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Goes round all batches several times, so that a busy moment of the machine is one outlier of many
// batches instead of all samples of one.
Result<Measured> MeasureSteps(ops::StepRig& rig, const ops::ProfileLimits& limits, int repeats,
                              double rest_s, const Clock& clock) {
  const std::vector<ops::ProfileBatch> grid = ops::ProfileGrid(limits);
  std::vector<std::vector<ops::StepRig::Timing>> timings(grid.size());
  std::vector<double> spent(grid.size(), 0);
  std::vector<std::pair<size_t, double>> past;  // batch and seconds, in order
  Progress progress("Measuring", ProgressUnit::kRequests,
                    static_cast<int64_t>(grid.size()) * repeats, stderr,
                    ProgressStyle::ForStream(stderr), clock);
  int64_t done = 0;
  for (int round = 0; round < repeats; ++round) {
    if (round > 0) Rest(rest_s);
    for (size_t i = 0; i < grid.size(); ++i) {
      progress.Update(++done);
      if (round >= kRepeatsMin && spent[i] > kBatchSecondsMax) continue;
      MR_ASSIGN_OR_RETURN(const ops::StepRig::Timing timing, rig.Run(grid[i]));
      timings[i].push_back(timing);
      spent[i] += timing.step_s;
      past.emplace_back(i, timing.step_s);
    }
  }
  progress.Finish();
  Measured measured;
  std::vector<double> undisturbed;
  for (size_t i = 0; i < grid.size(); ++i) {
    const ops::StepRig::Timing timing = ops::Summarise(std::move(timings[i]));
    measured.samples.push_back({grid[i].Shape(), timing.step_s, timing.layers_s});
    undisturbed.push_back(timing.undisturbed);
  }
  measured.undisturbed = Median(std::move(undisturbed));
  std::vector<cost::PaceStretch> stretches;
  for (const auto& [batch, took_s] : past) {
    const cost::ProfileSample& sample = measured.samples[batch];
    stretches.push_back({sample.batch.tokens(), sample.step_s, took_s});
  }
  MR_ASSIGN_OR_RETURN(measured.pace, cost::Pace::Create(std::move(stretches)));
  return measured;
}

// Nothing, and a warning that says why, if it could not be measured.
std::optional<double> HandOverOf(const std::shared_ptr<stage::Stage>& stage, const ModelSpec& spec,
                                 int tokens_max, int repeats, const Clock& clock) {
  const auto rate = ops::MeasureHandOver(stage, spec, tokens_max, repeats, clock);
  if (rate.ok()) return *rate;
  MR_LOG(warn, "the hand-over of KV was not measured: {}", rate.status().message());
  return std::nullopt;
}

// None if the folder has no tokenizer: its steps can still be profiled.
std::optional<cost::FrontEnd> FrontEndOf(const Loaded& loaded, const ModelSpec& spec,
                                         std::unique_ptr<stage::ModelStage> stage,
                                         const Clock& clock) {
  FrontEndOptions options{.model = loaded.folder};
  options.spec = spec;
  options.max_model_len = loaded.limits.max_context;
  options.max_batched_tokens = loaded.limits.max_tokens;
  auto measured = MeasureFrontEnd(options, std::move(stage), clock);
  if (measured.ok()) return *measured;
  MR_LOG(warn, "the overhead of serving was not measured: {}", measured.status().message());
  return std::nullopt;
}

// Nothing, and a warning that says why, if there is no loopback or it was too disturbed to fit.
std::optional<cost::LinkFit> FitOfLoopback(int repeats, const Clock& clock) {
  const auto samples = ops::MeasureLoopback(std::max(repeats, 9), clock);
  if (!samples.ok()) {
    MR_LOG(warn, "{}", samples.status().message());
    return {};
  }
  const auto fit = cost::FitLink(*samples);
  if (!fit.ok()) {
    MR_LOG(warn, "the profile has no loopback: {}", fit.status().message());
    return {};
  }
  return *fit;
}

void PrintSummary(const cost::Profile& profile, double undisturbed, const std::string& output) {
  const cost::StepCoefficients& c = profile.step.model.coefficients();
  const double share = profile.layers.model.coefficients().fixed_s;
  fmt::print("Model       {} ({}, {} layers, {})\n", Printable(profile.model),
             Printable(profile.architecture), profile.num_layers, profile.dtype);
  fmt::print("Device      {}, {} threads\n", profile.device, profile.threads);
  fmt::print("Batches     {}\n", profile.samples.size());
  fmt::print(
      "Step        {:.3f} ms fixed ({:.3f} ms in the layers), {:.4f} to {:.4f} ms per "
      "token, {:.4f} ms per sequence\n",
      c.fixed_s * 1e3, share * 1e3, *std::min_element(c.token_s.begin(), c.token_s.end()) * 1e3,
      *std::max_element(c.token_s.begin(), c.token_s.end()) * 1e3, c.sequence_s[0] * 1e3);
  fmt::print("Attention   {:.3g} ms per 1000 cached tokens, {:.3g} ms for a prompt of 1000\n",
             c.decode_context_s * 1e6, c.prefill_squared_s * 1e9);
  fmt::print("Fit         {} (layers alone: {})\n", cost::FormatErrors(profile.step.errors),
             cost::FormatErrors(profile.layers.errors));
  if (profile.front_end) {
    const cost::FrontEnd& f = *profile.front_end;
    fmt::print(
        "Serving     adds {:.2f} ms to a first token, {:.3f} ms per step and {:.3f} for each of "
        "its sequences, {:.2f} ms to the current step when a request arrives\n",
        f.request_s * 1e3, f.step_s * 1e3, f.sequence_s * 1e3, f.arrival_s * 1e3);
  }
  if (profile.pace) {
    fmt::print(
        "Pace        steps of up to {} tokens took {:.1f} % longer in total than typical ones, "
        "larger ones {:.1f} %\n",
        cost::Pace::kFewTokens, (profile.pace->slowdown_few() - 1) * 100,
        (profile.pace->slowdown_many() - 1) * 100);
  }
  fmt::print("Saturation  {} prompt tokens in a step (L_m)\n", profile.saturation_tokens);
  fmt::print("Memory      {}/s copied by one thread\n",
             FormatBytes(static_cast<int64_t>(profile.memory_copy_bytes_per_s)));
  if (profile.loopback) {
    fmt::print("Loopback    {:.1f} us + bytes / {}/s\n", profile.loopback->link.latency_s * 1e6,
               FormatBytes(static_cast<int64_t>(profile.loopback->link.bytes_per_s)));
  }
  if (profile.hand_over_bytes_per_s) {
    fmt::print("Hand-over   {}/s of KV from worker to worker on this machine\n",
               FormatBytes(static_cast<int64_t>(*profile.hand_over_bytes_per_s)));
  }
  if (undisturbed < kUndisturbedMin) {
    fmt::print(
        "Other programs took {:.0f} % of the measuring thread's time: stop them and measure "
        "again\n",
        (1 - undisturbed) * 100);
  } else if (profile.step.errors.p95 > kErrorSuspicious) {
    fmt::print(
        "One batch in twenty is off by more than {:.0f} %: measure again with more "
        "--repeats\n",
        kErrorSuspicious * 100);
  }
  fmt::print("Written to  {}\n", Printable(output));
}

// Checked before minutes of measuring instead of after them.
Status CheckOutput(const std::string& output) {
  const std::string folder = std::filesystem::path(output).parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder)) return OkStatus();
  return NotFound(
      fmt::format("--output {}: folder {} does not exist", Printable(output), Printable(folder)));
}

Status RunProfile(const ProfileFlags& flags) {
  MR_RETURN_IF_ERROR(CheckOutput(flags.output));
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(Loaded loaded, LoadRig(flags, clock));
  const ModelSpec spec = loaded.rig->runner().model().spec();
  cost::Profile measured;
  measured.model = loaded.model;
  measured.architecture = spec.architecture;
  measured.dtype = DTypeName(spec.dtype);
  measured.num_layers = spec.num_layers;
  measured.device = loaded.device;
  measured.numeric_class = loaded.rig->runner().device().NumericClass();
  measured.threads = loaded.threads;
  MR_ASSIGN_OR_RETURN(Measured steps,
                      MeasureSteps(*loaded.rig, loaded.limits, flags.repeats, flags.rest_s, clock));
  measured.samples = std::move(steps.samples);
  measured.pace = std::move(steps.pace);
  measured.memory_copy_bytes_per_s = ops::MeasureMemoryCopy(flags.repeats, clock);
  measured.loopback = FitOfLoopback(flags.repeats, clock);
  std::unique_ptr<stage::ModelStage> stage = loaded.rig->TakeStage();
  const std::shared_ptr<stage::Stage> lent(stage.get(), [](stage::Stage*) {});
  measured.hand_over_bytes_per_s =
      HandOverOf(lent, spec, loaded.limits.max_context, flags.repeats, clock);
  measured.front_end = FrontEndOf(loaded, spec, std::move(stage), clock);
  MR_ASSIGN_OR_RETURN(const cost::Profile profile,
                      cost::FitProfile(std::move(measured), ops::ProfileKnots()));
  MR_RETURN_IF_ERROR(WriteFileAtomically(flags.output, cost::FormatProfile(profile)));
  PrintSummary(profile, steps.undisturbed, flags.output);
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakeProfileCommand() {
  auto command = std::make_unique<Command>();
  command->name = "profile";
  command->summary = "Measure this machine's step times for a model";
  command->description =
      "Runs steps of the model as the server would, sampling included: prompts by tokens, decodes "
      "by batch and context, both together. Fits a cost model with coefficients that are never "
      "negative, prints its relative error, and writes a file from which the cost model predicts "
      "any step. No other program should run meanwhile.";
  command->log_level = "warning";
  command->examples = {
      {"millrace profile models/demo", "writes profile.json"},
      {"millrace profile models/demo --max-tokens 2048 --repeats 9 --output demo-here.json",
       "larger steps, measured more often"}};
  auto flags = std::make_shared<ProfileFlags>();
  Option model = TextOption("model", "MODEL", &flags->model);
  model.positional = model.required = model.command_line_only = true;
  model.kind = ValueKind::kFolder;
  command->Add("Model", std::move(model), kModelHelp);
  AddHubOptions(*command, "Model", &flags->hub);
  command->Add("Model", IntOption("threads", "N", &flags->threads, 1, 1024),
               "Compute threads [default: one per CPU]");
  AddComputeOptions(*command, "Model");
  Option output = TextOption("output", "FILE", &flags->output);
  output.kind = ValueKind::kFile;
  command->Add("Output", std::move(output), "File to write the profile to");
  constexpr char kGroup[] = "Measurement";
  command->Add(kGroup, IntOption("max-tokens", "TOKENS", &flags->limits.max_tokens, 64, 65536),
               "Tokens of the largest step");
  command->Add(kGroup, IntOption("max-num-seqs", "N", &flags->limits.max_sequences, 4, 256),
               "Sequences of the largest step");
  command->Add(kGroup, IntOption("max-context", "TOKENS", &flags->limits.max_context, 128, 1 << 20),
               "Longest context of a sequence");
  command->Add(kGroup, IntOption("repeats", "N", &flags->repeats, 1, 1000),
               "Number of runs of every batch; the median counts");
  command->Add(kGroup, RealOption("temperature", "T", &flags->temperature, 0, 100),
               "Sampling temperature; 0 is greedy, which takes less time");
  command->Add(
      kGroup, RealOption("rest", "SECONDS", &flags->rest_s, 0, kRestMaxS),
      "Pause between the rounds over all batches, so that they cover a longer time on a machine "
      "whose speed changes");
  AddGeneralOptions(*command);
  command->run = [flags] { return RunProfile(*flags); };
  return command;
}

}  // namespace millrace::apps
