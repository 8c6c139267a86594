// millrace token: the secret that lets a worker join.
#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/private_folder.h"
#include "base/file.h"

namespace millrace::apps {
namespace {

constexpr unsigned kTokenMode = 0600;

struct TokenFlags {
  std::string out;
  bool force = false;
};

Status RunToken(const TokenFlags& flags) {
  MR_ASSIGN_OR_RETURN(const std::string token, NewClusterToken());
  if (flags.out.empty()) {
    fmt::print("{}\n", token);
    return OkStatus();
  }
  const auto existing = flags.force ? ExistingFile::kReplace : ExistingFile::kKeep;
  const Status written = WriteFileWithMode(flags.out, token + "\n", kTokenMode, existing);
  if (written.ok() || !std::filesystem::exists(flags.out)) return written;
  return FailedPrecondition(written.message() + "; --force replaces an existing token");
}

}  // namespace

std::unique_ptr<Command> MakeTokenCommand() {
  auto command = std::make_unique<Command>();
  command->name = "token";
  command->summary = "Make the secret that lets workers join a cluster";
  command->description =
      "Draws 32 random bytes and writes them as 64 hexadecimal digits. Anyone who has the token "
      "and can reach the controller can join: treat it like a password. The controller and every "
      "worker read it from a file (--token), never from the command line.";
  command->examples = {
      {"millrace token --out cluster.token", "a new token, in a file that only you can read"},
      {"scp cluster.token gpu-2:", "workers on other machines need the same file"}};
  auto flags = std::make_shared<TokenFlags>();
  Option out = TextOption("out", "FILE", &flags->out);
  out.kind = ValueKind::kFile;
  command->Add("Token", std::move(out), "Write it here, with mode 0600 [default: to stdout]");
  command->Add("Token", FlagOption("force", &flags->force), "Replace the file if it exists");
  AddGeneralOptions(*command);
  command->validate = [flags] {
    if (!flags->force || !flags->out.empty()) return OkStatus();
    return InvalidArgument("--force replaces a file: give --out FILE as well");
  };
  command->run = [flags] { return RunToken(*flags); };
  return command;
}

}  // namespace millrace::apps
