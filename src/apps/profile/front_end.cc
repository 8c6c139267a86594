#include "apps/profile/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "apps/bench/load_client.h"
#include "apps/cluster/local_model.h"
#include "base/mutex.h"
#include "base/version.h"
#include "cluster/runtime/one_worker.h"
#include "cost/fit.h"
#include "net/http/http_server.h"
#include "serve/service.h"
#include "stage/wrapped_stage.h"

namespace millrace::apps {
namespace {

// Batches of several sizes separate a step's share from a sequence's. A batch has this many streams
// at once; each runs kStreamsInTurn streams one after another.
constexpr std::array kBatches = {1, 3, 8};
constexpr int kStreamsInTurn = 7, kAtOnceMax = kBatches.back();
constexpr int kPromptTokens = 48, kOutputTokens = 24;
// Share of the added times that is cut off at either end: the longest are waits for work, and slow
// moments of the machine belong to the pace. The rest is averaged, because some steps wait for a
// core.
constexpr double kTrimmedShare = 0.2;
constexpr size_t kStepsMin = 8;  // steps of one batch size needed for a result
constexpr double kLeast_s = 1e-9;

// The plan only computes tokens of existing sequences, so it may run again. (Finished ones are
// already gone.)
bool IsPlain(const StepPlan& plan) {
  return plan.started.empty() && plan.blocks.empty() && plan.swap_out.empty() &&
         plan.swap_in.empty() && plan.copies.empty();
}

// Runs each plain step twice. During the first run, the front end delivers the tokens of the
// previous step, and clients read them. The second run has the machine to itself, because the
// step's own tokens are not out yet. Runs on the worker's thread.
class TimedStage final : public stage::WrappedStage {
 public:
  // `requests` counts arrivals; it and `steps` outlive the stage.
  TimedStage(std::unique_ptr<stage::Stage> inner, const std::atomic<int>& requests,
             std::vector<ServedStep>& steps, const Clock& clock)
      : WrappedStage(std::move(inner)), requests_(requests), steps_(steps), clock_(clock) {}

  Status Run(std::span<stage::StagePart> parts) override {
    const Time begin = clock_.Now();
    const std::optional<Time> ended = ended_;
    const int before = requests_;
    Status ran = WrappedStage::Run(parts);
    const int after = requests_;
    ended_ = clock_.Now();
    const bool plain = std::ranges::all_of(parts, [](const auto& p) { return IsPlain(*p.plan); });
    if (!ran.ok() || !plain || !ended) return ran;
    const Duration served = *ended_ - begin;
    ran = WrappedStage::Run(parts);
    const Time again = clock_.Now();
    // Skips the step if a request arrived during the second run, which its work then slowed.
    if (requests_ == after) {
      int sequences = 0;
      for (const stage::StagePart& part : parts) sequences += std::ssize(part.plan->sequences);
      steps_.push_back({.sequences = sequences,
                        .arrivals = after - before,
                        .added_s = (begin - *ended + served - (again - *ended_)).seconds()});
    }
    ended_ = again;
    return ran;
  }

 private:
  const std::atomic<int>& requests_;
  std::vector<ServedStep>& steps_;
  const Clock& clock_;
  std::optional<Time> ended_;
};

// Records how long the controller took to a request's first token. A prompt's first token
// identifies the request.
class TimedGenerator final : public cluster::Generator {
 public:
  TimedGenerator(cluster::Generator& inner, std::atomic<int>& requests, const Clock& clock)
      : inner_(inner), requests_(requests), clock_(clock) {}

  uint64_t DrawnSeed(RequestId id) const override { return inner_.DrawnSeed(id); }
  Result<RequestId> Submit(cluster::GenerationRequest request, cluster::OutputSink sink) override {
    const auto stream = static_cast<size_t>(request.prompt.front());
    const Time begin = clock_.Now();
    ++requests_;
    return inner_.Submit(std::move(request),
                         [this, stream, begin, sink = std::move(sink)](RequestOutput&& output) {
                           if (!output.tokens.empty())
                             NoteFirst(stream, (clock_.Now() - begin).seconds());
                           sink(std::move(output));
                         });
  }
  void Abort(RequestId request, std::optional<int> index) override { inner_.Abort(request, index); }
  cluster::GeneratorStats Stats() const override { return inner_.Stats(); }
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override {
    return inner_.Inspect(request);
  }
  std::optional<TimeAccount> Account(RequestId request) const override {
    return inner_.Account(request);
  }
  std::vector<sched::RequestInfo> InspectAll() const override { return inner_.InspectAll(); }
  bool Drain(Duration limit) override { return inner_.Drain(limit); }

  // Returns the times by stream, of the requests since the last call.
  std::map<size_t, double> TakeToFirst() {
    MutexLock lock(mutex_);
    return std::exchange(to_first_s_, {});
  }

 private:
  void NoteFirst(size_t stream, double seconds) {
    MutexLock lock(mutex_);
    to_first_s_.emplace(stream, seconds);
  }

  cluster::Generator& inner_;
  std::atomic<int>& requests_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<size_t, double> to_first_s_ MR_GUARDED_BY(mutex_);
};

std::vector<BenchRequest> Streams(int count, int vocab_size) {
  std::vector<BenchRequest> streams(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    std::vector<TokenId>& prompt = streams[static_cast<size_t>(i)].prompt;
    for (int k = 0; k < kPromptTokens; ++k) prompt.push_back((i + 7 * k) % vocab_size);
    streams[static_cast<size_t>(i)].output_len = kOutputTokens;
  }
  return streams;
}

Result<std::vector<Outcome>> Send(uint16_t port, int at_once, const FrontEndOptions& options,
                                  const Clock& clock) {
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start({}));
  LoadTarget target{.model = "model", .ignore_eos = true};
  MR_ASSIGN_OR_RETURN(target.url,
                      net::ParseUrl(fmt::format("http://127.0.0.1:{}/v1/completions", port)));
  LoadClient client(*http, std::move(target), clock);
  const auto streams = Streams(at_once * kStreamsInTurn, options.spec.vocab_size);
  auto outcomes = client.Run(streams, at_once, [](int, int) {}).outcomes;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) return Internal("a stream failed: " + outcome.error);
  }
  return outcomes;
}

cluster::ControllerHostOptions ControllerOptionsFor(const FrontEndOptions& options) {
  cluster::ControllerHostOptions host;
  cluster::ControllerOptions& c = host.controller;
  c.num_layers = options.spec.num_layers;
  sched::SchedulerOptions& scheduler = c.scheduler;
  scheduler.max_num_seqs = kAtOnceMax;
  scheduler.max_num_batched_tokens =
      std::min(kAtOnceMax * kPromptTokens, options.max_batched_tokens);
  scheduler.max_model_len = options.max_model_len;
  scheduler.prefix_caching = false;
  return host;
}

cluster::OneWorker WorkerOf(const FrontEndOptions& options, std::shared_ptr<stage::Stage> stage) {
  // Twice what the streams need, and room for the longest request that the controller would accept.
  const int tokens =
      std::max(2 * kAtOnceMax * (kPromptTokens + kOutputTokens), options.max_model_len);
  const int block_size = sched::SchedulerOptions().block_size;
  cluster::OneWorker worker;
  worker.stage = std::move(stage);
  worker.kv_bytes_per_token = options.spec.KvBytesPerToken();
  worker.num_blocks = (tokens + block_size - 1) / block_size;
  return worker;
}

// The mean of the values, without kTrimmedShare of them at either end.
double MiddleMean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto end = static_cast<size_t>(kTrimmedShare * static_cast<double>(values.size()));
  const auto kept = std::span(values).subspan(end, values.size() - 2 * end);
  return std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

}  // namespace

cost::FrontEnd FitFrontEnd(std::span<const ServedStep> steps) {
  std::map<int, std::vector<double>> added_s;  // by sequences, of steps without arrivals
  for (const ServedStep& step : steps) {
    if (step.arrivals == 0) added_s[step.sequences].push_back(step.added_s);
  }
  std::vector<std::vector<double>> rows;
  std::vector<double> means_s;
  for (auto& [sequences, of_size] : added_s) {
    if (of_size.size() < kStepsMin) continue;
    rows.push_back({1, static_cast<double>(sequences)});
    means_s.push_back(std::max(kLeast_s, MiddleMean(std::move(of_size))));
  }
  const auto fit = cost::FitRelative(rows, means_s);
  if (!fit.ok()) return {};  // no size occurred often enough
  cost::FrontEnd out{.step_s = fit->coefficients[0], .sequence_s = fit->coefficients[1]};
  std::vector<double> beyond_s;
  for (const ServedStep& step : steps) {
    if (step.arrivals == 1) {
      beyond_s.push_back(step.added_s - out.step_s - step.sequences * out.sequence_s);
    }
  }
  out.arrival_s = std::max(0.0, MiddleMean(std::move(beyond_s)));
  return out;
}

Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<stage::Stage> stage, const Clock& clock) {
  if (options.max_model_len < kPromptTokens + kOutputTokens) {
    return FailedPrecondition(
        fmt::format("needs contexts of {} tokens, but the profile's longest is {}",
                    kPromptTokens + kOutputTokens, options.max_model_len));
  }
  MR_ASSIGN_OR_RETURN(const auto text, LoadModelText({.model = options.model}, ""));
  std::vector<ServedStep> steps;  // written by the worker's thread, which ends before they are read
  std::vector<double> added_s;
  {
    std::atomic<int> requests = 0;
    auto timed_stage = std::make_shared<TimedStage>(std::move(stage), requests, steps, clock);
    MR_ASSIGN_OR_RETURN(const auto here,
                        cluster::StartOneWorker(ControllerOptionsFor(options),
                                                WorkerOf(options, std::move(timed_stage)), clock));
    TimedGenerator timed(here->host(), requests, clock);
    serve::Service service({.served_names = {"model"}, .version = Version()}, clock);
    MR_ASSIGN_OR_RETURN(const auto server, net::HttpServer::Start({}, service.Handler()));
    serve::ServedModel served{.engine = &timed, .tokenizer = text->tokenizer};
    served.spec = options.spec;
    served.max_model_len = options.max_model_len;
    service.Ready(std::move(served));
    Status sent;
    for (const int at_once : kBatches) {
      const auto outcomes = Send(server->port(), at_once, options, clock);
      sent = outcomes.status();
      if (!sent.ok()) break;
      for (const auto& [stream, to_first_s] : timed.TakeToFirst()) {
        added_s.push_back((*outcomes)[stream].ttft_s - to_first_s);
      }
    }
    service.Drain(Duration{});
    server->Stop(Duration{});
    MR_RETURN_IF_ERROR(sent);
  }
  if (added_s.empty()) return Internal("no stream received a first token");
  cost::FrontEnd front_end = FitFrontEnd(steps);
  front_end.request_s = std::max(0.0, MiddleMean(std::move(added_s)));
  return front_end;
}

}  // namespace millrace::apps
