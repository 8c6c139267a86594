// WorkloadSpec: the expected requests and the limits that they must meet, as written in a workload
// file (docs/formats/workload.md): a recorded trace, or random arrivals and lengths. Untrusted
// text: sizes are bounded, every quantity has its unit, an error is one line, "NAME:LINE:COLUMN:
// what is wrong, what is allowed". A value; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/latency_limits.h"
#include "sim/load/trace.h"
#include "sim/load/workload.h"

namespace millrace::sim {

inline constexpr size_t kWorkloadFileBytesMax = 1 << 20;
inline constexpr uint64_t kWorkloadRequestsMax = 100'000'000;
inline constexpr double kWorkloadSecondsMax = 1e9;
inline constexpr size_t kWorkloadPhasesMax = 10'000;
inline constexpr size_t kWorkloadClientsMax = 100;

enum class ArrivalKind {
  kTrace,     // at the trace's times, at its rate or another one
  kGamma,     // random gaps with a given variation: 1 is a Poisson process
  kSteady,    // constant gaps
  kAllAtOnce  // all at the start, to measure throughput
};

struct WorkloadSpec {
  ArrivalKind arrivals = ArrivalKind::kGamma;
  double cv = 1;                     // of the gaps: standard deviation over mean
  std::optional<double> rate;        // requests per second; a trace is stretched to it
  RateShape shape;                   // of kGamma and kSteady; `rate` is then the mean
  std::optional<uint64_t> requests;  // of a trace: its first ones
  std::optional<double> duration_s;  // no arrival after this
  std::vector<TraceEntry> trace;     // of kTrace; not empty
  LengthSpec prompt, output;         // of the other kinds, if `lengths` is empty
  std::vector<Lengths> lengths;      // of a trace, for random arrivals
  bool draw_lengths = true;          // draws at random instead of in turn
  SharedPrefixes prefixes;           // of the other kinds
  // Random arrivals that follow one another, each for its `duration_s`. They replace the fields
  // from `arrivals` to `prefixes`; `rate` is their mean and `duration_s` their sum. No phase has
  // phases.
  std::vector<WorkloadSpec> phases;
  // Random arrivals of several clients at the same time, each with a name and a rate of its own.
  // They replace the same fields; `rate` is their sum. No client has phases or clients.
  std::vector<WorkloadSpec> clients;
  std::string name;  // of a client
  LatencyLimits limits;

  // kInvalidArgument, with the numbers, if Make could not use the spec.
  Status Validate() const;
  // The mean arrival rate; none if all arrive at once.
  std::optional<double> MeanRate() const;
  // Whether prompts may begin with the same tokens.
  bool SharesPrefixes() const;
  // The number of requests, exact or expected.
  uint64_t ExpectedRequests() const;
  // The stream for one seed, optionally at another rate. REQUIRES: Validate().ok(), also with that
  // rate.
  std::unique_ptr<Workload> Make(uint64_t seed, std::optional<double> rate_instead = {}) const;
  // Without phases: the requests of all of them, drawn at random at the mean rate. For a plan,
  // which must carry any of them. Without phases to begin with: the same.
  WorkloadSpec Mixed() const;
  // "10,000 requests, Poisson at 5 req/s, prompt 512 tokens, output uniform 1 to 128 tokens".
  std::string Describe() const;
};

// Reads a file that the workload names. Errors are prefixed with the place that names it.
using FileReader = std::function<Result<std::string>(const std::string& path)>;

// `name` names the file in errors.
Result<WorkloadSpec> ParseWorkloadYaml(std::string_view text, std::string_view name,
                                       const FileReader& read);
// Traces are searched beside the file.
Result<WorkloadSpec> LoadWorkload(const std::string& path);

}  // namespace millrace::sim
