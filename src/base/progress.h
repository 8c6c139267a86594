// Progress: shows the progress of a long operation: a bar that repaints one line on a terminal, a
// plain line every few seconds elsewhere (and with NO_COLOR or TERM=dumb). Commands write it to
// stderr, so that stdout holds only data.
//
// Update may be called from any thread and often: it paints at most ten times a second.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace {

enum class ProgressUnit { kBytes, kRequests };

struct ProgressStyle {
  bool bar = false;  // else plain lines
  static ProgressStyle ForStream(FILE* stream);
};

// The text that is painted after `elapsed_s`, without terminal codes.
std::string ProgressLine(const std::string& title, ProgressUnit unit, int64_t done, int64_t total,
                         double elapsed_s, bool bar);

class Progress {
 public:
  // `out` and `clock` must outlive it.
  Progress(std::string title, ProgressUnit unit, int64_t total, FILE* out, ProgressStyle style,
           const Clock& clock);
  ~Progress();  // Finish()

  void Update(int64_t done);
  void UpdateTotal(int64_t done, int64_t total);
  // Appended to the line: "3 failed".
  void SetNote(std::string note);
  // Paints the last line. Further calls do nothing.
  void Finish();

 private:
  void Paint(Time now, bool last) MR_REQUIRES(mutex_);

  const std::string title_;
  const ProgressUnit unit_;
  FILE* const out_;
  const ProgressStyle style_;
  const Clock& clock_;
  const Time start_;

  Mutex mutex_;
  int64_t done_ MR_GUARDED_BY(mutex_) = 0;
  int64_t total_ MR_GUARDED_BY(mutex_) = 0;
  std::string note_ MR_GUARDED_BY(mutex_);
  Time painted_ MR_GUARDED_BY(mutex_);
  bool finished_ MR_GUARDED_BY(mutex_) = false;
};

}  // namespace millrace
