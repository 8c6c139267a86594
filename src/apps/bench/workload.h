// Workload: the requests of a benchmark and their arrival times. It depends only on the
// options and the seed, so that two runs, and two servers, get the same requests. Any thread.
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
  std::string path;  // kCustom: JSON lines; kTrace: see sim/load/trace.h
  int num_prompts = 1000;
  int input_len = 1024;         // kRandom
  int output_len = 128;         // kRandom
  int prefix_len = 0;           // kRandom: first tokens shared by all prompts, besides input_len
  double range_ratio = 0;       // kRandom: lengths uniform in len * [1 - ratio, 1 + ratio]
  int custom_output_len = 256;  // kCustom: for lines without a length
  double length_scale = 1;      // kTrace: factor on input and output lengths
  int vocab_size = 1000;        // token ids are in [0, vocab_size)
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  uint64_t seed = 0;
};

struct BenchRequest {
  std::vector<TokenId> prompt;             // exact length, or
  std::optional<std::string> prompt_text;  // a text that the server tokenizes
  int output_len = 0;
  double arrival_s = 0;  // from the start of the run
};

// Lowers the lengths of kRandom that were not given, so that every request fits into a context of
// `tokens`: first the input's, to at least one token, then the output's. `input_given` and
// `output_given` keep theirs. Other workloads stay as they are. True: something was lowered.
bool FitLengths(int tokens, bool input_given, bool output_given, WorkloadOptions& options);

// With an infinite rate, kTrace replays the recorded times; with a finite rate, it stretches them
// to that mean rate. Other workloads arrive by ArrivalTimes().
Result<std::vector<BenchRequest>> MakeWorkload(const WorkloadOptions& options);

}  // namespace millrace::apps
