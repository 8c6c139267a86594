// Shared by the DistServe experiments: the published lengths, arrivals and coefficients. Any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::experiments {

struct Lengths {
  int input = 0, output = 0;
};

inline constexpr size_t kCsvBytesMax = 16 << 20;

// The lines of a CSV file, split at commas, without the header line.
Result<std::vector<std::vector<std::string>>> ReadCsv(const std::string& path, size_t columns);

// The requests of the Azure conversation trace (2023) that OPT models can hold, in file order:
// input + output < 2048 and output >= 2.
Result<std::vector<Lengths>> AzureLengthsWithin2048(const std::string& data, size_t limit);

// Poisson arrivals of the oracle runs (shared data, profiles/README.md): the first at 0.
std::vector<double> OracleArrivalsMs(size_t count, double requests_per_s);

// Maps (TP, PP) to the tokens of KV cache that fit on A100-80G beside the weights of "opt-13b".
Result<std::map<std::pair<int, int>, int>> MaxTokens(const std::string& data,
                                                     std::string_view model);

}  // namespace millrace::experiments
