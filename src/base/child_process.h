// ChildProcess: a process that this one started, with a descriptor to poll for its end, and its
// output as lines. It leads a process group of its own. It is killed when the thread that spawned
// it ends, for any reason.
//
// Owned and used by one thread, which must outlive the child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace millrace {

inline constexpr size_t kChildLineBytesMax = 16 << 10;  // longer ones are cut into several
inline constexpr size_t kChildReadBytesMax = 1 << 20;   // more than a pipe holds

enum class ChildOutput : uint8_t {
  kAll,     // stdout and stderr come as lines
  kStdout,  // stderr stays this process's
};

class ChildProcess {
 public:
  // argv[0] is the program's path. The child gets this process's environment, except options that
  // are meant for this process (MILLRACE_...), and `environment` ("NAME=value").
  // `input`: what it reads from stdin. kFailedPrecondition when it cannot be executed.
  static Result<ChildProcess> Spawn(const std::vector<std::string>& argv,
                                    const std::vector<std::string>& environment,
                                    ChildOutput lines = ChildOutput::kAll,
                                    std::string_view input = {});
  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills its group if it still runs, and reaps it

  pid_t pid() const { return pid_; }
  int end_fd() const { return end_.get(); }        // readable once it has ended
  int output_fd() const { return output_.get(); }  // readable when there is output; -1: closed

  void Signal(int number) const;
  // Reads the available output without waiting, kChildReadBytesMax at most, and calls `on_line`
  // with each whole line.
  void ReadLines(const std::function<void(std::string_view line)>& on_line);
  // REQUIRES: end_fd() is readable. Passes the remaining output to `on_line`, then returns the exit
  // code: 0 to 255, or 128 plus the signal's number.
  int Reap(const std::function<void(std::string_view line)>& on_line);

 private:
  ChildProcess(pid_t pid, UniqueFd end, UniqueFd output)
      : pid_(pid), end_(std::move(end)), output_(std::move(output)) {}

  pid_t pid_ = 0;
  UniqueFd end_;
  UniqueFd output_;
  std::string rest_;  // the start of a line whose end has not been read yet
  bool reaped_ = false;
};

}  // namespace millrace
