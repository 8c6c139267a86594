// The step log: the calls to a scheduler and its decisions, as JSON lines. A log is complete: the
// simulator replays it against the same scheduler and must get the same steps. It holds prompts and
// sampled tokens, so it is as private as they are. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "sched/scheduler.h"

namespace millrace::sched {

inline constexpr int kStepLogVersion = 4;
inline constexpr int kStepLogVersionOldest = 3;  // that is read: of 0.2.0
inline constexpr size_t kStepLogBytesMax = size_t{4} << 30;

struct LoggedAdd {
  Time at;
  NewRequest request;
};
struct LoggedAbort {
  Time at;
  RequestId id;
  std::optional<int> index;
};
struct LoggedCosts {
  PreemptionCosts costs;
};
struct LoggedReset {};  // of the prefix cache
struct LoggedLimit {
  int blocks = 0;
};
struct LoggedStepLimits {
  StepLimits limits;
};
struct LoggedKvArrival {
  Time at;
  RequestId id;
  bool complete = false;
  std::optional<LayerRange> lacking = {};  // complete except for these layers
};
struct LoggedKvRelease {
  RequestId id;
};
struct LoggedHoldExtension {
  Time at;
  RequestId id;
  Duration hold_kv;
};
struct LoggedKvExtension {
  RequestId id;
  std::vector<ResumedSequence> more;
  std::vector<int> imported_tokens;
};
struct LoggedImportEnd {
  Time at;
  RequestId id;
};
struct LoggedExport {
  Time at;
  RequestId id;
  Duration hold_kv;
};
struct LoggedPause {
  RequestId id;
  bool paused = true;  // false: unpaused
};
struct LoggedDetach {
  Time at;
  RequestId id;
  std::optional<Duration> hold_kv;
};

// What a StepPlan decided, without what follows from the requests.
struct LoggedStep {
  struct Part {
    SequenceId id;
    int32_t start = 0, num_tokens = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  Time at;
  StepId id;
  std::vector<Part> parts;
  std::vector<BlockIndex> blocks;  // StepPlan::blocks
  int swapped_out = 0, swapped_in = 0, copied = 0;

  static LoggedStep Of(const StepPlan& plan, Time at);
  bool SameDecision(const LoggedStep& other) const;
};

// Nothing could run although there is work; pulls may have been requested.
struct LoggedIdle {
  Time at;
};

struct LoggedCommit {
  Time at;
  StepId id;
  std::vector<std::optional<TokenId>> tokens;  // one per part of the step
  // What each part offers for its next token, if there were beam searches: they decide by it.
  // Otherwise empty.
  std::vector<std::vector<TokenLogprob>> candidates;
};

using LogEntry = std::variant<LoggedAdd, LoggedAbort, LoggedCosts, LoggedReset, LoggedLimit,
                              LoggedStepLimits, LoggedKvArrival, LoggedKvRelease,
                              LoggedHoldExtension, LoggedKvExtension, LoggedImportEnd, LoggedExport,
                              LoggedPause, LoggedDetach, LoggedStep, LoggedIdle, LoggedCommit>;

struct StepLog {
  SchedulerOptions options;
  std::vector<LogEntry> entries;  // in the order of the calls
};

// One line each, without a line break.
std::string EncodeHeader(const SchedulerOptions& options);
std::string EncodeEntry(const LogEntry& entry);

// kInvalidArgument names the line. Untrusted text.
Result<StepLog> ParseStepLog(std::string_view text);

// A scheduler like `inner` that passes one line of the log to `write` for every call that affects
// decisions. A step that failed in a stage is logged with no tokens and cannot be replayed.
std::unique_ptr<Scheduler> NewRecordingScheduler(std::unique_ptr<Scheduler> inner,
                                                 const SchedulerOptions& options,
                                                 std::function<void(std::string_view)> write);

}  // namespace millrace::sched
