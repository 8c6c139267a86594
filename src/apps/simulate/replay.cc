#include "apps/simulate/replay.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "sched/step_log.h"
#include "sim/fast/replay.h"

namespace millrace::apps {

Status RunReplay(const std::string& log_file, bool json) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(log_file, sched::kStepLogBytesMax));
  const auto log = sched::ParseStepLog(text);
  if (!log.ok()) return log.status().WithContext(Printable(log_file));
  const auto report = sim::Replay(*log);
  if (!report.ok()) return report.status().WithContext(Printable(log_file));
  if (json) {
    fmt::print("{}\n", DumpJson({{"requests", report->requests},
                                 {"aborts", report->aborts},
                                 {"steps", report->steps},
                                 {"tokens", report->tokens},
                                 {"seconds", report->seconds},
                                 {"same", !report->first_difference}}));
  } else {
    fmt::print("{} requests, {} aborts, {} steps, {} tokens in {:.1f} s of the server's clock\n",
               FormatCount(static_cast<int64_t>(report->requests)), report->aborts,
               FormatCount(static_cast<int64_t>(report->steps)),
               FormatCount(static_cast<int64_t>(report->tokens)), report->seconds);
  }
  if (report->first_difference) {
    return FailedPrecondition(
        fmt::format("the simulator decided differently from the server: {}; the log is from "
                    "another version, or this is a defect",
                    *report->first_difference));
  }
  if (!json)
    fmt::print("Every step was decided identically: sequences, positions, tokens, blocks\n");
  return OkStatus();
}

}  // namespace millrace::apps
