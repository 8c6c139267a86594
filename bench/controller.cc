// The controller's own cost: the CPU time of one decode step, without network and workers.
//
//   build/release/bench/controller_cost [--pipelines 16] [--stages 4] [--requests 10000]
//
// Method: a plan of `pipelines` chains of `stages` stages, with a simulated worker for each stage;
// requests are routed over the chains. Workers answer at once: every step that the controller sends
// comes back as its last hop's StepDone. Measured is the thread's CPU time (so that a busy machine
// does not count) of Receive, Advance, TakeActions and TakeOutputs for that answer, which includes
// copying the next step's plan into its message. Divided by the sequences of the step, it is the
// cost per running request and step. Ticks (every 50 ms) and heartbeats (of each worker every 250
// ms) come at the rate of stages that take 12.5 ms per step; they are counted separately, and with
// the steps in "all in all". Steps that compute prompts are the warm-up. Prompts differ in length,
// so that block borders fall evenly. Target: at most 0.5 us per running request per step. The last
// line is the CPU time of Submit for a new request.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/statistics.h"
#include "bench/machine.h"
#include "cluster/control/controller_core.h"

namespace millrace::bench {
namespace {

struct Options {
  int pipelines = 16, stages = 4, requests = 10'000;
  int tokens = 100, runs = 5;
  bool prefers_cached = true;  // of ControllerOptions
};

constexpr int kPromptTokens = 128;
constexpr int kBlockSize = 16;
constexpr int kWarmTokens = 20;
constexpr int kLeadTokens = 400;  // of the requests whose prompts are computed first
constexpr double kTargetMicros = 0.5;
// Modelled time of a stage.
constexpr Duration kStageTime = Duration::Seconds(0.0125);
constexpr int kStagesPerTick = 4, kStagesPerBeat = 20;

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

double CpuMicros() { return Now(Clock::kCallerCpu) * 1e6; }

// Parallel chains, each with the same share of the requests.
Plan ChainsPlan(const Options& options) {
  Plan plan;
  plan.model = "m";
  plan.num_layers = options.stages;
  plan.tokens_per_s = plan.tokens_per_s_bound = options.pipelines;
  for (int way = 0; way < options.pipelines; ++way) {
    for (int i = 0; i < options.stages; ++i) {
      const int stage = way * options.stages + i;
      plan.stages.push_back({.layers = {i, i + 1}});
      plan.edges.push_back({i == 0 ? std::optional<int>() : stage - 1, stage, 1});
    }
    plan.edges.push_back({(way + 1) * options.stages - 1, std::nullopt, 1});
  }
  return plan;
}

// The controller, and workers that answer at once.
class Harness {
 public:
  explicit Harness(const Options& options) : options_(options) {
    const int each = (options.requests + options.pipelines - 1) / options.pipelines;
    const int length =
        kPromptTokens + kBlockSize + kWarmTokens + kLeadTokens + options.tokens * options.runs;
    blocks_ = int64_t{each + 64} * (length / kBlockSize + 2);
    cluster::ControllerOptions o;
    o.term = Term(1);
    o.model = "m";
    o.num_layers = options.stages;
    o.plan = ChainsPlan(options);
    o.waiting_max = options.requests;
    o.scheduler.block_size = kBlockSize;
    o.scheduler.max_model_len = length;
    o.scheduler.max_num_seqs = (each + options.stages - 1) / options.stages;
    o.scheduler.max_num_batched_tokens = 8192;
    o.scheduler.max_waiting = options.requests;
    o.prefers_cached = options.prefers_cached;
    controller_ = Must(cluster::ControllerCore::Create(std::move(o)));
    output_tokens_ = length - kPromptTokens - kBlockSize;
    for (int w = 1; w <= options.pipelines * options.stages; ++w) {
      Join join;
      join.name = fmt::format("w{}", w);
      join.address.incarnation = Incarnation(static_cast<uint64_t>(w));
      controller_->Receive(ConnectionId(static_cast<uint64_t>(w)), join, now_);
    }
    Follow();
  }

  // Starts all requests until each is at least `kWarmTokens` into its output.
  void Start() {
    SamplingParams params;
    params.max_tokens = output_tokens_;
    for (int i = 0; i < options_.requests; ++i) {
      // Spreads the lengths evenly over every pipeline: chains take requests in turn.
      const int length = kPromptTokens + (i / options_.pipelines) % kBlockSize;
      sched::NewRequest request;
      request.id = RequestId(static_cast<uint64_t>(i) + 1);
      request.prompt = std::make_shared<const std::vector<TokenId>>(static_cast<size_t>(length), i);
      request.params = std::make_shared<const SamplingParams>(params);
      const double begin = CpuMicros();
      const Status submitted = controller_->Submit(std::move(request), now_);
      submit_micros_.push_back(CpuMicros() - begin);
      MR_CHECK(submitted.ok()) << submitted.ToString();
      Follow();
    }
    while (prompts_left_ > 0) Round(nullptr);
    for (int64_t before = delivered_;
         delivered_ < before + int64_t{kWarmTokens} * options_.requests;) {
      Round(nullptr);
    }
    MR_CHECK(controller_->Stats().running == options_.requests) << "some requests do not run";
  }

  struct Figures {
    std::vector<double> step_micros, request_micros;  // per step; per sequence of the step
    double steps_micros = 0, upkeep_micros = 0;       // sums
    int64_t sequences = 0;
  };
  Figures Run() {
    Figures figures;
    while (figures.sequences < int64_t{options_.tokens} * options_.requests) Round(&figures);
    return figures;
  }

  int64_t pipelines() const { return std::ssize(controller_->Describe(now_).pipelines); }
  // Of each new request: checked, placed and added to a pipeline.
  const std::vector<double>& submit_micros() const { return submit_micros_; }
  int sequences_max() const { return sequences_max_; }

 private:
  struct Sent {
    ConnectionId answers;  // the last hop
    PipelineStep step;
  };

  // Simulates one stage time: each pipeline's oldest step comes back.
  void Round(Figures* figures) {
    now_ = now_ + kStageTime;
    ++rounds_;
    std::map<PipelineId, bool> answered;
    std::deque<Sent> later;
    std::deque<Sent> due;
    for (Sent& sent : in_flight_) {
      const bool first = answered.emplace(sent.step.pipeline, true).second;
      (first ? due : later).push_back(std::move(sent));
    }
    in_flight_ = std::move(later);
    for (const Sent& sent : due) Answer(sent, figures);
    Upkeep(figures);
  }

  void Answer(const Sent& sent, Figures* figures) {
    const StepPlan& plan = *sent.step.plan;
    StepDone done{.pipeline = sent.step.pipeline, .result = {.id = plan.id}};
    done.result.sequences.resize(plan.sequences.size());
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      done.result.sequences[i].id = plan.sequences[i].id;
      done.result.sequences[i].token = static_cast<TokenId>(rounds_ % 1000);
      prompts_left_ -= plan.sequences[i].start == 0;
    }
    ToController message = std::move(done);
    const double begin = CpuMicros();
    controller_->Receive(sent.answers, std::move(message), now_);
    controller_->Advance(now_);
    controller_->TakeActions(actions_);
    controller_->TakeOutputs(outputs_);
    const double micros = CpuMicros() - begin;
    if (figures != nullptr) {
      const auto sequences = std::ssize(plan.sequences);
      figures->step_micros.push_back(micros);
      figures->request_micros.push_back(micros / static_cast<double>(sequences));
      figures->steps_micros += micros;
      figures->sequences += sequences;
      MR_CHECK(std::ssize(plan.tokens) == sequences) << "a prompt among the decodes";
    }
    Obey();
  }

  void Upkeep(Figures* figures) {
    const bool beats = rounds_ % kStagesPerBeat == 0, tick = rounds_ % kStagesPerTick == 0;
    const double begin = CpuMicros();
    if (beats) {
      for (int w = 1; w <= options_.pipelines * options_.stages; ++w) {
        Heartbeat beat;
        beat.incarnation = Incarnation(static_cast<uint64_t>(w));
        beat.sequence = beat.steps_done = rounds_;
        controller_->Beat(ConnectionId(static_cast<uint64_t>(w)), beat, now_);
      }
    }
    if (tick) {
      controller_->Tick(now_);
      controller_->Advance(now_);
      controller_->TakeActions(actions_);
      controller_->TakeOutputs(outputs_);
    }
    if (figures != nullptr) figures->upkeep_micros += CpuMicros() - begin;
    Obey();
  }

  void Follow() {
    controller_->Advance(now_);
    controller_->TakeActions(actions_);
    controller_->TakeOutputs(outputs_);
    Obey();
  }

  // Workers do what was sent to them.
  void Obey() {
    do {
      std::vector<cluster::ControllerAction> now;
      now.swap(actions_);
      for (cluster::ControllerAction& action : now) {
        auto* send = std::get_if<cluster::SendToWorker>(&action);
        MR_CHECK(send != nullptr) << "a worker was rejected";
        auto* step = std::get_if<PipelineStep>(&send->message);
        if (step != nullptr && step->plan->IsTest()) {
          controller_->Receive(last_hops_.at(step->pipeline),
                               StepDone{step->pipeline, {.id = kTestStep}}, now_);
          controller_->Advance(now_);
        } else if (step != nullptr) {
          sequences_max_ = std::max(sequences_max_, static_cast<int>(step->plan->sequences.size()));
          in_flight_.push_back({last_hops_.at(step->pipeline), std::move(*step)});
        } else {
          Answer(send->to, send->message);
        }
      }
      for (const RequestOutput& output : outputs_) {
        MR_CHECK(!output.finish) << output.error.ToString();
        delivered_ += std::ssize(output.tokens);
      }
      outputs_.clear();
      if (actions_.empty()) actions_ = std::move(now);  // reuses its memory
      actions_.clear();
      controller_->TakeActions(actions_);
    } while (!actions_.empty());
  }

  void Answer(ConnectionId from, const ToWorker& message) {
    if (const auto* load = std::get_if<LoadShard>(&message)) {
      ShardLoaded loaded{.shard = load->shard, .kv_bytes_per_token_layer = 1};
      loaded.kv_bytes = blocks_ * kBlockSize * 2 * load->layers.size();
      controller_->Receive(from, std::move(loaded), now_);
    } else if (const auto* open = std::get_if<OpenPipeline>(&message)) {
      const uint64_t last = open->hops.back().ranks.front().incarnation.value();
      last_hops_[open->pipeline] = ConnectionId(last);
      controller_->Receive(from, PipelineOpened{open->pipeline, OkStatus()}, now_);
    } else {
      return;
    }
    controller_->Advance(now_);
  }

  const Options options_;
  int64_t blocks_ = 0;
  int output_tokens_ = 0;
  std::unique_ptr<cluster::ControllerCore> controller_;
  Time now_;
  uint64_t rounds_ = 0;
  int64_t prompts_left_ = options_.requests, delivered_ = 0;
  int sequences_max_ = 0;
  std::deque<Sent> in_flight_;
  std::map<PipelineId, ConnectionId> last_hops_;
  std::vector<double> submit_micros_;
  std::vector<cluster::ControllerAction> actions_;
  std::vector<RequestOutput> outputs_;
};

void Run(const Options& options) {
  Harness harness(options);
  harness.Start();
  std::vector<double> medians, alls, p99s, upkeeps;
  size_t steps = 0;
  for (int run = 0; run < options.runs; ++run) {
    const Harness::Figures f = harness.Run();
    const auto sequences = static_cast<double>(f.sequences);
    medians.push_back(Median(f.request_micros));
    alls.push_back((f.steps_micros + f.upkeep_micros) / sequences);
    upkeeps.push_back(f.upkeep_micros / sequences);
    p99s.push_back(Percentile(f.step_micros, 99));
    steps += f.step_micros.size();
  }
  fmt::print(
      "Method: one ControllerCore, {} simulated workers ({} pipelines of {} stages), {} requests "
      "in "
      "decode "
      "over\n{} pipelines, steps of up to {} sequences; CPU time of the calling thread from a "
      "step's "
      "answer to the\nnext step and the output; {} steps in {} runs, medians of the runs.\n\n",
      options.pipelines * options.stages, options.pipelines, options.stages, options.requests,
      harness.pipelines(), harness.sequences_max(), steps, options.runs);
  fmt::print("| per running request and step | us | to the target of {} us |\n|---|---|---|\n",
             kTargetMicros);
  const auto row = [](const char* what, double micros) {
    fmt::print("| {} | {:.3f} | {:.2f} |\n", what, micros, micros / kTargetMicros);
  };
  row("median step", Median(medians));
  row("all in all: steps, ticks and heartbeats", Median(alls));
  row("of it ticks and heartbeats", Median(upkeeps));
  fmt::print("\np99 of a step: {:.0f} us\nplacing and adding a new request: {:.2f} us (median)\n",
             Median(p99s), Median(harness.submit_micros()));
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app{"What a decode step takes of the controller"};
  app.add_option("--pipelines", options.pipelines, "Chains side by side")
      ->check(CLI::Range(1, 256));
  app.add_option("--stages", options.stages, "Stages of each")->check(CLI::Range(1, 64));
  app.add_option("--requests", options.requests, "Requests that run")->check(CLI::Range(1, 65536));
  app.add_option("--tokens", options.tokens, "Tokens of each per run")->check(CLI::Range(1, 10000));
  app.add_flag("!--by-flow", options.prefers_cached, "Place requests by the plan's flow alone");
  app.add_option("--runs", options.runs, "Runs")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  if (!millrace::InitLog("warn").ok()) return 1;
  millrace::bench::Run(options);
  return 0;
}
