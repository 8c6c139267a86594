#include "apps/commands/bench_serve_options.h"

#include <fmt/format.h>

#include <limits>

#include "apps/commands/workload_flags.h"
#include "apps/common/slo_option.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr double kUnlimitedRate = std::numeric_limits<double>::infinity();
constexpr int kRampRpsMax = 1 << 20;
constexpr int kLogprobsMax = 1000;  // a server has its own limit below it
constexpr int kReadyTimeoutMax = 24 * 3600;

// "KEY=VALUE ..."; an empty key is refused.
Option KeyValueOption(const char* name, KeyValues* target) {
  Option option;
  option.name = name;
  option.value_name = "KEY=VALUE";
  option.arity = Arity::kMany;
  option.set = [target](const std::vector<std::string>& values) {
    target->clear();
    for (const std::string& value : values) {
      const size_t equals = value.find('=');
      if (equals == std::string::npos || equals == 0) {
        return InvalidArgument(
            fmt::format("must be pairs such as key=value, got '{}'", Printable(value)));
      }
      target->emplace_back(value.substr(0, equals), value.substr(equals + 1));
    }
    return OkStatus();
  };
  return option;
}

Option JsonObjectOption(const char* name, Json* target) {
  return CustomOption(name, "JSON", "", [target](const std::string& text) {
    auto json = ParseJson(text);
    if (!json.ok() || !json->is_object()) {
      return InvalidArgument(
          fmt::format("must be a JSON object such as {{\"n\": 2}}, got '{}'", Printable(text)));
    }
    *target = std::move(*json);
    return OkStatus();
  });
}

void AddTargetOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Server";
  command.Add(kGroup, TextOption("base-url", "URL", &flags->base_url),
              "URL of the server, such as https://host:8000; instead of --host and --port");
  command.Add(kGroup, HostOption("host", "ADDRESS", &flags->host), "Address of the server");
  command.Add(kGroup, IntOption("port", "PORT", &flags->port, 1, 65535), "Port of the server");
  command.Add(kGroup, TextOption("endpoint", "PATH", &flags->endpoint),
              "Path of each request [default: /v1/completions, or that of --backend]");
  command.Add(kGroup,
              ChoiceOption<Backend>("backend", &flags->backend,
                                    {{"openai", Backend::kOpenAi},
                                     {"openai-chat", Backend::kOpenAiChat},
                                     {"vllm", Backend::kVllm}}),
              "The API that the server speaks");
  command.Add(kGroup, TextOption("model", "NAME", &flags->model),
              "Name of the model [default: the first of /v1/models]");
  command.Add(kGroup, TextOption("served-model-name", "NAME", &flags->served_model_name),
              "Name of the model in the requests, if it is not that of --model");
  command.Add(kGroup, TextOption("api-key", "KEY", &flags->api_key),
              "API key sent with each request [default: $OPENAI_API_KEY]");
  command.Add(kGroup, FlagOption("insecure", &flags->insecure),
              "Accept any TLS certificate of the server");
  command.Add(kGroup, KeyValueOption("header", &flags->headers),
              "Headers of every request, such as X-Team=blue");
  command.Add(kGroup, TextOption("request-id-prefix", "TEXT", &flags->request_id_prefix),
              "Send the X-Request-Id TEXT0, TEXT1, ... [default: no id]");
  command.Add(kGroup,
              IntOption("ready-check-timeout-sec", "SECONDS", &flags->ready_check_timeout_s, 0,
                        kReadyTimeoutMax),
              "How long to repeat the initial test request until it succeeds; 0: it is sent once");
}

void AddPromptOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Workload";
  Option tokenizer = TextOption("tokenizer", "FOLDER", &flags->tokenizer);
  tokenizer.kind = ValueKind::kFolder;
  command.Add(kGroup, std::move(tokenizer),
              "Send prompts as texts that this model folder's tokenizer decodes, also to chats "
              "[default: token ids]");
  Option& ids = command.Named("random-vocab-size");
  ids.help += "; with --tokenizer, all of its vocabulary unless N is given";
}

void AddSamplingExtras(Command& command, BenchServeFlags* flags) {
  command.Named("temperature").help = "0 always takes the likeliest token [default: 0]";
  constexpr char kGroup[] = "Sampling";
  command.Add(kGroup, IntOption("logprobs", "N", &flags->logprobs, 0, kLogprobsMax),
              "Ask for the log-probabilities of the N likeliest tokens at each place");
  command.Add(kGroup, JsonObjectOption("extra-body", &flags->extra_body),
              "More fields of every request, such as '{\"stop\": [\".\"]}'");
}

void AddTrafficOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Traffic";
  command.Add(
      kGroup,
      RealOption("request-rate", "RPS", &flags->workload.request_rate, 1e-6, kUnlimitedRate),
      "Mean requests per second; inf: all at once, or at the times of a trace");
  command.Add(kGroup,
              ChoiceOption<RampShape>("ramp-up-strategy", &flags->ramp_shape,
                                      {{NameOf(RampShape::kLinear), RampShape::kLinear},
                                       {NameOf(RampShape::kExponential), RampShape::kExponential}}),
              "Raise the rate over the run, instead of --request-rate");
  command.Add(kGroup, IntOption("ramp-up-start-rps", "RPS", &flags->ramp_start_rps, 1, kRampRpsMax),
              "The rate at the first request");
  command.Add(kGroup, IntOption("ramp-up-end-rps", "RPS", &flags->ramp_end_rps, 1, kRampRpsMax),
              "The rate at the last request");
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
    MR_ASSIGN_OR_RETURN(flags->goodput, ParseGoodput(values));
    return OkStatus();
  };
  command.Add(kGroup, SloOption(&flags->slo), kSloHelp);
  command.Add(kGroup, std::move(goodput),
              "The limits of --slo as vLLM writes them, in milliseconds and per request, such as "
              "ttft:200 tpot:50; e2el:5000 limits the end-to-end latency");
  command.Add(
      kGroup,
      CheckedText("percentile-metrics", "LIST", &flags->percentile_metrics, ParseMetricNames),
      "Which of ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue to show");
  command.Add(
      kGroup,
      CheckedText("metric-percentiles", "LIST", &flags->metric_percentiles, ParsePercentiles),
      "Percentiles to show, such as 50,90,99");
  command.Add(kGroup, FlagOption("save-result", &flags->save_result), "Write a JSON file");
  command.Add(kGroup, FlagOption("append-result", &flags->append_result),
              "Write the JSON as one more line of the file");
  Option folder = TextOption("result-dir", "DIR", &flags->result_dir);
  folder.kind = ValueKind::kFolder;
  command.Add(kGroup, std::move(folder), "Folder of the result [default: the current folder]");
  command.Add(kGroup, TextOption("result-filename", "NAME", &flags->result_filename),
              "File name of the result [default: from backend, rate, model and date]");
  command.Add(kGroup, TextOption("label", "TEXT", &flags->label),
              "Name of this run in the result, and the beginning of its file name");
  command.Add(kGroup, KeyValueOption("metadata", &flags->metadata),
              "More keys of the result, such as version=1.2 gpu=none");
  command.Add(kGroup, FlagOption("save-detailed", &flags->save_detailed),
              "Include every request's lengths, times, text and error in the result");
  command.Add(kGroup, FlagOption("disable-tqdm", &flags->disable_progress), "No progress bar");
}

}  // namespace

void AddBenchServeOptions(Command& command, BenchServeFlags* flags) {
  AddTargetOptions(command, flags);
  AddWorkloadOptions(command, &flags->workload);
  AddPromptOptions(command, flags);
  AddDistributionOptions(command, &flags->sampling);
  AddSamplingExtras(command, flags);
  AddTrafficOptions(command, flags);
  AddReportOptions(command, flags);
}

}  // namespace millrace::apps
