#include "experiments/lib/helix/helix_workload.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "plan/io/text_fields.h"

namespace millrace::experiments::helix {
namespace {

constexpr size_t kTraceFileBytesMax = size_t{16} << 20;
constexpr double kBinS = 3;
constexpr double kApartS = 0.1;

// Reads two numbers per line after a header line.
Result<std::vector<std::pair<double, double>>> ReadPairs(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kTraceFileBytesMax));
  plan::LineReader lines(text);
  std::vector<std::pair<double, double>> pairs;
  lines.Next();
  while (lines.Next()) {
    const std::string_view line = plan::Trimmed(lines.text());
    const size_t comma = line.find(',');
    if (comma == std::string_view::npos) {
      return plan::ErrorAt(path, lines.line(), 1, "expected two numbers");
    }
    const auto first = plan::NumberIn(line.substr(0, comma));
    const auto second = plan::NumberIn(line.substr(comma + 1));
    if (!first || !second || *first < 0 || *second < 0 || *first > 1e9 || *second > 1e9) {
      return plan::ErrorAt(path, lines.line(), 1, "expected two numbers from 0 to 1e9");
    }
    pairs.emplace_back(*first, *second);
  }
  if (pairs.empty()) return InvalidArgument(path + ": no lines");
  return pairs;
}

HelixTrace::Length DrawLength(const HelixTrace& trace, PythonRandom* random) {
  return trace.lengths[random->Below(static_cast<uint32_t>(trace.lengths.size()))];
}

}  // namespace

double HelixTrace::MeanTokens() const {
  double input = 0, output = 0;
  for (const Length& length : lengths) {
    input += length.input_tokens;
    output += length.output_tokens;
  }
  return (input + output) / static_cast<double>(lengths.size());
}

Result<HelixTrace> LoadHelixTrace(const std::string& helix_data) {
  HelixTrace trace;
  MR_ASSIGN_OR_RETURN(const auto lengths, ReadPairs(helix_data + "/trace/azure_conv_lengths.csv"));
  for (const auto& [input, output] : lengths) {
    if (input < 1 || input > HelixModel::kPromptTokensMax || output < 1) {
      return InvalidArgument("azure_conv_lengths.csv: an input must have 1 to 2048 tokens");
    }
    trace.lengths.push_back({static_cast<int>(input), static_cast<int>(output)});
  }
  MR_ASSIGN_OR_RETURN(const auto bins, ReadPairs(helix_data + "/trace/azure_conv_arrivals.csv"));
  for (const auto& [start, requests] : bins) trace.requests_per_bin.push_back(requests);
  return trace;
}

std::vector<HelixArrival> DrawArrivals(const HelixTrace& trace, double tokens_per_s, double begin_s,
                                       double duration_s, PythonRandom* random) {
  double mean = 0;
  for (double requests : trace.requests_per_bin) mean += requests;
  mean /= static_cast<double>(trace.requests_per_bin.size());
  const double scale = kBinS * tokens_per_s / trace.MeanTokens() / mean;
  std::vector<HelixArrival> arrivals;
  double carried = 0;  // the rounding residue of the previous bins, in requests
  for (int bin = 0; bin < static_cast<int>(duration_s / kBinS); ++bin) {
    const auto drawn = random->Below(static_cast<uint32_t>(trace.requests_per_bin.size()));
    const double wanted = scale * trace.requests_per_bin[drawn] + carried;
    const double count = std::nearbyint(wanted);
    carried = wanted - count;
    std::vector<double> times;
    for (double i = 0; i < count; ++i)
      times.push_back(begin_s + bin * kBinS + kBinS * random->Uniform());
    std::sort(times.begin(), times.end());
    for (double at : times) arrivals.push_back({at, DrawLength(trace, random)});
  }
  return arrivals;
}

void HelixOnlineFeeder::Next(HelixSimulator& simulator) {
  if (next_ == arrivals_.size()) return;
  const HelixArrival& arrival = arrivals_[next_++];
  simulator.Submit(arrival.at_s, arrival.length.input_tokens, arrival.length.output_tokens);
}

void HelixOfflineFeeder::Add(HelixSimulator& simulator, double at_s) {
  const HelixTrace::Length length = DrawLength(trace_, random_);
  simulator.Submit(at_s, length.input_tokens, length.output_tokens);
}

void HelixOfflineFeeder::Start(HelixSimulator& simulator) {
  for (int i = 0; i < at_first_; ++i) Add(simulator, simulator.now_s() + kApartS * i);
}

void HelixOfflineFeeder::PromptDone(HelixSimulator& simulator) {
  const auto usage = simulator.scheduler().BottleneckUsage();
  if (usage && *usage <= kFeedUsage) Add(simulator, simulator.now_s() + kApartS);
}

void HelixOfflineFeeder::QueryDone(HelixSimulator& simulator) {
  const auto usage = simulator.scheduler().BottleneckUsage();
  if (!usage || *usage <= kFeedUsage) Add(simulator, simulator.now_s() + kApartS);
}

}  // namespace millrace::experiments::helix
