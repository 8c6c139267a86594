// Workload: which requests come, when, and how long they are. A stream, so that a million requests
// take the memory of those alive. A function of its options and the seed. One thread.
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
#include "sim/rate_shape.h"
#include "sim/trace.h"

namespace millrace::sim {

struct SimRequest {
  Time arrival;
  int prompt_tokens = 0;  // >= 1
  int output_tokens = 0;  // >= 1: all of them are generated, no EOS
};

class Workload {
 public:
  virtual ~Workload() = default;
  // In order of arrival; nothing after the last.
  virtual std::optional<SimRequest> Next() = 0;
};

// How a length is drawn.
struct LengthSpec {
  enum class Kind { kFixed, kUniform, kLognormal } kind = Kind::kFixed;
  double a = 1;  // the length; the least; the mean
  double b = 1;  // unused; the greatest, inclusive; the standard deviation
  int limit = 1 << 20;
};
int DrawLength(const LengthSpec& spec, Rng& rng);

struct Lengths {
  int prompt_tokens = 0, output_tokens = 0;
};

struct SyntheticOptions {
  uint64_t requests = 1000;
  double duration_s = std::numeric_limits<double>::infinity();  // no arrival later than this
  double rate = 1;        // requests per second; infinite: all at once
  double burstiness = 1;  // shape of the Gamma gaps: 1 Poisson, 1 / CV^2 in general
  RateShape shape;        // of `rate`, the mean; without shares it is always the same
  LengthSpec prompt, output;
  // Where not empty, prompt and output lengths come from here, in turn or drawn at random.
  std::vector<Lengths> lengths;
  bool draw_lengths = false;
  uint64_t seed = 0;
};
std::unique_ptr<Workload> NewSynthetic(SyntheticOptions options);

// A recorded trace; `rate` (requests per second) stretches its time when given.
std::unique_ptr<Workload> NewReplay(std::vector<TraceEntry> entries, std::optional<double> rate);

}  // namespace millrace::sim
