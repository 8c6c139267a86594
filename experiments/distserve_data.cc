#include "experiments/distserve_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/file.h"

namespace millrace::experiments {
namespace {

constexpr int kContextMax = 2048;

Result<int> ParseInt(const std::string& cell, const std::string& where) {
  int value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) {
    return InvalidArgument(fmt::format("{}: \"{}\" is not a whole number", where, cell));
  }
  return value;
}

}  // namespace

Result<std::vector<std::vector<std::string>>> ReadCsv(const std::string& path, size_t columns) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kCsvBytesMax));
  std::vector<std::vector<std::string>> rows;
  size_t begin = text.find('\n');
  begin = begin == std::string::npos ? text.size() : begin + 1;
  for (int line = 2; begin < text.size(); ++line) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::vector<std::string> cells(1);
    for (size_t i = begin; i < end; ++i) {
      if (text[i] == ',') {
        cells.emplace_back();
      } else if (text[i] != '\r') {
        cells.back().push_back(text[i]);
      }
    }
    if (cells.size() != columns) {
      return InvalidArgument(
          fmt::format("{}:{}: {} columns, expected {}", path, line, cells.size(), columns));
    }
    rows.push_back(std::move(cells));
    begin = end + 1;
  }
  return rows;
}

Result<std::vector<Lengths>> AzureLengthsWithin2048(const std::string& data, size_t limit) {
  const std::string path = data + "/traces/AzureLLMInferenceTrace_conv_2023.csv";
  MR_ASSIGN_OR_RETURN(const auto rows, ReadCsv(path, 3));
  std::vector<Lengths> lengths;
  for (const auto& row : rows) {
    if (lengths.size() == limit) break;
    MR_ASSIGN_OR_RETURN(const int input, ParseInt(row[1], path));
    MR_ASSIGN_OR_RETURN(const int output, ParseInt(row[2], path));
    if (input + output < kContextMax && output >= 2) lengths.push_back({input, output});
  }
  return lengths;
}

std::vector<double> OracleArrivalsMs(size_t count, double requests_per_s) {
  std::vector<double> arrivals;
  uint64_t x = 12345;
  double at = 0;
  for (size_t i = 0; i < count; ++i) {
    arrivals.push_back(at);
    x = 6364136223846793005ull * x + 1442695040888963407ull;
    const double u = (static_cast<double>(x >> 11) + 0.5) * 0x1.0p-53;
    at += -std::log(u) / requests_per_s * 1000;
  }
  return arrivals;
}

Result<std::map<std::pair<int, int>, int>> MaxTokens(const std::string& data,
                                                     std::string_view model) {
  const std::string path = data + "/profiles/distserve/max_num_tokens.csv";
  MR_ASSIGN_OR_RETURN(const auto rows, ReadCsv(path, 4));
  std::map<std::pair<int, int>, int> tokens;
  for (const auto& row : rows) {
    if (!row[0].ends_with(model)) continue;
    MR_ASSIGN_OR_RETURN(const int tp, ParseInt(row[1], path));
    MR_ASSIGN_OR_RETURN(const int pp, ParseInt(row[2], path));
    MR_ASSIGN_OR_RETURN(tokens[std::make_pair(tp, pp)], ParseInt(row[3], path));
  }
  if (tokens.empty()) return NotFound(fmt::format("{}: no rows of {}", path, model));
  return tokens;
}

}  // namespace millrace::experiments
