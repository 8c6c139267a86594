#include "apps/commands/bench_serve_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "base/file.h"

namespace millrace::apps {
namespace {

constexpr std::array kPerRequestKeys = {"input_lens", "output_lens", "ttfts",           "itls",
                                        "latencies",  "start_times", "generated_texts", "errors"};

std::string UsualFileName(const BenchServeFlags& flags, const std::string& model,
                          const std::string& date) {
  const std::string base = model.substr(model.find_last_of('/') + 1);
  const std::string concurrency =
      flags.max_concurrency ? fmt::format("-concurrency{}", *flags.max_concurrency) : "";
  return fmt::format("{}-{}qps{}-{}-{}.json", flags.backend_name(), flags.workload.request_rate,
                     concurrency, base, date);
}

// What a file says before the numbers.
Json ResultHeader(const BenchServeFlags& flags, const std::string& model, const std::string& date,
                  size_t num_prompts) {
  const WorkloadOptions& w = flags.workload;
  return {{"date", date},
          {"backend", flags.backend_name()},
          {"endpoint_type", flags.backend_name()},
          {"label", nullptr},
          {"model_id", model},
          {"tokenizer_id", model},
          {"num_prompts", num_prompts},
          {"request_rate", std::isinf(w.request_rate) ? Json("inf") : Json(w.request_rate)},
          {"burstiness", w.burstiness},
          {"max_concurrency", flags.max_concurrency ? Json(*flags.max_concurrency) : Json()}};
}

}  // namespace

Result<std::string> SaveResult(const BenchServeFlags& flags, const std::string& model,
                               size_t num_prompts, Json result) {
  if (!flags.save_detailed) {
    for (const char* key : kPerRequestKeys) result.erase(key);
  }
  const std::string date = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  Json file = ResultHeader(flags, model, date, num_prompts);
  file.update(result);
  std::filesystem::path path = flags.result_filename;
  if (path.empty()) path = UsualFileName(flags, model, date);
  if (!flags.result_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags.result_dir, error);
    path = std::filesystem::path(flags.result_dir) / path;
  }
  MR_RETURN_IF_ERROR(WriteFileAtomically(path.string(), DumpJson(file) + "\n"));
  return path.string();
}

}  // namespace millrace::apps
