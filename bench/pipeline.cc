// A pipeline of two stages on two cores against one stage on one. It shows the gain of dividing a
// model by layers, the cost of passing steps from thread to thread, and the cost of a controller
// with one worker in this process, which is how `serve MODEL` runs a model.
//
// Each arrangement runs the same requests (all at once, greedy, to a fixed length) through the
// production scheduler. Repeats of the arrangements alternate, and every ratio is between
// neighbours, so that other load on the machine affects both.
//
// For a machine with other load, the same ratios in CPU time: each stage's CPU time of each step is
// put into the pipeline's order (a stage takes the steps one after another, a step goes from stage
// to stage, and at most as many are in flight as there are stages). The result is the time on an
// otherwise idle machine, without the time to wake threads.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "cluster/local_cluster.h"
#include "engine/chained_executor.h"
#include "engine/local_executor.h"
#include "engine/model_stage.h"
#include "engine/wrapped_stage.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "sched/scheduler.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::bench {
namespace {

struct Options {
  std::string shape = "llama-160m";
  std::string models = "/tmp/millrace-bench";
  int streams = 16;
  int input = 32, output = 96;
  int first_layers = 7;  // of the first stage; the second has the other layers and the head
  int repeats = 9;
};

constexpr int kBlockSize = 16;

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

void StayOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  MR_CHECK(pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0) << "no CPU " << cpu;
}

std::string FolderOf(const Options& options) {
  const std::string folder = options.models + "/" + options.shape;
  if (!std::filesystem::exists(folder)) {
    std::filesystem::create_directories(options.models);
    fmt::print(stderr, "making {} (once)...\n", folder);
    const Status made = model::MakeModel(Must(model::ShapeConfig(options.shape)), folder, {});
    MR_CHECK(made.ok()) << made.ToString();
  }
  return folder;
}

// Records the CPU time of a stage for each step.
class CountedStage : public engine::WrappedStage {
 public:
  CountedStage(std::unique_ptr<engine::Stage> stage, std::vector<double>* seconds)
      : WrappedStage(std::move(stage)), seconds_(seconds) {}
  Status Run(std::span<engine::StagePart> parts) override {
    const double begin = Now(Clock::kCallerCpu);
    Status ran = WrappedStage::Run(parts);
    seconds_->push_back(Now(Clock::kCallerCpu) - begin);
    return ran;
  }

 private:
  std::vector<double>* const seconds_;
};

int Blocks(const Options& options) {
  return options.streams * ((options.input + options.output) / kBlockSize + 2);
}

std::unique_ptr<model::Model> LoadLayers(const Options& options, tensor::Device& device,
                                         std::optional<LayerRange> layers) {
  return Must(
      model::Model::Load(FolderOf(options), device, {.layers = layers, .max_batched_tokens = 512}));
}

// One arrangement of the model; its threads have one core each.
struct Arrangement {
  std::vector<std::vector<double>> cpu_seconds;  // by stage and step, if counted
  std::unique_ptr<engine::Executor> executor;
  std::unique_ptr<sched::Scheduler> scheduler;
  uint64_t next_request = 1;
};

// Like the controller's schedulers for its pipelines.
std::unique_ptr<sched::Scheduler> SchedulerFor(const Options& options,
                                               const engine::ExecutorTraits& traits) {
  sched::SchedulerOptions s;
  s.block_size = kBlockSize;
  s.num_blocks = traits.num_blocks;
  s.max_num_seqs = options.streams;
  s.even_steps = true;
  s.max_num_batched_tokens = traits.max_batched_tokens;
  s.max_model_len = options.input + options.output;
  s.stages = traits.stages;
  s.prefix_caching = false;
  return Must(sched::Scheduler::Create(s));
}

Arrangement Chain(const Options& options, const std::vector<std::optional<LayerRange>>& ranges) {
  Arrangement out{.cpu_seconds = std::vector<std::vector<double>>(ranges.size())};
  std::vector<std::unique_ptr<engine::Stage>> stages;
  engine::ChainedExecutorOptions chain{
      .block_size = kBlockSize, .num_blocks = Blocks(options), .max_batched_tokens = 512};
  for (const auto& range : ranges) {
    auto device = Must(tensor::NewCpuDevice({.threads = 1}));
    auto model = LoadLayers(options, *device, range);
    const size_t i = stages.size();
    stages.push_back(std::make_unique<CountedStage>(
        std::make_unique<engine::ModelStage>(std::move(device), std::move(model)),
        &out.cpu_seconds[i]));
    chain.cpus.push_back(static_cast<int>(i));
  }
  out.executor = Must(engine::ChainedExecutor::Create(std::move(stages), chain));
  out.scheduler = SchedulerFor(options, out.executor->traits());
  return out;
}

Arrangement Plain(const Options& options) {
  auto device = Must(tensor::NewCpuDevice({.threads = 1}));
  auto model = LoadLayers(options, *device, {});
  Arrangement out;
  out.executor = Must(
      engine::LocalExecutor::Create(std::move(device), std::move(model),
                                    {.block_size = kBlockSize, .num_blocks = Blocks(options)}));
  out.scheduler = SchedulerFor(options, out.executor->traits());
  return out;
}

std::vector<engine::EngineRequest> TestRequests(const Options& options, int output) {
  std::vector<engine::EngineRequest> test_requests(static_cast<size_t>(options.streams));
  for (int i = 0; i < options.streams; ++i) {
    engine::EngineRequest& request = test_requests[static_cast<size_t>(i)];
    for (int t = 0; t < options.input; ++t) {
      request.prompt.push_back(100 + (i * 131 + t * 7) % 5000);
    }
    request.params.temperature = 0;
    request.params.max_tokens = output;
    request.params.ignore_eos = true;
  }
  return test_requests;
}

// A controller with one worker in this process, all threads on the caller's core.
class InProcess {
 public:
  explicit InProcess(const Options& options) : options_(options) {
    auto device = Must(tensor::NewCpuDevice({.threads = 1}));
    auto model = LoadLayers(options, *device, {});
    const ModelSpec spec = model->spec();
    cluster::ControllerHostOptions host;
    host.controller.num_layers = spec.num_layers;
    sched::SchedulerOptions& s = host.controller.scheduler;
    s.block_size = kBlockSize;
    s.num_blocks = Blocks(options);
    s.max_num_seqs = options.streams;
    s.max_num_batched_tokens = model->max_batched_tokens();
    s.max_model_len = options.input + options.output;
    s.prefix_caching = false;
    cluster_ = Must(cluster::LocalCluster::Start(std::move(host), clock_));
    cluster::LoadedShard loaded;
    loaded.facts.kv_bytes_per_token_layer = spec.KvBytesPerToken() / spec.num_layers;
    loaded.facts.kv_bytes = int64_t{Blocks(options)} * kBlockSize * spec.KvBytesPerToken();
    loaded.stage = std::make_shared<engine::ModelStage>(std::move(device), std::move(model));
    Join join;
    join.name = "here";
    cluster_->AddWorker(std::move(join),
                        [loaded](const auto&, const auto&, const auto&) { return loaded; });
  }

  double RunRequests(int output) {
    std::mutex mutex;
    std::condition_variable over;
    int left = options_.streams;
    std::vector<engine::EngineRequest> test_requests = TestRequests(options_, output);
    const double begin = Now(Clock::kWall);
    for (engine::EngineRequest& request : test_requests) {
      Must(cluster_->host().Submit(std::move(request), [&](RequestOutput output) {
        MR_CHECK(output.error.ok()) << output.error.ToString();
        if (!output.finish) return;
        std::lock_guard lock(mutex);
        if (--left == 0) over.notify_one();
      }));
    }
    std::unique_lock lock(mutex);
    over.wait(lock, [&] { return left == 0; });
    return Now(Clock::kWall) - begin;
  }

 private:
  const Options options_;
  const SteadyClock clock_;
  std::unique_ptr<cluster::LocalCluster> cluster_;
};

// Seconds until all requests, each of `output` tokens, are done.
double RunRequests(const Options& options, int output, Arrangement& arrangement) {
  sched::Scheduler& scheduler = *arrangement.scheduler;
  for (engine::EngineRequest& request : TestRequests(options, output)) {
    const Status added = scheduler.Add(
        {.id = RequestId(arrangement.next_request++),
         .prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt)),
         .params = std::make_shared<const SamplingParams>(request.params)},
        Time{});
    MR_CHECK(added.ok()) << added.ToString();
  }
  std::vector<RequestOutput> outputs;
  const double begin = Now(Clock::kWall);
  while (scheduler.HasWork()) {
    while (const StepPlan* plan = scheduler.Schedule(Time{})) arrangement.executor->Submit(*plan);
    scheduler.Commit(arrangement.executor->Wait(), Time{}, outputs);
    for (const RequestOutput& out : outputs) MR_CHECK(out.error.ok()) << out.error.ToString();
    outputs.clear();
  }
  return Now(Clock::kWall) - begin;
}

struct Sample {
  double seconds = 0;      // measured
  double undisturbed = 0;  // on an otherwise idle machine
  double cpu_seconds = 0;  // of the whole process
};

// The time at which the last step leaves the last stage.
double Makespan(const std::vector<std::vector<double>>& cpu_seconds) {
  const size_t stages = cpu_seconds.size(), steps = cpu_seconds[0].size();
  std::vector<double> stage_free(stages, 0), step_done(steps, 0);
  for (size_t step = 0; step < steps; ++step) {
    double ready = step < stages ? 0 : step_done[step - stages];
    for (size_t stage = 0; stage < stages; ++stage) {
      ready = std::max(ready, stage_free[stage]) + cpu_seconds[stage][step];
      stage_free[stage] = ready;
    }
    step_done[step] = ready;
  }
  return step_done.back();
}

double ProcessCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Sample Measure(const Options& options, InProcess& host) {
  const double begin = ProcessCpuSeconds();
  Sample sample{.seconds = host.RunRequests(options.output)};
  sample.cpu_seconds = sample.undisturbed = ProcessCpuSeconds() - begin;
  return sample;
}

Sample Measure(const Options& options, Arrangement& arrangement) {
  for (auto& of_stage : arrangement.cpu_seconds) of_stage.clear();
  const double begin = ProcessCpuSeconds();
  Sample sample{.seconds = RunRequests(options, options.output, arrangement)};
  sample.cpu_seconds = ProcessCpuSeconds() - begin;
  sample.undisturbed =
      arrangement.cpu_seconds.empty() ? sample.cpu_seconds : Makespan(arrangement.cpu_seconds);
  return sample;
}

void Run(const Options& options) {
  const int layers = Must(model::ShapeConfig(options.shape))["num_hidden_layers"].get<int>();
  StayOn(0);
  Arrangement plain = Plain(options);
  Arrangement one = Chain(options, {std::nullopt});
  Arrangement two = Chain(
      options, {LayerRange{0, options.first_layers}, LayerRange{options.first_layers, layers}});
  InProcess host(options);
  for (Arrangement* a : {&plain, &one, &two}) RunRequests(options, 4, *a);
  host.RunRequests(4);

  std::vector<double> plain_rate, one_rate, two_rate, hand_over, hand_over_cpu, gain, gain_cpu;
  std::vector<double> controller_rate, served, served_cpu;
  const double tokens = static_cast<double>(options.streams) * options.output;
  for (int i = 0; i < options.repeats; ++i) {
    const Sample p = Measure(options, plain), c = Measure(options, host);
    const Sample o = Measure(options, one), t = Measure(options, two);
    controller_rate.push_back(tokens / c.seconds);
    served.push_back(p.seconds / c.seconds);
    served_cpu.push_back(p.cpu_seconds / c.cpu_seconds);
    plain_rate.push_back(tokens / p.seconds);
    one_rate.push_back(tokens / o.seconds);
    two_rate.push_back(tokens / t.seconds);
    hand_over.push_back(p.seconds / o.seconds);
    gain.push_back(p.seconds / t.seconds);
    hand_over_cpu.push_back(p.cpu_seconds / o.cpu_seconds);
    gain_cpu.push_back(p.cpu_seconds / t.undisturbed);
  }
  fmt::print(
      "Method: {} bf16, {} streams of {} + {} tokens, greedy; one thread per stage on a core of "
      "its\nown, layers [0, {}) and [{}, {}) with the head; medians of {} repeats that alternate; "
      "ratios\nare to the neighbouring run of the plain executor.\n\n",
      options.shape, options.streams, options.input, options.output, options.first_layers,
      options.first_layers, layers, options.repeats);
  fmt::print(
      "| arrangement | output tokens/s | to plain | to plain, by CPU time |\n|---|---|---|---|\n");
  fmt::print("| plain executor, one core | {:.1f} | 1 | 1 |\n", Median(plain_rate));
  fmt::print("| controller of one worker in this process, one core | {:.1f} | {:.3f} | {:.3f} |\n",
             Median(controller_rate), Median(served), Median(served_cpu));
  fmt::print("| chain of one stage, one core | {:.1f} | {:.3f} | {:.3f} |\n", Median(one_rate),
             Median(hand_over), Median(hand_over_cpu));
  fmt::print("| chain of two stages, two cores | {:.1f} | {:.2f} | {:.2f} |\n", Median(two_rate),
             Median(gain), Median(gain_cpu));
  fmt::print(
      "\nCPU time of a step in the last repeat: {:.2f} ms in one stage, {:.2f} and {:.2f} ms in "
      "two.\n",
      Median(one.cpu_seconds[0]) * 1e3, Median(two.cpu_seconds[0]) * 1e3,
      Median(two.cpu_seconds[1]) * 1e3);
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app{"A pipeline of two stages against one"};
  app.add_option("--shape", options.shape, "Shape of the random model");
  app.add_option("--streams", options.streams, "Sequences at once")->check(CLI::Range(2, 256));
  app.add_option("--input", options.input, "Prompt tokens")->check(CLI::Range(1, 512));
  app.add_option("--output", options.output, "Tokens generated")->check(CLI::Range(1, 512));
  app.add_option("--first-layers", options.first_layers, "Layers of the first stage")
      ->check(CLI::Range(1, 256));
  app.add_option("--repeats", options.repeats, "Repeats of each")->check(CLI::Range(1, 1000));
  app.add_option("--models", options.models, "Where the random models are made and kept");
  CLI11_PARSE(app, argc, argv);
  millrace::bench::Run(options);
  return 0;
}
