// A pipeline of two stages on two cores against one stage on one. It shows the gain of dividing a
// model by layers, and the cost of a controller with one worker in this process, which is how
// `serve MODEL` runs a model, against a scheduler and a stage in one thread.
//
// Each arrangement runs the same requests (all at once, greedy, to a fixed length). Repeats of the
// arrangements alternate, and every ratio is between neighbours, so that other load on the machine
// affects both.
//
// For a machine with other load, the same ratios in CPU time: each stage's CPU time of each step is
// put into the pipeline's order (a stage takes the steps one after another, a step goes from stage
// to stage, and at most as many are in flight as there are stages). The result is the time on an
// otherwise idle machine, without the time to wake threads.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/statistics.h"
#include "bench/machine.h"
#include "cluster/runtime/local_cluster.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "sched/scheduler.h"
#include "stage/model_stage.h"
#include "stage/run_alone.h"
#include "stage/wrapped_stage.h"
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
constexpr int kBatchedTokens = 512;

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

// Records the CPU time of a stage for each step, and keeps its worker's thread on one core.
class CountedStage : public stage::WrappedStage {
 public:
  CountedStage(std::unique_ptr<stage::Stage> stage, int cpu, std::vector<double>* seconds)
      : WrappedStage(std::move(stage)), cpu_(cpu), seconds_(seconds) {}
  Status Run(std::span<stage::StagePart> parts) override {
    if (seconds_->empty()) StayOn(cpu_);
    const double begin = Now(Clock::kCallerCpu);
    Status ran = WrappedStage::Run(parts);
    seconds_->push_back(Now(Clock::kCallerCpu) - begin);
    return ran;
  }

 private:
  const int cpu_;
  std::vector<double>* const seconds_;
};

int Blocks(const Options& options) {
  return options.streams * ((options.input + options.output) / kBlockSize + 2);
}

std::unique_ptr<model::Model> LoadLayers(const Options& options, tensor::Device& device,
                                         std::optional<LayerRange> layers) {
  return Must(model::Model::Load(FolderOf(options), device,
                                 {.layers = layers, .max_batched_tokens = kBatchedTokens}));
}

sched::SchedulerOptions SchedulerFor(const Options& options) {
  sched::SchedulerOptions s;
  s.block_size = kBlockSize;
  s.num_blocks = Blocks(options);
  s.max_num_seqs = options.streams;
  s.max_num_batched_tokens = kBatchedTokens;
  s.max_model_len = options.input + options.output;
  s.prefix_caching = false;
  return s;
}

std::vector<cluster::GenerationRequest> TestRequests(const Options& options, int output) {
  std::vector<cluster::GenerationRequest> test_requests(static_cast<size_t>(options.streams));
  for (int i = 0; i < options.streams; ++i) {
    cluster::GenerationRequest& request = test_requests[static_cast<size_t>(i)];
    for (int t = 0; t < options.input; ++t) {
      request.prompt.push_back(100 + (i * 131 + t * 7) % 5000);
    }
    request.params.temperature = 0;
    request.params.max_tokens = output;
    request.params.ignore_eos = true;
  }
  return test_requests;
}

// A scheduler and a stage in the caller's thread.
class Plain {
 public:
  explicit Plain(const Options& options)
      : options_(options), scheduler_(Must(sched::Scheduler::Create(SchedulerFor(options)))) {
    auto device = Must(tensor::NewCpuDevice({.threads = 1}));
    auto model = LoadLayers(options, *device, {});
    runner_ =
        Must(stage::StageRunner::Create(std::move(device), std::move(model),
                                        {.block_size = kBlockSize, .num_blocks = Blocks(options)}));
  }

  // Seconds until all requests, each of `output` tokens, are done.
  double RunRequests(int output) {
    for (cluster::GenerationRequest& request : TestRequests(options_, output)) {
      const Status added = scheduler_->Add(
          {.id = RequestId(next_request_++),
           .prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt)),
           .params = std::make_shared<const SamplingParams>(request.params)},
          Time{});
      MR_CHECK(added.ok()) << added.ToString();
    }
    const double begin = Now(Clock::kWall);
    MR_CHECK(stage::RunAlone(*scheduler_, *runner_, [](RequestOutput&& out) {
      MR_CHECK(out.error.ok()) << out.error.ToString();
    }));
    return Now(Clock::kWall) - begin;
  }

 private:
  const Options options_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::unique_ptr<stage::StageRunner> runner_;
  uint64_t next_request_ = 1;
};

// A controller with one worker per stage in this process. The computing thread of stage i has
// core i.
class InProcess {
 public:
  InProcess(const Options& options, const std::vector<LayerRange>& stages)
      : options_(options), cpu_seconds_(stages.size()) {
    cluster::ControllerHostOptions host;
    host.controller.num_layers = stages.back().end;
    host.controller.scheduler = SchedulerFor(options);
    host.controller.plan = PlanOf(stages);
    cluster_ = Must(cluster::LocalCluster::Start(std::move(host), clock_));
    for (size_t i = 0; i < stages.size(); ++i) AddWorker(static_cast<int>(i), stages[i]);
    while (cluster_->host().NotReady()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  double RunRequests(int output) {
    std::mutex mutex;
    std::condition_variable over;
    int left = options_.streams;
    std::vector<cluster::GenerationRequest> test_requests = TestRequests(options_, output);
    const double begin = Now(Clock::kWall);
    for (cluster::GenerationRequest& request : test_requests) {
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

  // By stage and step. Only between two calls of RunRequests.
  std::vector<std::vector<double>>& cpu_seconds() { return cpu_seconds_; }

 private:
  static Plan PlanOf(const std::vector<LayerRange>& stages) {
    Plan plan;
    plan.num_layers = stages.back().end;
    for (const LayerRange& layers : stages) plan.stages.push_back({.layers = layers});
    const int last = static_cast<int>(stages.size()) - 1;
    plan.edges.push_back({std::nullopt, 0, 1});
    for (int i = 0; i < last; ++i) plan.edges.push_back({i, i + 1, 1});
    plan.edges.push_back({last, std::nullopt, 1});
    return plan;
  }

  void AddWorker(int cpu, LayerRange layers) {
    auto device = Must(tensor::NewCpuDevice({.threads = 1}));
    auto model = LoadLayers(options_, *device, layers);
    const ModelSpec spec = model->spec();
    cluster::LoadedShard loaded;
    loaded.facts.kv_bytes_per_token_layer = spec.KvBytesPerToken() / spec.num_layers;
    loaded.facts.kv_bytes = int64_t{Blocks(options_)} * kBlockSize * spec.KvBytesPerToken();
    loaded.stage = std::make_shared<CountedStage>(
        std::make_unique<stage::ModelStage>(std::move(device), std::move(model)), cpu,
        &cpu_seconds_[static_cast<size_t>(cpu)]);
    Join join;
    join.name = fmt::format("stage-{}", cpu);
    cluster_->AddWorker(std::move(join),
                        [loaded, layers](const LoadShard& load, const auto&, const auto&) {
                          if (load.layers == layers) return loaded;
                          cluster::LoadedShard refused;
                          refused.facts.status = Unimplemented("this worker has other layers");
                          return refused;
                        });
  }

  const Options options_;
  const SteadyClock clock_;
  std::vector<std::vector<double>> cpu_seconds_;
  std::unique_ptr<cluster::LocalCluster> cluster_;
};

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

Sample Measure(const Options& options, Plain& plain) {
  const double begin = ProcessCpuSeconds();
  Sample sample{.seconds = plain.RunRequests(options.output)};
  sample.cpu_seconds = sample.undisturbed = ProcessCpuSeconds() - begin;
  return sample;
}

Sample Measure(const Options& options, InProcess& cluster) {
  for (auto& of_stage : cluster.cpu_seconds()) of_stage.clear();
  const double begin = ProcessCpuSeconds();
  Sample sample{.seconds = cluster.RunRequests(options.output)};
  sample.cpu_seconds = ProcessCpuSeconds() - begin;
  sample.undisturbed = Makespan(cluster.cpu_seconds());
  return sample;
}

void Run(const Options& options) {
  const int layers = Must(model::ShapeConfig(options.shape))["num_hidden_layers"].get<int>();
  StayOn(0);
  Plain plain(options);
  InProcess one(options, {LayerRange{0, layers}});
  InProcess two(options,
                {LayerRange{0, options.first_layers}, LayerRange{options.first_layers, layers}});
  plain.RunRequests(4);
  one.RunRequests(4);
  two.RunRequests(4);

  std::vector<double> plain_rate, one_rate, two_rate, served, served_cpu, gain, gain_cpu;
  const double tokens = static_cast<double>(options.streams) * options.output;
  for (int i = 0; i < options.repeats; ++i) {
    const Sample p = Measure(options, plain), o = Measure(options, one), t = Measure(options, two);
    plain_rate.push_back(tokens / p.seconds);
    one_rate.push_back(tokens / o.seconds);
    two_rate.push_back(tokens / t.seconds);
    served.push_back(p.seconds / o.seconds);
    served_cpu.push_back(p.cpu_seconds / o.cpu_seconds);
    gain.push_back(p.seconds / t.seconds);
    gain_cpu.push_back(p.cpu_seconds / t.undisturbed);
  }
  fmt::print(
      "Method: {} bf16, {} streams of {} + {} tokens, greedy; one thread per stage on a core of "
      "its\nown, layers [0, {}) and [{}, {}) with the head; medians of {} repeats that alternate; "
      "ratios\nare to the neighbouring run of the plain loop.\n\n",
      options.shape, options.streams, options.input, options.output, options.first_layers,
      options.first_layers, layers, options.repeats);
  fmt::print(
      "| arrangement | output tokens/s | to plain | to plain, by CPU time |\n|---|---|---|---|\n");
  fmt::print("| scheduler and stage in one thread | {:.1f} | 1 | 1 |\n", Median(plain_rate));
  fmt::print("| controller of one worker in this process, one core | {:.1f} | {:.3f} | {:.3f} |\n",
             Median(one_rate), Median(served), Median(served_cpu));
  fmt::print("| controller of two stages in this process, two cores | {:.1f} | {:.2f} | {:.2f} |\n",
             Median(two_rate), Median(gain), Median(gain_cpu));
  fmt::print(
      "\nCPU time of a step in the last repeat: {:.2f} ms in one stage, {:.2f} and {:.2f} ms in "
      "two.\n",
      Median(one.cpu_seconds()[0]) * 1e3, Median(two.cpu_seconds()[0]) * 1e3,
      Median(two.cpu_seconds()[1]) * 1e3);
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
