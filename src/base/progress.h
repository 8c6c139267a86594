// Progress: shows the progress of a long operation: a bar that repaints one line on a terminal,
// elsewhere (and with NO_COLOR or TERM=dumb) a plain line after two seconds and then one every
// five, also while nothing calls Update. Commands write it to stderr, so that stdout holds only
// data.
//
// Update may be called from any thread and often: it paints at most ten times a second.
// ProgressText does the same with a text.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace {

enum class ProgressUnit { kBytes, kRequests };

struct ProgressStyle {
  bool bar = false;        // else plain lines
  bool beats = false;      // plain lines come from a thread; else from Update
  bool only_long = false;  // nothing is shown before two seconds have passed, at the end neither
  static ProgressStyle ForStream(FILE* stream);
};

// Calls `paint` on a thread of its own, whenever a plain line is due.
class ProgressBeat {
 public:
  ProgressBeat(bool beats, std::function<void()> paint);  // false: never
  ~ProgressBeat() { Stop(); }
  // `paint` is not called any more.
  void Stop();

 private:
  void Run();

  const std::function<void()> paint_;
  Mutex mutex_;
  CondVar changed_;
  bool stops_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
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
  ProgressBeat beat_;  // last
};

// A text that says how far a search has come. On a terminal it is erased at the end.
class ProgressText {
 public:
  // `line`: the line that shows a text now; empty: the text. Any thread calls it.
  ProgressText(FILE* out, ProgressStyle style,
               std::function<std::string(const std::string& text)> line = {});
  ~ProgressText();

  void Show(std::string text);  // any thread

 private:
  void PrintLine();

  std::string Line() const MR_REQUIRES(mutex_) { return line_ ? line_(text_) : text_; }

  FILE* const out_;
  const ProgressStyle style_;
  const std::function<std::string(const std::string& text)> line_;
  Mutex mutex_;
  std::string text_ MR_GUARDED_BY(mutex_);
  ProgressBeat beat_;  // last
};

}  // namespace millrace
