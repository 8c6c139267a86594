#include "apps/common/grammar_trial.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/child_process.h"
#include "core/sampling_params.h"
#include "text/grammars.h"
#include "text/token_table.h"

namespace millrace::apps {
namespace {

constexpr char kCommand[] = "grammar-trial";
constexpr int kPollMs = 100;
constexpr std::string_view kFault = "internal: ";  // before an error that is the program's

Status TooMuch() {
  return InvalidArgument(
      fmt::format("it is too complex: it takes more than {} s, {} MiB or the stack to compile",
                  kGrammarCpuSeconds, kGrammarMemoryBytes >> 20));
}

void Limit(__rlimit_resource resource, rlim_t most) {
  const rlimit limit = {most, most};
  setrlimit(resource, &limit);
}

// On a thread with a small stack.
void* Compile(void* grammar) {
  const auto& text = *static_cast<const std::string*>(grammar);
  const Status status = text::Grammars::Of(text::ByteTable())->Check(text);
  const std::string_view fault = status.code() == StatusCode::kInternal ? kFault : "";
  fmt::print("{}{}\n", fault, status.ok() ? "ok" : status.message());
  std::fflush(stdout);
  return nullptr;
}

}  // namespace

Status TryGrammar(const std::string& grammar) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Internal("the program does not find itself: " + error.message());
  MR_ASSIGN_OR_RETURN(ChildProcess child,
                      ChildProcess::Spawn({program, kCommand}, {}, ChildOutput::kStdout, grammar));
  std::string answer;
  const auto on_line = [&answer](std::string_view line) {
    if (answer.empty()) answer = line;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kGrammarWallSeconds);
  for (pollfd wait{child.end_fd(), POLLIN, 0}; poll(&wait, 1, kPollMs) <= 0;) {
    child.ReadLines(on_line);
    if (std::chrono::steady_clock::now() > end) child.Signal(SIGKILL);
  }
  const int code = child.Reap(on_line);
  if (code != 0 || answer.empty()) return TooMuch();
  if (answer == "ok") return OkStatus();
  return answer.starts_with(kFault) ? Internal(answer.substr(kFault.size()))
                                    : InvalidArgument(answer);
}

Status RunGrammarTrial() {
  std::string grammar(kGrammarBytesMax + 1, '\0');
  grammar.resize(std::fread(grammar.data(), 1, grammar.size(), stdin));
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_CPU, kGrammarCpuSeconds);
#ifndef MILLRACE_SANITIZED  // sanitizers reserve more than that
  Limit(RLIMIT_AS, kGrammarMemoryBytes);
#endif
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kGrammarStackBytes);
  pthread_t thread = {};
  if (pthread_create(&thread, &attributes, Compile, &grammar) != 0) {
    return Internal("no thread to compile the grammar");
  }
  pthread_join(thread, nullptr);
  return OkStatus();
}

}  // namespace millrace::apps
