// ProcessLog: the lines of a drill's processes, in a file, with the last ones in memory for errors.
// Any thread may call it.
#pragma once

#include <cstddef>
#include <deque>
#include <fstream>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace::apps {

class ProcessLog {
 public:
  static constexpr size_t kTailLines = 12;

  // Writes to `path`; a file that cannot be written is left out. The clock must outlive it.
  ProcessLog(const std::string& path, const Clock& clock);
  void Add(std::string_view process, std::string_view line);
  // The last lines, each with its end; empty: none.
  std::string Tail() const;

 private:
  const Clock& clock_;
  const Time began_;
  mutable Mutex mutex_;
  std::ofstream file_ MR_GUARDED_BY(mutex_);
  std::deque<std::string> tail_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::apps
