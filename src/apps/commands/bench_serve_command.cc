// millrace bench serve: puts load on any OpenAI-compatible server, with the table and the JSON keys
// of `vllm bench serve`; docs/cli.md lists which of its flags exist here.
#include <fmt/format.h>

#include <chrono>
#include <climits>
#include <cmath>
#include <ctime>
#include <thread>
#include <utility>

#include "apps/bench/load_client.h"
#include "apps/bench/metrics.h"
#include "apps/bench/prompt_texts.h"
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

constexpr int kTemplateTokens = 64;  // that a chat template may add to a prompt
constexpr Duration kReadyRetry = Duration::Seconds(1);

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

// The name of the model in the requests, and that in the report.
struct ModelNames {
  std::string served, reported;
};

Result<ModelNames> NamesOfModel(const BenchServeFlags& flags, net::HttpClient& http,
                                const net::HttpHeaders& headers) {
  ModelNames names{flags.served_model_name, flags.model};
  if (names.served.empty() && names.reported.empty()) {
    MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
    MR_ASSIGN_OR_RETURN(const Json listed, ListedModels(http, base, headers));
    names.reported = listed[0]["id"].get<std::string>();
  }
  if (names.served.empty()) names.served = names.reported;
  if (names.reported.empty()) names.reported = names.served;
  return names;
}

// Finds the model and sends one request, which must succeed. `announced`: that has been said.
Result<ModelNames> TryOnce(const BenchServeFlags& flags, net::HttpClient& http, LoadTarget& target,
                           const BenchRequest& request, const Clock& clock, bool& announced) {
  MR_ASSIGN_OR_RETURN(ModelNames names, NamesOfModel(flags, http, target.headers));
  target.model = names.served;
  if (!std::exchange(announced, true)) {
    fmt::print("Starting initial single prompt test run...\n");
    std::fflush(stdout);
  }
  const auto test = LoadClient(http, target, clock).Run({request}, std::nullopt, [](int, int) {});
  if (!test.outcomes[0].ok()) {
    return FailedPrecondition("the initial test run failed: " + test.outcomes[0].error);
  }
  return names;
}

// How many tokens a request to the model may have with its answer. nullopt: the server does not
// say.
Result<std::optional<int>> ContextOf(const BenchServeFlags& flags, net::HttpClient& http,
                                     const net::HttpHeaders& headers) {
  MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
  const std::string& name = flags.served_model_name.empty() ? flags.model : flags.served_model_name;
  const auto listed = ListedModels(http, base, headers);
  if (listed.status().code() == StatusCode::kFailedPrecondition && !name.empty()) {
    return std::optional<int>();  // a server without that route
  }
  MR_RETURN_IF_ERROR(listed.status());
  for (const Json& model : *listed) {
    const bool meant = name.empty() || (model.is_object() && model.value("id", Json()) == name);
    if (!meant || !model.is_object()) continue;
    const auto length = model.find("max_model_len");
    if (length == model.end() || !length->is_number_integer() || *length < 2 || *length > INT_MAX) {
      return std::optional<int>();
    }
    return std::optional(length->get<int>());
  }
  return std::optional<int>();
}

// Calls `attempt` until it succeeds, for the time of --ready-check-timeout-sec.
template <typename Attempt>
auto UntilReady(const BenchServeFlags& flags, const Clock& clock, const Attempt& attempt)
    -> decltype(attempt()) {
  const Time deadline = clock.Now() + Duration::Seconds(flags.ready_check_timeout_s);
  for (;;) {
    auto result = attempt();
    if (result.ok() || clock.Now() + kReadyRetry >= deadline) return result;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kReadyRetry.ns));
  }
}

// The default lengths are those of `vllm bench serve`, which a small context cannot hold.
Status FitToServer(const BenchServeFlags& flags, net::HttpClient& http,
                   const net::HttpHeaders& headers, const Clock& clock, WorkloadOptions& workload) {
  const bool input = flags.given.contains("random-input-len");
  const bool output = flags.given.contains("random-output-len");
  if (workload.dataset != DatasetName::kRandom || (input && output)) return OkStatus();
  MR_ASSIGN_OR_RETURN(const std::optional<int> context,
                      UntilReady(flags, clock, [&] { return ContextOf(flags, http, headers); }));
  if (!context) return OkStatus();
  const int usable = *context - (flags.chat() ? kTemplateTokens : 0);
  if (!FitLengths(usable, input, output, workload)) return OkStatus();
  fmt::print("The server's context has {} tokens, so requests have {} and ask for {}.\n", *context,
             workload.input_len, workload.output_len);
  return OkStatus();
}

// Sends the first request again and again for the time of --ready-check-timeout-sec.
Result<ModelNames> WaitUntilReady(const BenchServeFlags& flags, net::HttpClientOptions options,
                                  LoadTarget& target, BenchRequest request, const Clock& clock) {
  request.arrival_s = 0;
  bool announced = false;
  const Duration limit = Duration::Seconds(flags.ready_check_timeout_s);
  if (limit.ns > 0) options.read_timeout = std::min(options.read_timeout, limit);
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start(options));
  MR_ASSIGN_OR_RETURN(ModelNames names, UntilReady(flags, clock, [&] {
                        return TryOnce(flags, *http, target, request, clock, announced);
                      }));
  fmt::print("Initial test run completed.\n");
  return names;
}

// Requests like the first of the run.
void WarmUp(LoadClient& client, const BenchServeFlags& flags, BenchRequest request) {
  if (flags.num_warmups == 0) return;
  request.arrival_s = 0;
  fmt::print("Warming up with {} requests...\n", flags.num_warmups);
  const std::vector<BenchRequest> warmups(static_cast<size_t>(flags.num_warmups), request);
  client.Run(warmups, flags.max_concurrency, [](int, int) {});
  fmt::print("Warmup run completed.\n");
}

void PrintTraffic(const BenchServeFlags& flags, const WorkloadOptions& w) {
  fmt::print("Starting main benchmark run...\n");
  if (w.dataset == DatasetName::kTrace && std::isinf(w.request_rate)) {
    fmt::print("Using the timestamps of the trace file.\n");
  } else {
    if (w.ramp_up) {
      fmt::print("Traffic ramp-up strategy: {}, from {} to {} requests per second.\n",
                 NameOf(w.ramp_up->shape), w.ramp_up->start_rps, w.ramp_up->end_rps);
    } else {
      fmt::print("Traffic request rate: {}\n", w.request_rate);
    }
    fmt::print("Burstiness factor: {} ({})\n", w.burstiness,
               w.burstiness == 1 ? "Poisson process" : "Gamma distribution");
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

// With --tokenizer, prompts are texts that have as many tokens as their ids.
Result<std::vector<BenchRequest>> RequestsFor(const BenchServeFlags& flags,
                                              WorkloadOptions workload) {
  if (flags.tokenizer.empty()) return MakeWorkload(workload);
  const bool limited = flags.given.contains("random-vocab-size");
  MR_ASSIGN_OR_RETURN(
      const auto texts,
      PromptTexts::Load(flags.tokenizer,
                        limited ? std::optional(workload.vocab_size) : std::nullopt));
  workload.vocab_size = texts.vocab_size();
  MR_ASSIGN_OR_RETURN(auto requests, MakeWorkload(workload));
  // The server adds what begins a text to a completion; to a chat, its template's tokens come on
  // top.
  MR_RETURN_IF_ERROR(texts.Apply(workload.seed, !flags.chat(), requests));
  return requests;
}

double WallSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

Status RunBenchServe(const BenchServeFlags& flags) {
  RaiseFileLimit();
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(ReportOptions report_options, ReportOptionsOf(flags));
  WorkloadOptions workload = WorkloadOf(flags);
  net::HttpClientOptions http_options;
  http_options.verify_tls = !flags.insecure;
  MR_ASSIGN_OR_RETURN(LoadTarget target, TargetOf(flags));
  MR_ASSIGN_OR_RETURN(const auto first_http, net::HttpClient::Start(http_options));
  MR_RETURN_IF_ERROR(FitToServer(flags, *first_http, target.headers, clock, workload));
  MR_ASSIGN_OR_RETURN(const auto requests, RequestsFor(flags, workload));
  MR_ASSIGN_OR_RETURN(const ModelNames names,
                      WaitUntilReady(flags, http_options, target, requests.front(), clock));
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start(http_options));
  LoadClient client(*http, std::move(target), clock);
  WarmUp(client, flags, requests.front());
  PrintTraffic(flags, workload);
  const double started_s = WallSeconds();
  const auto result = Measure(client, flags, requests, clock);
  report_options.duration_s = result.duration_s;
  Report report = MakeReport(result.outcomes, report_options);
  fmt::print("{}", report.table);
  if (workload.ramp_up) {
    report.json[kRateChangesKey] = RateChangeEvents(*workload.ramp_up, requests, started_s);
  }
  if (flags.saves()) {
    const Json header = ResultHeader(flags, names.reported, requests.size(), std::time(nullptr));
    MR_ASSIGN_OR_RETURN(const std::string path,
                        SaveResult(flags, names.reported, header, report.json));
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
