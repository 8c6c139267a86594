// millrace bench throughput and latency: measure the controller of this process alone, without
// HTTP.
#include <fmt/format.h>

#include <array>
#include <set>

#include "apps/cli/parse.h"
#include "apps/cluster/local_model.h"
#include "apps/commands/commands.h"
#include "apps/commands/workload_flags.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/statistics.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr std::array<double, 6> kPercentiles = {10, 25, 50, 75, 90, 99};

struct ThroughputFlags {
  EngineFlags engine;
  WorkloadOptions workload;
  int64_t workload_seed = 0;
  std::string output_json;
  std::set<std::string> given;
};

struct LatencyFlags {
  EngineFlags engine;
  int input_len = 32, output_len = 128, batch_size = 8, n = 1;
  int num_iters_warmup = 10, num_iters = 30;
  std::string output_json;
};

struct Run {
  double elapsed_s = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
};

// Shared between the controller's thread and the command's.
struct Tally {
  Mutex mutex;
  CondVar changed;
  int under_way MR_GUARDED_BY(mutex) = 0;     // sequences
  int64_t finished MR_GUARDED_BY(mutex) = 0;  // sequences
  int64_t output_tokens MR_GUARDED_BY(mutex) = 0;
  Status error MR_GUARDED_BY(mutex);
};

cluster::OutputSink CountInto(Tally& tally, Progress* progress) {
  return [&tally, progress](RequestOutput&& output) {
    MutexLock lock(tally.mutex);
    tally.output_tokens += static_cast<int64_t>(output.tokens.size());
    if (!output.finish) return;
    if (!output.error.ok()) tally.error = output.error;
    --tally.under_way;
    ++tally.finished;
    if (progress != nullptr) progress->Update(tally.finished);
    tally.changed.notify_all();
  };
}

// Exactly output_len tokens for each request, `n` sequences of each. Submits at most what the
// controller's queue takes at once.
Result<Run> RunAll(cluster::Generator& engine, const std::vector<BenchRequest>& requests, int n,
                   Progress* progress, const Clock& clock) {
  constexpr int kUnderWayMax = 2048;
  Tally tally;
  Run run;
  const Time start = clock.Now();
  Status submitted;
  for (const BenchRequest& request : requests) {
    {
      MutexLock lock(tally.mutex);
      tally.changed.wait(
          lock, [&tally]() MR_REQUIRES(tally.mutex) { return tally.under_way < kUnderWayMax; });
      tally.under_way += n;
    }
    cluster::GenerationRequest r;
    r.prompt = request.prompt;
    r.params.n = n;
    r.params.max_tokens = request.output_len;
    r.params.ignore_eos = true;
    run.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    submitted = engine.Submit(std::move(r), CountInto(tally, progress)).status();
    if (submitted.ok()) continue;
    MutexLock lock(tally.mutex);
    tally.under_way -= n;
    break;
  }
  MutexLock lock(tally.mutex);
  tally.changed.wait(lock, [&tally]() MR_REQUIRES(tally.mutex) { return tally.under_way == 0; });
  MR_RETURN_IF_ERROR(submitted);
  MR_RETURN_IF_ERROR(tally.error);
  run.elapsed_s = (clock.Now() - start).seconds();
  run.output_tokens = tally.output_tokens;
  return run;
}

// Tokenizes the texts of a custom workload: there is no server to do it.
Status Tokenize(const LocalModel& model, std::vector<BenchRequest>& requests) {
  for (BenchRequest& request : requests) {
    if (request.prompt_text) {
      MR_ASSIGN_OR_RETURN(request.prompt, model.tokenizer->Encode(*request.prompt_text, {}));
    }
    for (TokenId id : request.prompt) {
      if (id < model.spec.vocab_size) continue;
      return InvalidArgument(
          fmt::format("token {} is outside the model's vocabulary of {}; lower --random-vocab-size",
                      id, model.spec.vocab_size));
    }
    const auto tokens = static_cast<int>(request.prompt.size()) + request.output_len;
    if (tokens <= model.kv.max_model_len) continue;
    return InvalidArgument(fmt::format(
        "a request of {} + {} tokens does not fit the context of {}; lower the lengths or raise "
        "--max-model-len",
        request.prompt.size(), request.output_len, model.kv.max_model_len));
  }
  return OkStatus();
}

Status WriteJson(const std::string& path, const Json& json) {
  return path.empty() ? OkStatus() : WriteFileAtomically(path, DumpJson(json) + "\n");
}

Status RunThroughput(const ThroughputFlags& flags) {
  const SteadyClock clock;
  WorkloadOptions workload = flags.workload;
  workload.seed = static_cast<uint64_t>(flags.workload_seed);
  MR_ASSIGN_OR_RETURN(auto requests, MakeWorkload(workload));
  MR_ASSIGN_OR_RETURN(const auto model, LoadWithProgress(flags.engine, {}, clock));
  fmt::print("{}", Summary(*model));
  MR_RETURN_IF_ERROR(Tokenize(*model, requests));
  const auto count = static_cast<int64_t>(requests.size());
  Progress progress("Requests", ProgressUnit::kRequests, count, stderr,
                    ProgressStyle::ForStream(stderr), clock);
  MR_ASSIGN_OR_RETURN(const Run run, RunAll(*model->engine, requests, 1, &progress, clock));
  progress.Finish();
  const auto total = static_cast<double>(run.prompt_tokens + run.output_tokens);
  const double requests_per_s = static_cast<double>(count) / run.elapsed_s;
  fmt::print("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n",
             requests_per_s, total / run.elapsed_s,
             static_cast<double>(run.output_tokens) / run.elapsed_s);
  fmt::print("Total num prompt tokens:  {}\nTotal num output tokens:  {}\n", run.prompt_tokens,
             run.output_tokens);
  return WriteJson(flags.output_json, {{"elapsed_time", run.elapsed_s},
                                       {"num_requests", count},
                                       {"total_num_tokens", run.prompt_tokens + run.output_tokens},
                                       {"requests_per_second", requests_per_s},
                                       {"tokens_per_second", total / run.elapsed_s}});
}

std::vector<BenchRequest> LatencyBatch(const LatencyFlags& flags, int vocab_size) {
  std::vector<BenchRequest> batch(static_cast<size_t>(flags.batch_size));
  Rng rng(flags.engine.seed.value_or(0));
  for (BenchRequest& request : batch) {
    request.output_len = flags.output_len;
    for (int i = 0; i < flags.input_len; ++i) {
      request.prompt.push_back(static_cast<TokenId>(rng.Between(0, vocab_size - 1)));
    }
  }
  return batch;
}

Status ReportLatency(const LatencyFlags& flags, const std::vector<double>& latencies) {
  fmt::print("Avg latency: {} seconds\nStd latency: {} seconds\n", Mean(latencies),
             StdDev(latencies));
  Json percentiles = Json::object();
  for (double p : kPercentiles) {
    const double value = Percentile(latencies, p);
    fmt::print("{}% percentile latency: {} seconds\n", p, value);
    percentiles[FormatReal(p)] = value;
  }
  return WriteJson(flags.output_json, {{"avg_latency", Mean(latencies)},
                                       {"std_latency", StdDev(latencies)},
                                       {"latencies", latencies},
                                       {"percentiles", percentiles}});
}

Status RunLatency(const LatencyFlags& flags) {
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(const auto model, LoadWithProgress(flags.engine, {}, clock));
  fmt::print("{}", Summary(*model));
  std::vector<BenchRequest> batch = LatencyBatch(flags, model->spec.vocab_size);
  MR_RETURN_IF_ERROR(Tokenize(*model, batch));
  const int rounds = flags.num_iters_warmup + flags.num_iters;
  Progress progress("Rounds", ProgressUnit::kRequests, rounds, stderr,
                    ProgressStyle::ForStream(stderr), clock);
  std::vector<double> latencies;
  for (int i = 0; i < rounds; ++i) {
    MR_ASSIGN_OR_RETURN(const Run run, RunAll(*model->engine, batch, flags.n, nullptr, clock));
    if (i >= flags.num_iters_warmup) latencies.push_back(run.elapsed_s);
    progress.Update(i + 1);
  }
  progress.Finish();
  return ReportLatency(flags, latencies);
}

void AddOutputJson(Command& command, std::string* target) {
  Option option = TextOption("output-json", "FILE", target);
  option.kind = ValueKind::kFile;
  command.Add("Report", std::move(option), "Write the numbers as JSON");
}

std::unique_ptr<Command> MakeThroughputCommand() {
  auto command = std::make_unique<Command>();
  command->name = "throughput";
  command->summary = "Measure the engine alone: tokens per second of a whole workload";
  command->description =
      "Runs a workload through a model in this process, all requests at once, and prints tokens "
      "per second. HTTP and text processing are not involved.";
  command->log_level = "warning";
  command->examples = {
      {"millrace bench throughput models/demo --input-len 128 --output-len 64 --num-prompts 100",
       "100 random prompts"},
      {"millrace bench throughput models/demo --dataset-name orca --num-prompts 50",
       "the workload of the Orca paper"}};
  auto flags = std::make_shared<ThroughputFlags>();
  AddEngineOptions(*command, &flags->engine);
  AddWorkloadOptions(*command, &flags->workload);
  command->Add("Workload", IntOption("seed", "N", &flags->workload_seed, 0, INT64_MAX),
               "Seed of the prompts and lengths");
  AddOutputJson(*command, &flags->output_json);
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] {
    MR_RETURN_IF_ERROR(ValidateEngineFlags(flags->engine));
    return ValidateWorkload(flags->workload, flags->given);
  };
  command->run = [flags] { return RunThroughput(*flags); };
  return command;
}

std::unique_ptr<Command> MakeLatencyCommand() {
  auto command = std::make_unique<Command>();
  command->name = "latency";
  command->summary = "Measure the engine alone: seconds for one fixed batch";
  command->description =
      "Runs the same batch again and again, each time until its last token, and prints the "
      "distribution of the time it took.";
  command->log_level = "warning";
  command->examples = {
      {"millrace bench latency models/demo --batch-size 1 --input-len 32 --output-len 128",
       "one sequence alone"}};
  auto flags = std::make_shared<LatencyFlags>();
  flags->engine.prefix_caching = false;  // repeated prompts would hit the prefix cache
  AddEngineOptions(*command, &flags->engine);
  AddEngineSeedOption(*command, &flags->engine);
  constexpr char kGroup[] = "Workload";
  constexpr int kTokensMax = 1 << 22;
  command->Add(kGroup, IntOption("input-len", "TOKENS", &flags->input_len, 1, kTokensMax),
               "Tokens of each prompt");
  command->Add(kGroup, IntOption("output-len", "TOKENS", &flags->output_len, 1, kTokensMax),
               "Tokens of each answer");
  command->Add(kGroup, IntOption("batch-size", "N", &flags->batch_size, 1, 65536), "Prompts");
  command->Add(kGroup, IntOption("n", "N", &flags->n, 1, kSequencesPerRequestMax),
               "Answers to each prompt");
  command->Add(kGroup, IntOption("num-iters-warmup", "N", &flags->num_iters_warmup, 0, 1 << 20),
               "Rounds before the measurement");
  command->Add(kGroup, IntOption("num-iters", "N", &flags->num_iters, 1, 1 << 20),
               "Rounds measured");
  AddOutputJson(*command, &flags->output_json);
  AddGeneralOptions(*command);
  command->validate = [flags] { return ValidateEngineFlags(flags->engine); };
  command->run = [flags] { return RunLatency(*flags); };
  return command;
}

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() {
  auto command = std::make_unique<Command>();
  command->name = "bench";
  command->summary = "Measure a server, or the engine alone";
  command->description = "Benchmarks whose output follows 'vllm bench'.";
  command->examples = {
      {"millrace bench serve --num-prompts 100 --request-rate 4", "a running server"},
      {"millrace bench throughput models/demo --input-len 128 --output-len 64",
       "the engine, without a server"}};
  command->children.push_back(MakeBenchServeCommand());
  command->children.push_back(MakeThroughputCommand());
  command->children.push_back(MakeLatencyCommand());
  return command;
}

}  // namespace millrace::apps
