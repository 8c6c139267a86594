// A drill: a cluster on this machine is disturbed while it streams, and every answer is compared
// with that of one undisturbed process. It takes less than a minute.
//
// RunDrill is called on one thread, which it blocks. It starts processes and removes them and their
// files before it returns, whatever happens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/drill/drill_report.h"
#include "base/status.h"

namespace millrace::apps {

enum class DrillStepKind : uint8_t {
  kNotice,      // a worker's machine goes away, with notice
  kWithdrawn,   // a notice that does not come true
  kKill,        // a worker dies
  kController,  // the controller dies
};
struct DrillStepName {
  std::string_view name;
  DrillStepKind kind;
};
// All of them, in the order in which a drill makes them.
const std::vector<DrillStepName>& AllDrillSteps();

struct DrillOptions {
  static constexpr int kWorkersMin = 2, kWorkersMax = 16, kStreamsMax = 64;
  static constexpr int kTokensMin = 16, kTokensMax = 4096;

  std::string model;  // a folder, or ORG/NAME of a model in the cache
  int workers = 3, streams = 8;
  int tokens = 400;  // of each answer
  std::optional<uint16_t> port;
  std::vector<DrillStepKind> steps;  // in the order of AllDrillSteps
  bool keep = false;                 // the log of all processes
};

// `say` gets a line for each thing that happens, with the seconds since the start. Returns
// kCancelled soon after `interrupted` becomes true. kFailedPrecondition: too little memory, a port
// in use; kDeadlineExceeded: the cluster did not come back in time.
Result<DrillReport> RunDrill(const DrillOptions& options, const std::atomic<bool>& interrupted,
                             const std::function<void(double at_s, const std::string&)>& say);

}  // namespace millrace::apps
