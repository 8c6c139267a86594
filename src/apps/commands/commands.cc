#include "apps/commands/commands.h"

#include <fmt/format.h>

#include "apps/cli/completion.h"
#include "apps/cli/man.h"
#include "apps/cli/parse.h"
#include "apps/common/grammar_trial.h"
#include "base/version.h"

namespace millrace::apps {

std::unique_ptr<Command> MakeVersionCommand() {
  auto command = std::make_unique<Command>();
  command->name = "version";
  command->summary = "Print the version";
  command->examples = {{"millrace version", "which release this is"}};
  AddGeneralOptions(*command);
  command->run = [] {
    fmt::print("millrace {}\n", Version());
    return OkStatus();
  };
  return command;
}

std::unique_ptr<Command> MakeCompletionCommand(const Command& root) {
  auto command = std::make_unique<Command>();
  command->name = "completion";
  command->summary = "Print a completion script for a shell";
  command->description =
      "Prints a script that lets bash, zsh or fish complete commands, options and their values.";
  command->examples = {
      {"source <(millrace completion bash)",
       "completion in this shell; put the line in ~/.bashrc to keep it"},
      {"millrace completion zsh > \"${fpath[1]}/_millrace\"", "completion in every new zsh"},
      {"millrace completion fish > ~/.config/fish/completions/millrace.fish",
       "completion in every new fish"}};
  auto shell = std::make_shared<std::string>();
  Option option = TextOption("shell", "SHELL", shell.get());
  option.choices = {"bash", "zsh", "fish"};
  option.positional = option.required = true;
  option.command_line_only = true;
  option.set = [shell, choices = option.choices](const std::vector<std::string>& values) {
    MR_RETURN_IF_ERROR(CheckChoice(values.back(), choices));
    *shell = values.back();
    return OkStatus();
  };
  command->Add("Arguments", std::move(option), "The shell: bash, zsh or fish");
  AddGeneralOptions(*command);
  command->run = [shell, &root] {
    fmt::print("{}", *shell == "bash"  ? BashCompletion(root)
                     : *shell == "zsh" ? ZshCompletion(root)
                                       : FishCompletion(root));
    return OkStatus();
  };
  return command;
}

std::unique_ptr<Command> MakeManCommand(const Command& root) {
  auto command = std::make_unique<Command>();
  command->name = "man";
  command->summary = "Print the man page in roff";
  command->hidden = true;
  AddGeneralOptions(*command);
  command->run = [&root] {
    fmt::print("{}", FormatManPage(root, Version()));
    return OkStatus();
  };
  return command;
}

// What a server runs before it compiles a grammar itself; not for users.
std::unique_ptr<Command> MakeGrammarTrialCommand() {
  auto command = std::make_unique<Command>();
  command->name = "grammar-trial";
  command->summary = "Compile a grammar from stdin within limits";
  command->hidden = true;
  command->run = RunGrammarTrial;
  return command;
}

std::unique_ptr<Command> MakeRootCommand() {
  auto root = std::make_unique<Command>();
  root->name = "millrace";
  root->summary = "serve large language models from whatever machines you have";
  root->description =
      "Millrace serves large language models over an OpenAI-compatible HTTP API, with "
      "iteration-level scheduling and a paged KV cache.";
  root->examples = {
      {"millrace serve models/demo", "the demo model on http://127.0.0.1:8000"},
      {"millrace chat models/demo", "talk to it in the terminal"},
      {"millrace bench serve --num-prompts 100 --request-rate 4", "measure a running server"}};
  root->children.push_back(MakeServeCommand());
  root->children.push_back(MakeUpCommand());
  root->children.push_back(MakeWorkerCommand());
  root->children.push_back(MakeDrillCommand());
  root->children.push_back(MakeChatCommand());
  root->children.push_back(MakeGenerateCommand());
  root->children.push_back(MakeBenchCommand());
  root->children.push_back(MakePlanCommand());
  root->children.push_back(MakeSimulateCommand());
  root->children.push_back(MakeMakeModelCommand());
  root->children.push_back(MakeProfileCommand());
  root->children.push_back(MakeStatusCommand());
  root->children.push_back(MakeWhyCommand());
  root->children.push_back(MakeVerifyCommand());
  root->children.push_back(MakeDecisionsCommand());
  root->children.push_back(MakeFleetCommand());
  root->children.push_back(MakeClusterCommand());
  root->children.push_back(MakeDrainCommand());
  root->children.push_back(MakeMigrateCommand());
  root->children.push_back(MakeTokenCommand());
  root->children.push_back(MakeGrammarTrialCommand());
  root->children.push_back(MakeCertsCommand());
  root->children.push_back(MakeVersionCommand());
  root->children.push_back(MakeCompletionCommand(*root));
  root->children.push_back(MakeManCommand(*root));
  root->removed = {{"sim-fault",
                    "it is a program of the tests: scripts/build release sim-fault && "
                    "build/release/tests/fault/sim-fault"}};
  return root;
}

}  // namespace millrace::apps
