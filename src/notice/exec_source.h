// ExecSource: a command of the operator that says when this machine goes away, for whatever
// Millrace does not watch itself. It runs as long as it likes, or once and again: each line of its
// output is a JSON object, and the last one holds, also after the command has ended.
//
//   {"kind": "preempt", "in_s": 30}     kinds: preempt, terminate, maintenance; rebalance is soft
//   {"withdrawn": true}
//
// `in_s` counts from when the line is read; without it no deadline is known. Other fields are
// ignored. Empty lines are skipped.
//
// Owned by the watcher and used on its thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/child_process.h"
#include "notice/source.h"

namespace millrace::notice {

// nullopt: what was said before is withdrawn. kInvalidArgument: the line is none of the above.
inline constexpr Duration kExecDeadlineMost = Duration::Seconds(7 * 86400);
Result<std::optional<Notice>> ParseExecLine(std::string_view line, const Moment& now);

class ExecSource : public LocalSource {
 public:
  static constexpr Duration kPause = Duration::Seconds(5);       // between two runs
  static constexpr Duration kPauseMost = Duration::Seconds(60);  // after runs that failed
  static constexpr int kLinesMax = 1000;                         // that one look reads

  explicit ExecSource(std::string command) : command_(std::move(command)) {}

  void Look(const Moment& now) override;
  Duration period() const override { return Duration::Millis(100); }
  std::vector<Notice> Notices() const override;

 private:
  void OnLine(std::string_view line, const Moment& now);
  void Ended(const Moment& now, const std::string& failure);

  const std::string command_;
  std::optional<ChildProcess> child_;
  Time start_at_;
  Duration pause_ = kPause;
  std::optional<Notice> notice_;
};

}  // namespace millrace::notice
