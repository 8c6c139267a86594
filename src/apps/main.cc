#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/cli/help.h"
#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/signals.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;

std::optional<std::string> GetEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// A message of a library may hold line breaks; what a user sees is one line.
void PrintError(const std::string& message, LogFormat format = LogFormat::kText) {
  const std::string line = Printable(message, 4096);
  fmt::print(stderr, "{}\n",
             format == LogFormat::kText
                 ? line
                 : JsonLogLine(std::chrono::system_clock::now(), "error", line));
}

int Run(const Invocation& invocation) {
  const Command& command = *invocation.command;
  Status status = InitLog(command.log_level, command.log_format);
  if (status.ok()) status = command.run();
  if (status.ok() && std::fflush(stdout) != 0) {
    status = Unavailable("cannot write to standard output");
  }
  if (status.ok()) return 0;
  PrintError(invocation.path + ": " + status.message(), command.log_format);
  return status.code() == StatusCode::kCancelled ? kExitInterrupted : kExitFailure;
}

int Main(std::vector<std::string> args) {
  std::signal(SIGPIPE, SIG_IGN);
  ExplainLostModelFiles();
  if (!args.empty() && (args[0] == "--version" || args[0] == "-V")) args[0] = "version";
  const auto root = MakeRootCommand();
  const auto invocation = ParseCommandLine(*root, args, GetEnvironment);
  if (!invocation.ok()) {
    PrintError(invocation.status().message());
    return kExitUsage;
  }
  if (invocation->help) {
    fmt::print("{}", FormatHelp(*invocation->command, invocation->path));
    return 0;
  }
  return Run(*invocation);
}

}  // namespace
}  // namespace millrace::apps

int main(int argc, char** argv) {
  try {
    return millrace::apps::Main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::bad_alloc&) {
    std::fputs("millrace: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "millrace: %s\n", millrace::Printable(error.what(), 4096).c_str());
  }
  return 1;
}
