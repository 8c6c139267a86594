// millrace make-model: writes a model folder of any shape with random weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "model/make_model.h"
#include "model/shapes.h"

namespace millrace::apps {
namespace {

constexpr size_t kConfigFileBytesMax = 1 << 20;

struct MakeModelFlags {
  std::string folder, shape, config_file;
  model::ShapeNumbers numbers;
  DType dtype = DType::kBF16;
  int64_t seed = 0;
};

Result<Json> ConfigFor(const MakeModelFlags& flags) {
  if (flags.config_file.empty()) return model::ShapeConfig(flags.shape, flags.numbers);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.config_file, kConfigFileBytesMax));
  auto config = ParseJson(text);
  if (!config.ok()) return config.status().WithContext(Printable(flags.config_file));
  return config;
}

Status RunMakeModel(const MakeModelFlags& flags) {
  MR_ASSIGN_OR_RETURN(const Json config, ConfigFor(flags));
  const SteadyClock clock;
  Progress progress("Writing", ProgressUnit::kBytes, 0, stderr, ProgressStyle::ForStream(stderr),
                    clock);
  model::MakeModelOptions options;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.dtype = flags.dtype;
  options.progress = [&progress](int64_t done, int64_t total) {
    progress.UpdateTotal(done, total);
  };
  MR_RETURN_IF_ERROR(model::MakeModel(config, flags.folder, options));
  progress.Finish();
  fmt::print("{}\n", flags.folder);
  return OkStatus();
}

Status Validate(const MakeModelFlags& flags) {
  const model::ShapeNumbers& n = flags.numbers;
  const bool numbers = n.layers || n.hidden || n.heads || n.kv_heads || n.head_dim ||
                       n.intermediate || n.vocab || n.positions;
  if (flags.shape.empty() == flags.config_file.empty()) {
    return InvalidArgument(fmt::format("give --shape or --model-config; the shapes are {}",
                                       fmt::join(model::ShapeNames(), ", ")));
  }
  if (!flags.config_file.empty() && numbers) {
    return InvalidArgument(
        "--model-config has all the numbers; --layers and the like apply only to "
        "--shape");
  }
  return OkStatus();
}

void AddShapeOptions(Command& command, MakeModelFlags* flags) {
  constexpr char kGroup[] = "Shape";
  Option shape = CustomOption("shape", "NAME", "", [flags](const std::string& text) {
    MR_RETURN_IF_ERROR(CheckChoice(text, model::ShapeNames()));
    flags->shape = text;
    return OkStatus();
  });
  shape.choices = model::ShapeNames();
  command.Add(kGroup, std::move(shape),
              fmt::format("A published shape: {}", fmt::join(model::ShapeNames(), ", ")));
  Option config = TextOption("model-config", "FILE", &flags->config_file);
  config.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(config), "A config.json to follow instead of --shape");
  const auto number = [&](const char* name, std::optional<int>* target, const char* what) {
    command.Add(kGroup, IntOption(name, "N", target, 1, 1 << 24), what);
  };
  number("layers", &flags->numbers.layers, "Layers, instead of the shape's");
  number("hidden", &flags->numbers.hidden, "Hidden size, instead of the shape's");
  number("heads", &flags->numbers.heads, "Attention heads, instead of the shape's");
  number("kv-heads", &flags->numbers.kv_heads, "Key and value heads, instead of the shape's");
  number("head-dim", &flags->numbers.head_dim, "Size of a head, instead of the shape's");
  number("intermediate", &flags->numbers.intermediate, "Feed-forward size, instead of the shape's");
  number("vocab", &flags->numbers.vocab, "Vocabulary size, instead of the shape's");
  number("positions", &flags->numbers.positions, "Longest context, instead of the shape's");
}

}  // namespace

std::unique_ptr<Command> MakeMakeModelCommand() {
  auto command = std::make_unique<Command>();
  command->name = "make-model";
  command->summary = "Write a model of any shape with random weights";
  command->description =
      "Writes a complete model folder (weights, config.json, tokenizer) of a published shape or "
      "any other, with random weights. Its output is meaningless; its speed is that of the shape. "
      "The same seed gives the same bytes.";
  command->examples = {
      {"millrace make-model --shape llama-160m --seed 1 build/llama-160m", "for a benchmark"},
      {"millrace make-model --shape llama-1b --layers 2 build/two-layers",
       "a published shape with one number changed"}};
  auto flags = std::make_shared<MakeModelFlags>();
  Option folder = TextOption("folder", "DIR", &flags->folder);
  folder.positional = folder.required = folder.command_line_only = true;
  folder.kind = ValueKind::kFolder;
  command->Add("Output", std::move(folder), "The folder to write; it must be empty or not exist");
  command->Add("Output", IntOption("seed", "N", &flags->seed, 0, INT64_MAX), "Seed of the weights");
  command->Add(
      "Output",
      ChoiceOption<DType>(
          "dtype", &flags->dtype,
          {{"float32", DType::kF32}, {"bfloat16", DType::kBF16}, {"float16", DType::kF16}}),
      "Type of the weights");
  AddShapeOptions(*command, flags.get());
  AddGeneralOptions(*command);
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunMakeModel(*flags); };
  return command;
}

}  // namespace millrace::apps
