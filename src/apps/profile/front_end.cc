#include "apps/profile/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "apps/bench/load_client.h"
#include "apps/bench/statistics.h"
#include "apps/commands.h"
#include "apps/local_model.h"
#include "engine/engine.h"
#include "net/http_server.h"
#include "serve/service.h"

namespace millrace::apps {
namespace {

constexpr int kStreams = 24, kAtOnce = 3;
constexpr int kPromptTokens = 48, kOutputTokens = 24;
constexpr double kGapsCounted = 0.98;  // the longest are waits for work

// Times what lies between a step's result and the next step. One thread, and Gaps when it is gone.
class TimedExecutor final : public engine::Executor {
 public:
  TimedExecutor(std::unique_ptr<engine::Executor> inner, std::vector<double>& gaps_s,
                const Clock& clock)
      : inner_(std::move(inner)), gaps_s_(gaps_s), clock_(clock) {}

  const engine::ExecutorTraits& traits() const override { return inner_->traits(); }
  void Submit(const StepPlan& plan) override {
    if (ended_) gaps_s_.push_back((clock_.Now() - *ended_).seconds());
    inner_->Submit(plan);
  }
  const StepResult& Wait() override {
    const StepResult& result = inner_->Wait();
    ended_ = clock_.Now();
    return result;
  }

 private:
  const std::unique_ptr<engine::Executor> inner_;
  std::vector<double>& gaps_s_;
  const Clock& clock_;
  std::optional<Time> ended_;
};

// Notes how long the engine took to a request's first token. A prompt's first token says whose.
class TimedGenerator final : public engine::Generator {
 public:
  TimedGenerator(engine::Generator& inner, const Clock& clock)
      : inner_(inner), clock_(clock), to_first_s_(kStreams) {}

  Result<RequestId> Submit(engine::EngineRequest request, engine::OutputSink sink) override {
    const auto stream = static_cast<size_t>(request.prompt.front());
    const Time begin = clock_.Now();
    return inner_.Submit(std::move(request),
                         [this, stream, begin, sink = std::move(sink)](RequestOutput&& output) {
                           if (!output.tokens.empty())
                             NoteFirst(stream, (clock_.Now() - begin).seconds());
                           sink(std::move(output));
                         });
  }
  void Abort(RequestId request, std::optional<int> index) override { inner_.Abort(request, index); }
  engine::EngineStats Stats() const override { return inner_.Stats(); }
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override {
    return inner_.Inspect(request);
  }
  std::vector<sched::RequestInfo> InspectAll() const override { return inner_.InspectAll(); }
  bool Drain(Duration limit) override { return inner_.Drain(limit); }

  std::vector<std::optional<double>> to_first_s() const {
    std::lock_guard lock(mutex_);
    return to_first_s_;
  }

 private:
  void NoteFirst(size_t stream, double seconds) {
    std::lock_guard lock(mutex_);
    if (stream < to_first_s_.size() && !to_first_s_[stream]) to_first_s_[stream] = seconds;
  }

  engine::Generator& inner_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::vector<std::optional<double>> to_first_s_;  // by stream; guarded by mutex_
};

std::vector<BenchRequest> Streams(int vocab_size) {
  std::vector<BenchRequest> streams(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    std::vector<TokenId>& prompt = streams[static_cast<size_t>(i)].prompt;
    for (int k = 0; k < kPromptTokens; ++k) prompt.push_back((i + 7 * k) % vocab_size);
    streams[static_cast<size_t>(i)].output_len = kOutputTokens;
  }
  return streams;
}

Result<std::vector<Outcome>> Send(uint16_t port, const FrontEndOptions& options,
                                  const Clock& clock) {
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start({}));
  LoadTarget target{.model = "model", .ignore_eos = true};
  MR_ASSIGN_OR_RETURN(target.url,
                      net::ParseUrl(fmt::format("http://127.0.0.1:{}/v1/completions", port)));
  LoadClient client(*http, std::move(target), clock);
  auto outcomes = client.Run(Streams(options.spec.vocab_size), kAtOnce, [](int, int) {}).outcomes;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) return Internal("a stream failed: " + outcome.error);
  }
  return outcomes;
}

sched::SchedulerOptions SchedulerFor(const FrontEndOptions& options) {
  sched::SchedulerOptions scheduler;
  scheduler.max_num_seqs = kAtOnce;
  scheduler.max_num_batched_tokens = kAtOnce * kPromptTokens;
  scheduler.max_model_len = options.max_model_len;
  scheduler.prefix_caching = false;
  return scheduler;
}

double MeanOfShorter(std::vector<double> gaps_s) {
  if (gaps_s.empty()) return 0;
  std::sort(gaps_s.begin(), gaps_s.end());
  gaps_s.resize(std::max<size_t>(1, static_cast<size_t>(kGapsCounted * std::ssize(gaps_s))));
  return std::accumulate(gaps_s.begin(), gaps_s.end(), 0.0) / static_cast<double>(gaps_s.size());
}

}  // namespace

Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<engine::Executor> executor,
                                       const Clock& clock) {
  if (options.max_model_len < kPromptTokens + kOutputTokens) {
    return FailedPrecondition(
        fmt::format("needs contexts of {} tokens, the profile's longest is {}",
                    kPromptTokens + kOutputTokens, options.max_model_len));
  }
  MR_ASSIGN_OR_RETURN(const auto text, LoadModelText({.model = options.model}, ""));
  std::vector<double> gaps_s;  // written by the engine's thread, which ends before it is read
  std::vector<double> added_s;
  {
    MR_ASSIGN_OR_RETURN(
        const auto engine,
        engine::Engine::Start({.scheduler = SchedulerFor(options)},
                              std::make_unique<TimedExecutor>(std::move(executor), gaps_s, clock),
                              clock));
    TimedGenerator timed(*engine, clock);
    serve::Service service({.served_names = {"model"}, .version = Version()}, clock);
    MR_ASSIGN_OR_RETURN(const auto server, net::HttpServer::Start({}, service.Handler()));
    serve::ServedModel served{.engine = &timed, .tokenizer = text->tokenizer};
    served.spec = options.spec;
    served.max_model_len = options.max_model_len;
    service.Ready(std::move(served));
    const auto outcomes = Send(server->port(), options, clock);
    service.Drain(Duration{});
    server->Stop(Duration{});
    if (!outcomes.ok()) return outcomes.status();
    const auto to_first_s = timed.to_first_s();
    for (size_t i = 0; i < outcomes->size(); ++i) {
      if (to_first_s[i]) added_s.push_back((*outcomes)[i].ttft_s - *to_first_s[i]);
    }
  }
  if (added_s.empty()) return Internal("no stream had a first token");
  return cost::FrontEnd{.request_s = std::max(0.0, Median(std::move(added_s))),
                        .step_s = MeanOfShorter(std::move(gaps_s))};
}

}  // namespace millrace::apps
