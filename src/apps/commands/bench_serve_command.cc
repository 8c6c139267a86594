// millrace bench serve: puts load on any OpenAI-compatible server, with the table and the JSON keys
// of `vllm bench serve`; docs/cli.md lists which of its flags exist here.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>

#include "apps/bench/load_client.h"
#include "apps/bench/metrics.h"
#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/commands/workload_flags.h"
#include "apps/common/progress.h"
#include "apps/common/signals.h"
#include "apps/common/slo_option.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "net/http_client.h"

namespace millrace::apps {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr char kCompletions[] = "/v1/completions";
constexpr char kChatCompletions[] = "/v1/chat/completions";

enum class Backend { kOpenAi, kOpenAiChat, kVllm };

struct BenchServeFlags {
  std::string base_url, host = "127.0.0.1", endpoint, model, api_key;
  int port = 8000;
  Backend backend = Backend::kOpenAi;
  bool insecure = false;
  WorkloadOptions workload;
  int64_t seed = 0;
  std::optional<int> max_concurrency;
  bool ignore_eos = false;
  int num_warmups = 0;
  LatencyLimits slo;
  Goodput goodput;  // the same limits in vLLM's syntax
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  bool save_result = false, save_detailed = false, disable_progress = false;
  std::string result_dir, result_filename;
  std::set<std::string> given;

  bool chat() const {
    return backend == Backend::kOpenAiChat || endpoint.ends_with(kChatCompletions);
  }
};

Status Validate(const BenchServeFlags& flags) {
  MR_RETURN_IF_ERROR(ValidateWorkload(flags.workload, flags.given));
  if (flags.workload.dataset == DatasetName::kTrace || std::isinf(flags.workload.request_rate)) {
    MR_RETURN_IF_ERROR(RefuseGiven(
        flags.given, {"burstiness"},
        "needs random arrivals: give a finite --request-rate, and not --dataset-name trace"));
  }
  if (!flags.base_url.empty()) {
    MR_RETURN_IF_ERROR(
        RefuseGiven(flags.given, {"host", "port"}, "cannot be used with --base-url"));
    MR_RETURN_IF_ERROR(net::ParseUrl(flags.base_url).status().WithContext("--base-url"));
  }
  if (flags.chat() && flags.workload.dataset != DatasetName::kCustom) {
    return InvalidArgument(
        "a chat needs texts, but this workload has token ids; use --endpoint /v1/completions, or "
        "--dataset-name custom");
  }
  if (flags.given.contains("slo")) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"goodput"}, "has the limits of --slo; give one"));
    MR_RETURN_IF_ERROR(CompleteSlo(flags.slo, {}).status());
  }
  if (flags.save_result) return OkStatus();
  return RefuseGiven(flags.given, {"save-detailed", "result-dir", "result-filename"},
                     "needs --save-result");
}

Result<net::Url> BaseUrl(const BenchServeFlags& flags) {
  if (!flags.base_url.empty()) return net::ParseUrl(flags.base_url);
  const bool is_v6 = flags.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + flags.host + "]" : flags.host;
  return net::ParseUrl(fmt::format("http://{}:{}", host, flags.port));
}

std::string ApiKey(const BenchServeFlags& flags) {
  if (!flags.api_key.empty()) return flags.api_key;
  const char* from_environment = std::getenv("OPENAI_API_KEY");
  return from_environment == nullptr ? "" : from_environment;
}

Result<std::string> FirstModel(net::HttpClient& http, const net::Url& base,
                               const std::string& api_key) {
  net::HttpCall call{.url = base.Join("/v1/models")};
  if (!api_key.empty()) call.headers = {{"Authorization", "Bearer " + api_key}};
  const auto response = http.Call(std::move(call));
  const std::string advice = fmt::format(
      "; is a server running there? ('millrace serve MODEL' starts one, --model names its model)");
  if (!response.ok()) {
    return Unavailable(
        fmt::format("cannot reach {}: {}{}", base.ToString(), response.status().message(), advice));
  }
  const auto json = ParseJson(response->body);
  if (response->status == 200 && json.ok() && json->is_object() && json->contains("data")) {
    const Json& data = (*json)["data"];
    if (data.is_array() && !data.empty() && data[0].is_object() && data[0].contains("id") &&
        data[0]["id"].is_string()) {
      return data[0]["id"].get<std::string>();
    }
  }
  return FailedPrecondition(fmt::format("{} lists no model (HTTP {}: {}){}",
                                        base.Join("/v1/models").ToString(), response->status,
                                        Printable(response->body), advice));
}

Result<LoadTarget> TargetFor(const BenchServeFlags& flags, net::HttpClient& http) {
  LoadTarget target;
  MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrl(flags));
  target.chat = flags.chat();
  const std::string usual = target.chat ? kChatCompletions : kCompletions;
  target.url = base.Join(flags.endpoint.empty() ? usual : flags.endpoint);
  target.api_key = ApiKey(flags);
  target.ignore_eos = flags.ignore_eos;
  target.model = flags.model;
  if (target.model.empty()) {
    MR_ASSIGN_OR_RETURN(target.model, FirstModel(http, base, target.api_key));
  }
  return target;
}

// One request that must succeed, then the warm-ups; all are like the first request of the run.
Status WarmUp(LoadClient& client, const BenchServeFlags& flags, BenchRequest request) {
  request.arrival_s = 0;
  fmt::print("Starting initial single prompt test run...\n");
  const auto test = client.Run({request}, std::nullopt, [](int, int) {});
  if (!test.outcomes[0].ok()) {
    return FailedPrecondition("the initial test run failed: " + test.outcomes[0].error);
  }
  fmt::print("Initial test run completed.\n");
  if (flags.num_warmups == 0) return OkStatus();
  fmt::print("Warming up with {} requests...\n", flags.num_warmups);
  const std::vector<BenchRequest> warmups(static_cast<size_t>(flags.num_warmups), request);
  client.Run(warmups, flags.max_concurrency, [](int, int) {});
  fmt::print("Warmup run completed.\n");
  return OkStatus();
}

LoadClient::Result Measure(LoadClient& client, const BenchServeFlags& flags,
                           const std::vector<BenchRequest>& requests, const Clock& clock) {
  const WorkloadOptions& w = flags.workload;
  fmt::print("Starting main benchmark run...\n");
  if (w.dataset == DatasetName::kTrace && std::isinf(w.request_rate)) {
    fmt::print("Using the timestamps of the trace file.\n");
  } else {
    fmt::print("Traffic request rate: {}\nBurstiness factor: {} ({})\n", w.request_rate,
               w.burstiness, w.burstiness == 1 ? "Poisson process" : "Gamma distribution");
  }
  fmt::print("Maximum request concurrency: {}\n",
             flags.max_concurrency ? std::to_string(*flags.max_concurrency) : "None");
  std::fflush(stdout);
  const auto total = flags.disable_progress ? 0 : static_cast<int64_t>(requests.size());
  Progress progress("Requests", ProgressUnit::kRequests, total, stderr,
                    ProgressStyle::ForStream(stderr), clock);
  auto result = client.Run(requests, flags.max_concurrency, [&](int done, int failed) {
    if (total == 0) return;
    if (failed > 0) progress.SetNote(fmt::format("{} failed", failed));
    progress.Update(done);
  });
  progress.Finish();
  return result;
}

Json FileHeader(const BenchServeFlags& flags, const std::string& model, const std::string& date,
                size_t num_prompts) {
  const WorkloadOptions& w = flags.workload;
  return {{"date", date},
          {"backend", flags.chat() ? "openai-chat" : "openai"},
          {"endpoint_type", flags.chat() ? "openai-chat" : "openai"},
          {"label", nullptr},
          {"model_id", model},
          {"tokenizer_id", model},
          {"num_prompts", num_prompts},
          {"request_rate", std::isinf(w.request_rate) ? Json("inf") : Json(w.request_rate)},
          {"burstiness", w.burstiness},
          {"max_concurrency", flags.max_concurrency ? Json(*flags.max_concurrency) : Json()}};
}

Status Save(const BenchServeFlags& flags, const std::string& model, size_t num_prompts,
            Json result) {
  const std::string date = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  if (!flags.save_detailed) {
    for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies",
                            "start_times", "generated_texts", "errors"}) {
      result.erase(key);
    }
  }
  Json file = FileHeader(flags, model, date, num_prompts);
  file.update(result);
  std::string name = flags.result_filename;
  if (name.empty()) {
    const std::string base = model.substr(model.find_last_of('/') + 1);
    const std::string concurrency =
        flags.max_concurrency ? fmt::format("-concurrency{}", *flags.max_concurrency) : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json", flags.chat() ? "openai-chat" : "openai",
                       flags.workload.request_rate, concurrency, base, date);
  }
  std::filesystem::path path = name;
  if (!flags.result_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags.result_dir, error);
    path = std::filesystem::path(flags.result_dir) / name;
  }
  MR_RETURN_IF_ERROR(WriteFileAtomically(path.string(), DumpJson(file) + "\n"));
  fmt::print("Saved {}\n", path.string());
  return OkStatus();
}

Result<ReportOptions> ReportOptionsFor(const BenchServeFlags& flags) {
  ReportOptions options;
  options.max_concurrency = flags.max_concurrency;
  options.request_rate = flags.workload.request_rate;
  options.orca = flags.workload.dataset == DatasetName::kOrca;
  options.goodput = flags.goodput;
  if (flags.slo.any()) options.goodput.limits = flags.slo;
  MR_ASSIGN_OR_RETURN(options.metrics, ParseMetricNames(flags.percentile_metrics));
  MR_ASSIGN_OR_RETURN(options.percentiles, ParsePercentiles(flags.metric_percentiles));
  return options;
}

Status RunBenchServe(const BenchServeFlags& flags) {
  RaiseFileLimit();
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(ReportOptions report_options, ReportOptionsFor(flags));
  WorkloadOptions workload = flags.workload;
  workload.seed = static_cast<uint64_t>(flags.seed);
  MR_ASSIGN_OR_RETURN(const auto requests, MakeWorkload(workload));
  net::HttpClientOptions http_options;
  http_options.verify_tls = !flags.insecure;
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start(http_options));
  MR_ASSIGN_OR_RETURN(LoadTarget target, TargetFor(flags, *http));
  const std::string model = target.model;
  LoadClient client(*http, std::move(target), clock);
  MR_RETURN_IF_ERROR(WarmUp(client, flags, requests.front()));
  const auto result = Measure(client, flags, requests, clock);
  report_options.duration_s = result.duration_s;
  const Report report = MakeReport(result.outcomes, report_options);
  fmt::print("{}", report.table);
  if (flags.save_result) {
    MR_RETURN_IF_ERROR(Save(flags, model, requests.size(), report.json));
  }
  if (report.json["completed"] == 0) return FailedPrecondition("every request failed");
  return OkStatus();
}

void AddTargetOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Server";
  command.Add(kGroup, TextOption("base-url", "URL", &flags->base_url),
              "URL of the server, such as https://host:8000; instead of --host and --port");
  command.Add(kGroup, TextOption("host", "ADDRESS", &flags->host), "Address of the server");
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
  command.Add(kGroup, TextOption("api-key", "KEY", &flags->api_key),
              "API key sent with each request [default: $OPENAI_API_KEY]");
  command.Add(kGroup, FlagOption("insecure", &flags->insecure),
              "Accept any TLS certificate of the server");
}

void AddTrafficOptions(Command& command, BenchServeFlags* flags) {
  constexpr char kGroup[] = "Traffic";
  command.Add(kGroup,
              RealOption("request-rate", "RPS", &flags->workload.request_rate, 1e-6, kInfinity),
              "Mean requests per second; inf: all at once, or at the times of a trace");
  command.Add(kGroup, RealOption("burstiness", "X", &flags->workload.burstiness, 1e-3, kInfinity),
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
              "File name of the result [default: from backend, rate, model and date]");
  command.Add(kGroup, FlagOption("save-detailed", &flags->save_detailed),
              "Include every request's lengths, times, text and error in the result");
  command.Add(kGroup, FlagOption("disable-tqdm", &flags->disable_progress), "No progress bar");
}

}  // namespace

std::unique_ptr<Command> MakeBenchServeCommand() {
  auto command = std::make_unique<Command>();
  command->name = "serve";
  command->summary = "Measure any OpenAI-compatible server under load";
  command->description =
      "Sends a workload to a server at given arrival times and prints throughput and latencies. "
      "Printed lines and JSON keys follow 'vllm bench serve', and so do the names of options that "
      "both have.";
  command->log_level = "warning";
  command->examples = {
      {"millrace bench serve --num-prompts 100 --request-rate 4 --random-input-len 128 "
       "--random-output-len 64 --ignore-eos",
       "a Poisson stream of 4 requests per second at the server on port 8000"},
      {"millrace bench serve --dataset-name orca --num-prompts 200 --request-rate 2 --ignore-eos",
       "the workload of the Orca paper"},
      {"millrace bench serve --dataset-name trace --dataset-path azure.csv --request-rate 1 "
       "--slo ttft=500ms tpot=100ms --save-result",
       "a recorded trace at another rate, with goodput, and a JSON file of the result"}};
  auto flags = std::make_shared<BenchServeFlags>();
  AddTargetOptions(*command, flags.get());
  AddWorkloadOptions(*command, &flags->workload);
  AddTrafficOptions(*command, flags.get());
  AddReportOptions(*command, flags.get());
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunBenchServe(*flags); };
  return command;
}

}  // namespace millrace::apps
