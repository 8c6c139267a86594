#include "apps/simulate/workload_args.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/common/slo_option.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr char kGroup[] = "Workload";
constexpr double kRateMin = 1e-6, kRateMax = 1e6;
constexpr size_t kRatesMax = 64;
constexpr uint64_t kRequestsDefault = 10'000;

Status SetRates(const std::string& text, std::vector<double>* rates) {
  std::vector<double> read;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const auto value = ParseReal(text.substr(at, end - at));
    if (!value.ok() || *value < kRateMin || *value > kRateMax || read.size() == kRatesMax) {
      return InvalidArgument(
          fmt::format("must be requests per second in [{:g}, {:g}], one or a list of at most {} "
                      "such as 1,2,4, got '{}'",
                      kRateMin, kRateMax, kRatesMax, Printable(text, 60)));
    }
    read.push_back(*value);
    at = end + 1;
  }
  *rates = std::move(read);
  return OkStatus();
}

Result<sim::WorkloadSpec> LoadFile(const std::string& path) {
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return sim::LoadWorkload(path);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, sim::kTraceBytesMax));
  auto entries = sim::ParseTrace(text, sim::kWorkloadRequestsMax);
  if (!entries.ok()) return entries.status().WithContext(Printable(path));
  sim::WorkloadSpec spec;
  spec.arrivals = sim::ArrivalKind::kTrace;
  spec.trace = std::move(*entries);
  return spec;
}

Status ReplaceByFlags(const WorkloadArgs& args, sim::WorkloadSpec& spec) {
  const bool has_trace = spec.arrivals == sim::ArrivalKind::kTrace;
  if (has_trace && (args.input_len || args.output_len || args.cv)) {
    return InvalidArgument(
        "--input-len, --output-len and --arrival-cv cannot be used with a trace, which has its "
        "own");
  }
  if (!spec.phases.empty() && (args.input_len || args.output_len || args.cv)) {
    return InvalidArgument(
        "--input-len, --output-len and --arrival-cv cannot be used with phases, which have their "
        "own");
  }
  if (!args.rates.empty()) {
    if (spec.arrivals == sim::ArrivalKind::kAllAtOnce) {
      return InvalidArgument("--rate cannot be used with arrivals: at-once");
    }
    spec.rate = args.rates.front();
  }
  if (args.requests) spec.requests = static_cast<uint64_t>(*args.requests);
  if (args.input_len) spec.prompt = {.a = static_cast<double>(*args.input_len)};
  if (args.output_len) spec.output = {.a = static_cast<double>(*args.output_len)};
  if (args.input_len || args.output_len) spec.lengths.clear();
  if (args.cv) {
    spec.arrivals = sim::ArrivalKind::kGamma;
    spec.cv = *args.cv;
  }
  MR_ASSIGN_OR_RETURN(spec.limits, CompleteSlo(args.slo, spec.limits));
  return OkStatus();
}

}  // namespace

void AddWorkloadArgs(Command& command, WorkloadArgs* args) {
  Option file = TextOption("workload", "FILE", &args->file);
  file.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(file),
              "A workload file (.yaml), or a trace (Azure CSV, Mooncake JSON lines, CSV of "
              "arrival_s,prompt_tokens,output_tokens)");
  command
      .Add(kGroup,
           CustomOption("rate", "RPS[,RPS...]", "",
                        [args](const std::string& text) { return SetRates(text, &args->rates); }),
           "Mean requests per second; a list runs each in turn. A trace is stretched to it")
      .aliases = {"--request-rate"};
  command.Add(kGroup, IntOption("input-len", "TOKENS", &args->input_len, 1, sim::kTraceTokensMax),
              "Tokens of every prompt");
  command.Add(kGroup, IntOption("output-len", "TOKENS", &args->output_len, 1, sim::kTraceTokensMax),
              "Tokens of every answer");
  command.Add(
      kGroup,
      CustomOption("num-requests", "N", "",
                   [args](const std::string& text) {
                     const auto value = ParseInt(text);
                     const auto most = static_cast<int64_t>(sim::kWorkloadRequestsMax);
                     if (!value.ok() || *value < 1 || *value > most) {
                       return InvalidArgument(fmt::format("must be an integer in [1, {}], got '{}'",
                                                          most, Printable(text, 60)));
                     }
                     args->requests = *value;
                     return OkStatus();
                   }),
      "Number of requests; of a trace, the first ones [default: the file's, or 10000]");
  command.Add(kGroup, RealOption("arrival-cv", "X", &args->cv, 0.03, 30),
              "Standard deviation of the arrival gaps over their mean; 1 is a Poisson process");
  command.Add(kGroup, SloOption(&args->slo),
              std::string(kSloHelp) + ". Its limits replace the file's");
  command.Add(
      kGroup,
      RefusedOption("attainment", "write it into --slo, such as --slo ttft=250ms attainment=95%"),
      "");
}

Status ValidateWorkloadArgs(const WorkloadArgs& args) {
  if (!args.file.empty()) return OkStatus();
  if (args.rates.empty() || !args.input_len || !args.output_len) {
    return InvalidArgument(
        "the workload is missing; give --workload FILE, or --rate, --input-len and --output-len");
  }
  return OkStatus();
}

Result<sim::WorkloadSpec> LoadWorkloadArgs(const WorkloadArgs& args) {
  sim::WorkloadSpec spec;
  spec.requests = kRequestsDefault;
  if (!args.file.empty()) {
    MR_ASSIGN_OR_RETURN(spec, LoadFile(args.file));
  }
  MR_RETURN_IF_ERROR(ReplaceByFlags(args, spec));
  MR_RETURN_IF_ERROR(spec.Validate());
  for (const double rate : args.rates) {
    sim::WorkloadSpec other = spec;
    other.rate = rate;
    MR_RETURN_IF_ERROR(other.Validate());
  }
  return spec;
}

}  // namespace millrace::apps
