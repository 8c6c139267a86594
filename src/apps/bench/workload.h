// Workload: which requests a benchmark sends, and when. A function of its options and the seed, so
// that two runs, and two servers, see the same requests.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/ids.h"

namespace millrace::apps {

enum class DatasetName { kRandom, kCustom, kTrace, kOrca };

struct WorkloadOptions {
  DatasetName dataset = DatasetName::kRandom;
  std::string path;  // kCustom: JSON lines; kTrace: see bench/trace.h
  int num_prompts = 1000;
  int input_len = 1024;         // kRandom
  int output_len = 128;         // kRandom
  int prefix_len = 0;           // kRandom: tokens every prompt begins with, besides input_len
  double range_ratio = 0;       // kRandom: lengths uniform in len * [1 - ratio, 1 + ratio]
  int custom_output_len = 256;  // kCustom: for lines that do not say
  double length_scale = 1;      // kTrace: factor on input and output lengths
  int vocab_size = 1000;        // token ids are in [0, vocab_size)
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  uint64_t seed = 0;
};

struct BenchRequest {
  std::vector<TokenId> prompt;             // exact length, or
  std::optional<std::string> prompt_text;  // a text, as the server tokenizes it
  int output_len = 0;
  double arrival_s = 0;  // from the start of the run
};

// kTrace with an infinite rate replays the recorded times; with a finite one they are stretched to
// that mean rate. Everything else arrives as ArrivalTimes() says.
Result<std::vector<BenchRequest>> MakeWorkload(const WorkloadOptions& options);

}  // namespace millrace::apps
