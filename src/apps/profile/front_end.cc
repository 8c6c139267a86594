#include "apps/profile/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "apps/bench/load_client.h"
#include "apps/bench/statistics.h"
#include "apps/commands.h"
#include "apps/local_model.h"
#include "cluster/local_cluster.h"
#include "engine/wrapped_stage.h"
#include "net/http_server.h"
#include "serve/service.h"

namespace millrace::apps {
namespace {

constexpr int kStreams = 24, kAtOnce = 3;
constexpr int kPromptTokens = 48, kOutputTokens = 24;
constexpr Duration kPatience = Duration::Seconds(1e9);  // a worker that is slow is not dead
// Of the gaps and delays, at either end: the longest gaps are waits for work, and slow moments of
// the machine are the pace's.
constexpr double kUnlike = 0.2;

struct StepTimes {
  std::vector<double> gaps_s;    // from a step's end to the next step
  std::vector<double> delays_s;  // what a step took longer than it does alone
};

// Nothing but tokens for sequences that are there: it may run again.
bool IsPlain(const StepPlan& plan) {
  return plan.started.empty() && plan.released.empty() && plan.blocks.empty() &&
         plan.swap_out.empty() && plan.swap_in.empty() && plan.copies.empty();
}

// While a step runs the front end hands out the tokens of the one before, and clients read them.
// The same step run once more, before its own tokens are out, has the machine to itself. Its
// worker's thread.
class TimedStage final : public engine::WrappedStage {
 public:
  TimedStage(std::unique_ptr<engine::Stage> inner, StepTimes& times, const Clock& clock)
      : WrappedStage(std::move(inner)), times_(times), clock_(clock) {}

  Status Run(std::span<engine::StagePart> parts) override {
    const Time begin = clock_.Now();
    if (ended_) times_.gaps_s.push_back((begin - *ended_).seconds());
    Status ran = WrappedStage::Run(parts);
    ended_ = clock_.Now();
    const bool plain = std::ranges::all_of(parts, [](const auto& p) { return IsPlain(*p.plan); });
    if (!ran.ok() || !plain) return ran;
    const Duration served = *ended_ - begin;
    ran = WrappedStage::Run(parts);
    const Time again = clock_.Now();
    times_.delays_s.push_back((served - (again - *ended_)).seconds());
    ended_ = again;
    return ran;
  }

 private:
  StepTimes& times_;
  const Clock& clock_;
  std::optional<Time> ended_;
};

// Notes how long the cell took to a request's first token. A prompt's first token says whose.
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

cluster::CellOptions CellOptionsFor(const FrontEndOptions& options) {
  cluster::CellOptions cell;
  cluster::ControllerOptions& c = cell.controller;
  c.num_layers = options.spec.num_layers;
  c.silent_limit = c.stuck_limit = c.first_batch_limit = kPatience;
  sched::SchedulerOptions& scheduler = c.scheduler;
  scheduler.max_num_seqs = kAtOnce;
  scheduler.max_num_batched_tokens = std::min(kAtOnce * kPromptTokens, options.max_batched_tokens);
  scheduler.max_model_len = options.max_model_len;
  scheduler.prefix_caching = false;
  return cell;
}

cluster::ShardLoader LoaderOf(const FrontEndOptions& options,
                              std::shared_ptr<engine::Stage> stage) {
  cluster::LoadedShard loaded;
  loaded.facts.kv_bytes_per_token_layer = options.spec.KvBytesPerToken() / options.spec.num_layers;
  loaded.facts.kv_bytes = 2 * kAtOnce * options.max_model_len * options.spec.KvBytesPerToken();
  loaded.stage = std::move(stage);
  return [loaded](const auto&, const auto&, const auto&) { return loaded; };
}

// Of the values between both ends.
double MiddleMean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto end = static_cast<size_t>(kUnlike * static_cast<double>(values.size()));
  const auto kept = std::span(values).subspan(end, values.size() - 2 * end);
  return std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

}  // namespace

Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<engine::Stage> stage, const Clock& clock) {
  if (options.max_model_len < kPromptTokens + kOutputTokens) {
    return FailedPrecondition(
        fmt::format("needs contexts of {} tokens, the profile's longest is {}",
                    kPromptTokens + kOutputTokens, options.max_model_len));
  }
  MR_ASSIGN_OR_RETURN(const auto text, LoadModelText({.model = options.model}, ""));
  StepTimes times;  // written by the worker's thread, which ends before it is read
  std::vector<double> added_s;
  {
    auto timed_stage = std::make_shared<TimedStage>(std::move(stage), times, clock);
    MR_ASSIGN_OR_RETURN(const auto here,
                        cluster::LocalCluster::Start(CellOptionsFor(options), clock));
    Join join;
    join.name = "this-process";
    here->AddWorker(std::move(join), LoaderOf(options, std::move(timed_stage)));
    TimedGenerator timed(here->cell(), clock);
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
  const double delay_s = std::max(0.0, MiddleMean(std::move(times.delays_s)));
  return cost::FrontEnd{.request_s = std::max(0.0, Median(std::move(added_s))),
                        .step_s = MiddleMean(std::move(times.gaps_s)) + delay_s};
}

}  // namespace millrace::apps
