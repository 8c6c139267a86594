#include "apps/commands/bench_serve_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr std::array kPerRequestKeys = {"input_lens",  "output_lens",     "ttfts",
                                        "itls",        "latencies",       "start_times",
                                        "queue_times", "generated_texts", "errors"};

std::string UsualFileName(const BenchServeFlags& flags, const std::string& model,
                          const std::string& date) {
  const std::string base = model.substr(model.find_last_of('/') + 1);
  const std::string label = flags.label.empty() ? flags.backend_name() : flags.label;
  const std::string concurrency =
      flags.max_concurrency ? fmt::format("-concurrency{}", *flags.max_concurrency) : "";
  const auto& ramp = WorkloadOf(flags).ramp_up;
  const std::string rate = ramp ? fmt::format("ramp-up-{}-{}qps-{}qps", NameOf(ramp->shape),
                                              ramp->start_rps, ramp->end_rps)
                                : fmt::format("{}qps", flags.workload.request_rate);
  return fmt::format("{}-{}{}-{}-{}.json", label, rate, concurrency, base, date);
}

// One line per run.
Status AppendLine(const std::string& path, const std::string& line) {
  bool starts_line = true;
  if (std::ifstream before(path, std::ios::binary | std::ios::ate); before && before.tellg() > 0) {
    before.seekg(-1, std::ios::end);
    starts_line = before.get() == '\n';
  }
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << (starts_line ? "" : "\n") << line << "\n" << std::flush;
  if (!file) return Unavailable(fmt::format("{}: cannot append to it", Printable(path)));
  return OkStatus();
}

}  // namespace

Json ResultHeader(const BenchServeFlags& flags, const std::string& model, size_t num_prompts,
                  std::time_t now) {
  const WorkloadOptions w = WorkloadOf(flags);
  Json header = {
      {"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(now))},
      {"backend", flags.backend_name()},
      {"endpoint_type", flags.backend_name()},
      {"label", flags.label.empty() ? Json() : Json(flags.label)},
      {"model_id", model},
      {"tokenizer_id", flags.tokenizer.empty() ? model : flags.tokenizer},
      {"num_prompts", num_prompts},
      {"request_rate", std::isinf(w.request_rate) ? Json("inf") : Json(w.request_rate)},
      {"burstiness", w.burstiness},
      {"max_concurrency", flags.max_concurrency ? Json(*flags.max_concurrency) : Json()}};
  if (w.ramp_up) {
    header["ramp_up_strategy"] = NameOf(w.ramp_up->shape);
    header["ramp_up_start_rps"] = w.ramp_up->start_rps;
    header["ramp_up_end_rps"] = w.ramp_up->end_rps;
  }
  return header;
}

Json RateChangeEvents(const RampUp& ramp, const std::vector<BenchRequest>& requests,
                      double started_s) {
  Json events = Json::array();
  for (const RateChange& change : RateChanges(ramp, requests)) {
    const double at_s = started_s + change.at_s;
    const auto seconds = static_cast<std::time_t>(std::floor(at_s));
    const auto micros = static_cast<int>((at_s - std::floor(at_s)) * 1e6);
    events.push_back({{"rps", change.rps},
                      {"timestamp", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}",
                                                fmt::localtime(seconds), micros)}});
  }
  return events;
}

Status CheckMetadata(const BenchServeFlags& flags) {
  MR_ASSIGN_OR_RETURN(const ReportOptions options, ReportOptionsOf(flags));
  Json own = ResultHeader(flags, "", 0, 0);
  own.update(MakeReport({}, options).json);
  own[kRateChangesKey] = nullptr;
  for (const auto& [key, value] : flags.metadata) {
    if (own.contains(key)) {
      return InvalidArgument(fmt::format(
          "--metadata: the result has '{}' itself; choose another name", Printable(key)));
    }
  }
  return OkStatus();
}

Result<std::string> SaveResult(const BenchServeFlags& flags, const std::string& model,
                               const Json& header, Json result) {
  if (!flags.save_detailed) {
    for (const char* key : kPerRequestKeys) result.erase(key);
  }
  Json file = header;
  for (const auto& [key, value] : flags.metadata) file[key] = value;
  file.update(result);
  std::filesystem::path path = flags.result_filename;
  if (path.empty()) path = UsualFileName(flags, model, header["date"].get<std::string>());
  if (!flags.result_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags.result_dir, error);
    path = std::filesystem::path(flags.result_dir) / path;
  }
  if (flags.append_result) {
    MR_RETURN_IF_ERROR(AppendLine(path.string(), DumpJson(file)));
  } else {
    MR_RETURN_IF_ERROR(WriteFileAtomically(path.string(), DumpJson(file) + "\n"));
  }
  return path.string();
}

}  // namespace millrace::apps
