#include "apps/commands/bench_serve_options.h"

#include <limits>

#include "apps/commands/workload_flags.h"
#include "apps/common/slo_option.h"

namespace millrace::apps {
namespace {

constexpr double kUnlimitedRate = std::numeric_limits<double>::infinity();

void AddTargetOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Server";
  command.Add(kGroup, TextOption("base-url", "URL", &flags->base_url),
              "URL of the server, such as https://host:8000; instead of --host and --port");
  command.Add(kGroup, HostOption("host", "ADDRESS", &flags->host), "Address of the server");
  command.Add(kGroup, IntOption("port", "PORT", &flags->port, 1, 65535), "Port of the server");
  command.Add(kGroup, TextOption("endpoint", "PATH", &flags->endpoint),
              "Path of each request; /v1/chat/completions makes them chats");
  command.Add(kGroup,
              RefusedOption("backend",
                            "it was removed; give --endpoint /v1/chat/completions for chats, and "
                            "leave it out for completions"),
              "");
  command.Add(kGroup, TextOption("model", "NAME", &flags->model),
              "Name of the model [default: the first of /v1/models]");
  command.Add(kGroup, TextOption("api-key", "KEY", &flags->api_key),
              "API key sent with each request [default: $OPENAI_API_KEY]");
  command.Add(kGroup, FlagOption("insecure", &flags->insecure),
              "Accept any TLS certificate of the server");
}

void AddTrafficOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Traffic";
  command.Add(
      kGroup,
      RealOption("request-rate", "RPS", &flags->workload.request_rate, 1e-6, kUnlimitedRate),
      "Mean requests per second; inf: all at once, or at the times of a trace");
  command.Add(kGroup,
              RealOption("burstiness", "X", &flags->workload.burstiness, 1e-3, kUnlimitedRate),
              "Shape of the Gamma distributed gaps: 1 is a Poisson process, less is burstier");
  command.Add(kGroup, IntOption("max-concurrency", "N", &flags->max_concurrency, 1, 1 << 20),
              "Maximum number of requests in flight [default: no limit]");
  command.Add(kGroup, FlagOption("ignore-eos", &flags->ignore_eos),
              "Ask for exactly the output length");
  command.Add(kGroup, IntOption("num-warmups", "N", &flags->num_warmups, 0, 1 << 20),
              "Requests before the measurement");
  command.Add(kGroup, IntOption("seed", "N", &flags->seed, 0, INT64_MAX),
              "Seed of the prompts, lengths and arrivals");
}

// Checks lists when they are parsed, so that a typing error does not waste a run.
template <typename Parse>
Option CheckedText(const char* name, const char* value_name, std::string* target, Parse parse) {
  return CustomOption(name, value_name, *target, [target, parse](const std::string& text) {
    MR_RETURN_IF_ERROR(parse(text).status());
    *target = text;
    return OkStatus();
  });
}

void AddReportOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Report";
  Option goodput;
  goodput.name = "goodput";
  goodput.value_name = "METRIC:MS";
  goodput.arity = Arity::kMany;
  goodput.set = [flags](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(flags->goodput, ParseGoodputLimits(values));
    return OkStatus();
  };
  command.Add(kGroup, SloOption(&flags->slo), kSloHelp);
  command.Add(kGroup, std::move(goodput),
              "The limits of --slo as vLLM writes them, in milliseconds and per request, such as "
              "ttft:200 tpot:50; e2el:5000 limits the end-to-end latency");
  command.Add(
      kGroup,
      CheckedText("percentile-metrics", "LIST", &flags->percentile_metrics, ParseMetricNames),
      "Which of ttft,tpot,itl,e2el to show");
  command.Add(
      kGroup,
      CheckedText("metric-percentiles", "LIST", &flags->metric_percentiles, ParsePercentiles),
      "Percentiles to show, such as 50,90,99");
  command.Add(kGroup, FlagOption("save-result", &flags->save_result), "Write a JSON file");
  Option folder = TextOption("result-dir", "DIR", &flags->result_dir);
  folder.kind = ValueKind::kFolder;
  command.Add(kGroup, std::move(folder), "Folder of the result [default: the current folder]");
  command.Add(kGroup, TextOption("result-filename", "NAME", &flags->result_filename),
              "File name of the result [default: from the API, the rate, the model and the date]");
  command.Add(kGroup, FlagOption("save-detailed", &flags->save_detailed),
              "Include every request's lengths, times, text and error in the result");
  command.Add(kGroup, FlagOption("disable-tqdm", &flags->disable_progress), "No progress bar");
}

}  // namespace

void AddBenchServeOptions(Command& command, BenchServeFlags* flags) {
  AddTargetOptions(command, flags);
  AddWorkloadOptions(command, &flags->workload);
  AddTrafficOptions(command, flags);
  AddReportOptions(command, flags);
}

}  // namespace millrace::apps
