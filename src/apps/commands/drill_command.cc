// millrace drill: a rehearsal of lost machines on this one.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/hub_flags.h"
#include "apps/common/signals.h"
#include "apps/drill/drill.h"
#include "ops/hub/fetch_model.h"

namespace millrace::apps {
namespace {

constexpr int kDrillPortMax = 65535;
constexpr char kDemoModel[] = "models/demo";

struct DrillFlags {
  DrillOptions options{.model = kDemoModel};
  ops::HubFlags hub;
  std::optional<int> port;
  std::set<DrillStepKind> only;  // empty: all
  bool json = false;
};

Option OnlyOption(DrillFlags* flags) {
  Option only;
  only.name = "only";
  only.value_name = "STEP";
  only.arity = Arity::kMany;
  for (const auto& step : AllDrillSteps()) only.choices.emplace_back(step.name);
  only.set = [flags, choices = only.choices](const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      MR_RETURN_IF_ERROR(CheckChoice(value, choices));
      flags->only.insert(std::ranges::find(AllDrillSteps(), value, &DrillStepName::name)->kind);
    }
    return OkStatus();
  };
  only.default_text = "all of them";
  return only;
}

Status RunDrillCommand(const DrillFlags& flags) {
  StopSignals signals;                             // before any other thread
  signals.OnSignal([](int) { std::_Exit(130); });  // a download continues where it ended
  DrillOptions options = flags.options;
  // The hub may have a model of that name, which nobody asked for.
  if (options.model == kDemoModel && !std::filesystem::is_directory(kDemoModel)) {
    return NotFound(fmt::format(
        "there is no folder {} here; run the drill in the folder of Millrace's source, or name a "
        "model: millrace drill FOLDER",
        kDemoModel));
  }
  MR_ASSIGN_OR_RETURN(const model::ModelPath path, ops::FetchModel(options.model, flags.hub));
  options.model = path.folder;
  std::atomic<bool> interrupted = false;
  signals.OnSignal([&interrupted](int) { interrupted = true; });
  RaiseFileLimit();
  if (flags.port) options.port = static_cast<uint16_t>(*flags.port);
  for (const auto& step : AllDrillSteps()) {
    if (flags.only.empty() || flags.only.contains(step.kind)) options.steps.push_back(step.kind);
  }
  FILE* const told = flags.json ? stderr : stdout;
  const auto report = RunDrill(options, interrupted, [told](double at_s, const std::string& text) {
    fmt::print(told, "{:6.1f} s  {}\n", at_s, text);
    std::fflush(told);
  });
  if (!report.ok()) return report.status();
  if (flags.json) {
    fmt::print("{}\n", ReportJson(*report).dump(2));
  } else {
    fmt::print("\n{}", ReportText(*report));
  }
  return report->passed() ? OkStatus() : Internal(report->Failure());
}

}  // namespace

std::unique_ptr<Command> MakeDrillCommand() {
  auto command = std::make_unique<Command>();
  command->name = "drill";
  command->summary = "Rehearse the loss of machines on this one, and compare every answer";
  command->description =
      "Starts a controller and workers on this machine and streams answers from them, greedy ones "
      "and seeded ones. Meanwhile a worker gets notice and leaves, a notice is withdrawn, a worker "
      "is killed, and the controller is killed; whoever is gone is replaced. Every answer is then "
      "compared with that of one process that nothing disturbed. It takes less than a minute, "
      "touches "
      "no other cluster and leaves nothing behind. The exit code is 0 only if every answer is the "
      "same, to the byte.";
  command->examples = {
      {"millrace drill", "the demo model, three workers, all steps"},
      {"millrace drill org/name --workers 4 --streams 16", "another model, and more of everything"},
      {"millrace drill --only notice kill --json > drill.json", "two steps, the result as JSON"}};
  auto flags = std::make_shared<DrillFlags>();
  Option model = TextOption("model", "MODEL", &flags->options.model);
  model.positional = true;
  model.kind = ValueKind::kFolder;
  constexpr char kWhat[] = "Drill", kOutput[] = "Output";
  command->Add(kWhat, std::move(model), kModelHelp);
  AddHubOptions(*command, kWhat, &flags->hub);
  command->Add(kWhat,
               IntOption("workers", "N", &flags->options.workers, DrillOptions::kWorkersMin,
                         DrillOptions::kWorkersMax),
               "Worker processes. One of them is spare: with three, two hold half the layers each");
  command->Add(kWhat,
               IntOption("streams", "N", &flags->options.streams, 1, DrillOptions::kStreamsMax),
               "Streams at the same time, every second one greedy, the others seeded");
  command->Add(kWhat,
               IntOption("tokens", "N", &flags->options.tokens, DrillOptions::kTokensMin,
                         DrillOptions::kTokensMax),
               "Tokens of each answer");
  command->Add(kWhat, OnlyOption(flags.get()),
               "Only these steps. notice: a worker leaves in time; withdrawn: a notice is taken "
               "back; kill: a worker dies; controller: the controller dies");
  command->Add(kWhat, IntOption("port", "PORT", &flags->port, 1, kDrillPortMax),
               "Port of the drill's HTTP API on the loopback interface [default: a free one]");
  command->Add(kOutput, FlagOption("json", &flags->json),
               "Print the result as JSON, and what happens on stderr");
  command->Add(kOutput, FlagOption("keep", &flags->options.keep),
               "Keep the folder with the log of all processes");
  command->log_level = "warning";
  AddGeneralOptions(*command);
  command->run = [flags] { return RunDrillCommand(*flags); };
  return command;
}

}  // namespace millrace::apps
