// The commands of the program. Each Make... builds the description of one command and binds its
// options to flags that the command owns; nothing runs until main() calls Command::run.
#pragma once

#include <memory>

#include "apps/cli/command.h"

namespace millrace::apps {

// The whole tree, rooted at "millrace".
std::unique_ptr<Command> MakeRootCommand();

std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeBenchCommand();  // with its children
std::unique_ptr<Command> MakeBenchServeCommand();
std::unique_ptr<Command> MakeMakeModelCommand();
std::unique_ptr<Command> MakeProfileCommand();
std::unique_ptr<Command> MakePlanCommand();  // with its children
std::unique_ptr<Command> MakePlanCheckCommand();
std::unique_ptr<Command> MakePlanExplainCommand();
std::unique_ptr<Command> MakeSimulateCommand();
std::unique_ptr<Command> MakePlanApplyCommand();
std::unique_ptr<Command> MakePlanDiffCommand();
std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeWhyCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeDecisionsCommand();
std::unique_ptr<Command> MakeFleetCommand();
std::unique_ptr<Command> MakeClusterCommand();  // with its children
std::unique_ptr<Command> MakeDrainCommand();
std::unique_ptr<Command> MakeMigrateCommand();
std::unique_ptr<Command> MakeUpCommand();
std::unique_ptr<Command> MakeDrillCommand();
std::unique_ptr<Command> MakeWorkerCommand();
std::unique_ptr<Command> MakeTokenCommand();
std::unique_ptr<Command> MakeCertsCommand();
std::unique_ptr<Command> MakeVersionCommand();
// These two print what they derive from `root`, which must outlive them.
std::unique_ptr<Command> MakeCompletionCommand(const Command& root);
std::unique_ptr<Command> MakeManCommand(const Command& root);

}  // namespace millrace::apps
