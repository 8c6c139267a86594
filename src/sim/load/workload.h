// Workload: the requests of a simulation, their arrival times and lengths. It is a stream, so that
// a million requests take only the memory of the live ones. A function of its options and the seed.
// One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "sim/load/rate_shape.h"
#include "sim/load/trace.h"

namespace millrace::sim {

struct SimRequest {
  Time arrival;
  int prompt_tokens = 0;                 // >= 1
  int output_tokens = 0;                 // >= 1: all of them are generated, no EOS
  const PromptPrefix* prefix = nullptr;  // owned by the workload; null: the prompt shares nothing
  int client = 0;                        // whose request it is; in the order of the workload file
};

class Workload {
 public:
  virtual ~Workload() = default;
  // Ordered by arrival; nothing after the last. The workload outlives its requests.
  virtual std::optional<SimRequest> Next() = 0;
};

// How lengths are drawn.
struct LengthSpec {
  enum class Kind { kFixed, kUniform, kLognormal } kind = Kind::kFixed;
  double a = 1;  // the length; the minimum; the mean
  double b = 1;  // unused; the maximum, inclusive; the standard deviation
  int limit = 1 << 20;
};
int DrawLength(const LengthSpec& spec, Rng& rng);

struct Lengths {
  int prompt_tokens = 0, output_tokens = 0;
};

// Prompts begin with one of `count` texts of this length, drawn at random. A shorter prompt has
// only a part of it.
struct SharedPrefixes {
  int count = 0;  // 0: prompts share nothing
  int tokens = 0;
};

struct SyntheticOptions {
  uint64_t requests = 1000;
  double duration_s = std::numeric_limits<double>::infinity();  // no arrival later than this
  double rate = 1;        // requests per second; infinite: all at once
  double burstiness = 1;  // shape of the Gamma gaps: 1 Poisson, 1 / CV^2 in general
  RateShape shape;        // of `rate`, which is the mean; constant without shares
  LengthSpec prompt, output;
  // If not empty, prompt and output lengths come from here, in turn or at random.
  std::vector<Lengths> lengths;
  bool draw_lengths = false;
  SharedPrefixes prefixes;
  uint64_t seed = 0;
};
std::unique_ptr<Workload> NewSynthetic(SyntheticOptions options);

// One workload after another: each begins this many seconds after the one before it. At most
// `requests` in all.
struct WorkloadPart {
  std::unique_ptr<Workload> workload;
  double length_s = 0;
};
std::unique_ptr<Workload> NewInTurn(std::vector<WorkloadPart> parts, uint64_t requests);

// Workloads at the same time, each of another client. At most `requests` in all.
std::unique_ptr<Workload> NewOfClients(std::vector<std::unique_ptr<Workload>> clients,
                                       uint64_t requests);

// A recorded trace; `rate` (requests per second), if set, stretches its time.
std::unique_ptr<Workload> NewReplay(std::vector<TraceEntry> entries, std::optional<double> rate);

}  // namespace millrace::sim
