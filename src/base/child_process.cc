#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace millrace {
namespace {

constexpr int kSignalledBase = 128;  // as shells count
constexpr int kExecFailed = 127;
constexpr std::string_view kOptionPrefix = "MILLRACE_";
constexpr unsigned kFirstInheritable = 3;

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return FailedPrecondition(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// What a child reads from stdin: a file in memory, so that nobody need write while it runs.
Result<UniqueFd> MakeInput(std::string_view input) {
  UniqueFd file(memfd_create("input", MFD_CLOEXEC));
  if (file.valid() && write(file.get(), input.data(), input.size()) == std::ssize(input) &&
      lseek(file.get(), 0, SEEK_SET) == 0) {
    return file;
  }
  return FailedPrecondition(fmt::format("cannot hand over the input: {}", std::strerror(errno)));
}

// Between fork and exec: nothing here may allocate or lock.
[[noreturn]] void RunChild(char* const* argv, char* const* environment, int input, int output,
                           ChildOutput lines, int failure, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExecFailed);  // the parent died before the line above
  setpgid(0, 0);                                // the terminal's Ctrl-C is for the supervisor
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) signal(number, SIG_DFL);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  if (lines == ChildOutput::kAll) dup2(output, STDERR_FILENO);
  close_range(kFirstInheritable, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(argv[0], argv, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof error);
  _exit(kExecFailed);
}

}  // namespace

Result<ChildProcess> ChildProcess::Spawn(const std::vector<std::string>& argv,
                                         const std::vector<std::string>& environment,
                                         ChildOutput lines, std::string_view input) {
  MR_CHECK(!argv.empty());
  MR_ASSIGN_OR_RETURN(const UniqueFd stdin_file, MakeInput(input));
  MR_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  MR_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  std::vector<std::string> all = environment;  // first: getenv finds the first of a name
  for (char** at = environ; *at != nullptr; ++at) {
    if (!std::string_view(*at).starts_with(kOptionPrefix)) all.emplace_back(*at);
  }
  const std::vector<char*> arguments = Pointers(argv), variables = Pointers(all);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return FailedPrecondition(fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid == 0) {
    RunChild(arguments.data(), variables.data(), stdin_file.get(), output.write.get(), lines,
             failure.write.get(), parent);
  }
  UniqueFd end(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  failure.write = UniqueFd();
  output.write = UniqueFd();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error || !end.valid()) {
    if (got != sizeof error) error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return FailedPrecondition(fmt::format("{}: {}", argv[0], std::strerror(error)));
  }
  fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  return ChildProcess(pid, std::move(end), std::move(output.read));
}

ChildProcess::~ChildProcess() {
  if (!end_.valid() || reaped_) return;  // moved from, or done
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int number) const {
  if (!reaped_) kill(pid_, number);
}

void ChildProcess::ReadLines(const std::function<void(std::string_view line)>& on_line) {
  std::array<char, 4096> buffer;
  for (size_t read_bytes = 0; output_.valid() && read_bytes < kChildReadBytesMax;) {
    const ssize_t got = read(output_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      output_ = UniqueFd();
      break;
    }
    read_bytes += static_cast<size_t>(got);
    for (char c : std::string_view(buffer.data(), static_cast<size_t>(got))) {
      if (c != '\n') rest_ += c;
      if (c != '\n' && rest_.size() < kChildLineBytesMax) continue;
      on_line(rest_);
      rest_.clear();
    }
  }
  if (!output_.valid() && !rest_.empty()) on_line(std::exchange(rest_, {}));
}

int ChildProcess::Reap(const std::function<void(std::string_view line)>& on_line) {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  ReadLines(on_line);
  output_ = UniqueFd();  // its own children may hold the other end open
  if (!rest_.empty()) on_line(std::exchange(rest_, {}));
  return WIFSIGNALED(status) ? kSignalledBase + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace millrace
