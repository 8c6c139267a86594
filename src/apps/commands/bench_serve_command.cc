// millrace bench serve: puts load on any OpenAI-compatible server, with the table and the JSON keys
// of `vllm bench serve`; docs/cli.md lists which of its flags exist here.
#include <fmt/format.h>

#include <climits>
#include <cmath>
#include <utility>

#include "apps/bench/load_client.h"
#include "apps/bench/metrics.h"
#include "apps/cli/parse.h"
#include "apps/commands/bench_serve_file.h"
#include "apps/commands/bench_serve_flags.h"
#include "apps/commands/bench_serve_options.h"
#include "apps/commands/commands.h"
#include "apps/common/signals.h"
#include "base/log.h"
#include "base/progress.h"
#include "net/http/http_client.h"

namespace millrace::apps {
namespace {

// The models that the server lists; at least one.
Result<Json> ListedModels(net::HttpClient& http, const net::Url& base,
                          const net::HttpHeaders& headers) {
  net::HttpCall call{.url = base.Join("/v1/models"), .headers = headers};
  const auto response = http.Call(std::move(call));
  const std::string advice = fmt::format(
      "; is a server running there? ('millrace serve MODEL' starts one, --model names its model)");
  if (!response.ok()) {
    return Unavailable(
        fmt::format("cannot reach {}: {}{}", base.ToString(), response.status().message(), advice));
  }
  const auto json = ParseJson(response->body);
  if (response->status == 200 && json.ok() && json->is_object() && json->contains("data")) {
    Json data = (*json)["data"];
    if (data.is_array() && !data.empty() && data[0].is_object() && data[0].contains("id") &&
        data[0]["id"].is_string()) {
      return data;
    }
  }
  return FailedPrecondition(fmt::format("{} lists no model (HTTP {}: {}){}",
                                        base.Join("/v1/models").ToString(), response->status,
                                        Printable(response->body), advice));
}

// Finds the model's name and sends one request, which must succeed.
Result<std::string> TestRun(const BenchServeFlags& flags, net::HttpClient& http, LoadTarget target,
                            BenchRequest request, const Clock& clock) {
  target.model = flags.model;
  if (target.model.empty()) {
    MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
    MR_ASSIGN_OR_RETURN(const Json listed, ListedModels(http, base, target.headers));
    target.model = listed[0]["id"].get<std::string>();
  }
  fmt::print("Starting initial single prompt test run...\n");
  std::fflush(stdout);
  request.arrival_s = 0;
  const auto test = LoadClient(http, target, clock).Run({request}, std::nullopt, [](int, int) {});
  if (!test.outcomes[0].ok()) {
    return FailedPrecondition("the initial test run failed: " + test.outcomes[0].error);
  }
  fmt::print("Initial test run completed.\n");
  return target.model;
}

// How many tokens a request to the model may have with its answer. nullopt: the server does not
// say.
Result<std::optional<int>> ContextOf(const BenchServeFlags& flags, net::HttpClient& http,
                                     const net::HttpHeaders& headers) {
  MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
  const auto listed = ListedModels(http, base, headers);
  if (listed.status().code() == StatusCode::kFailedPrecondition && !flags.model.empty()) {
    return std::optional<int>();  // a server without that route
  }
  MR_RETURN_IF_ERROR(listed.status());
  for (const Json& model : *listed) {
    const bool meant =
        flags.model.empty() || (model.is_object() && model.value("id", Json()) == flags.model);
    if (!meant || !model.is_object()) continue;
    const auto length = model.find("max_model_len");
    if (length == model.end() || !length->is_number_integer() || *length < 2 || *length > INT_MAX) {
      return std::optional<int>();
    }
    return std::optional(length->get<int>());
  }
  return std::optional<int>();
}

// The default lengths are those of `vllm bench serve`, which a small context cannot hold.
Status FitToServer(const BenchServeFlags& flags, net::HttpClient& http,
                   const net::HttpHeaders& headers, WorkloadOptions& workload) {
  const bool input = flags.given.contains("random-input-len");
  const bool output = flags.given.contains("random-output-len");
  if (workload.dataset != DatasetName::kRandom || (input && output)) return OkStatus();
  MR_ASSIGN_OR_RETURN(const std::optional<int> context, ContextOf(flags, http, headers));
  if (!context) return OkStatus();
  if (!FitLengths(*context, input, output, workload)) return OkStatus();
  fmt::print("The server's context has {} tokens, so requests have {} and ask for {}.\n", *context,
             workload.input_len, workload.output_len);
  return OkStatus();
}

// A request like those of the run, and none of them: a server would find its prompt in the prefix
// cache.
Result<BenchRequest> OtherRequest(WorkloadOptions workload, const BenchRequest& first) {
  if (workload.dataset != DatasetName::kRandom) return first;
  workload.seed = ~workload.seed;
  workload.num_prompts = 1;
  MR_ASSIGN_OR_RETURN(const auto made, MakeWorkload(workload));
  return made.front();
}

void WarmUp(LoadClient& client, const BenchServeFlags& flags, BenchRequest request) {
  if (flags.num_warmups == 0) return;
  request.arrival_s = 0;
  fmt::print("Warming up with {} requests...\n", flags.num_warmups);
  const std::vector<BenchRequest> warmups(static_cast<size_t>(flags.num_warmups), request);
  client.Run(warmups, flags.max_concurrency, [](int, int) {});
  fmt::print("Warmup run completed.\n");
}

void PrintTraffic(const BenchServeFlags& flags) {
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
}

LoadClient::Result Measure(LoadClient& client, const BenchServeFlags& flags,
                           const std::vector<BenchRequest>& requests, const Clock& clock) {
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

Status RunBenchServe(const BenchServeFlags& flags) {
  RaiseFileLimit();
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(ReportOptions report_options, ReportOptionsOf(flags));
  net::HttpClientOptions http_options;
  http_options.verify_tls = !flags.insecure;
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start(http_options));
  MR_ASSIGN_OR_RETURN(LoadTarget target, TargetOf(flags));
  WorkloadOptions workload = flags.workload;
  workload.seed = static_cast<uint64_t>(flags.seed);
  MR_RETURN_IF_ERROR(FitToServer(flags, *http, target.headers, workload));
  MR_ASSIGN_OR_RETURN(const auto requests, MakeWorkload(workload));
  MR_ASSIGN_OR_RETURN(const BenchRequest other, OtherRequest(workload, requests.front()));
  MR_ASSIGN_OR_RETURN(target.model, TestRun(flags, *http, target, other, clock));
  const std::string model = target.model;
  LoadClient client(*http, std::move(target), clock);
  WarmUp(client, flags, other);
  PrintTraffic(flags);
  const auto result = Measure(client, flags, requests, clock);
  report_options.duration_s = result.duration_s;
  const Report report = MakeReport(result.outcomes, report_options);
  fmt::print("{}", report.table);
  if (flags.save_result) {
    MR_ASSIGN_OR_RETURN(const std::string path,
                        SaveResult(flags, model, requests.size(), report.json));
    fmt::print("Saved {}\n", path);
  }
  if (report.json["completed"] == 0) return FailedPrecondition("every request failed");
  return OkStatus();
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
  AddBenchServeOptions(*command, flags.get());
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] { return ValidateBenchServe(*flags); };
  command->run = [flags] { return RunBenchServe(*flags); };
  return command;
}

}  // namespace millrace::apps
