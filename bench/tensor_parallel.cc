// Tensor parallelism of two against one: one process per rank, each on its own core, against the
// whole model on the first of these cores. Steps of both alternate, so that both run under the same
// conditions. The printed ratio is the median of the repeats' own ratios.
//
// A sum of one value before each step makes both ranks begin together. "In sums" is the time that
// rank 0 spends adding over the ranks, including the wait for the other rank.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "bench/machine.h"
#include "model/make_model.h"
#include "model/model.h"
#include "model/shapes.h"
#include "net/collective/same_host_collective.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::bench {
namespace {

// The kind of time. On a machine with other load, rank 0's CPU time estimates the time of two ranks
// alone, except for their waits for each other.
Clock clock = Clock::kWall;

struct Options {
  int repeats = 15;
  bool cpu_time = false;
  std::string shape = "llama-160m";
  std::string models = "/tmp/millrace-bench";
};

// A measured step: rows of several sequences at once, from a position on.
struct Work {
  const char* what;
  int sequences, start, rows;
};
constexpr Work kWork[] = {{"prefill of 512 tokens", 1, 0, 512},
                          {"decode, 16 sequences at context 128", 16, 128, 1},
                          {"decode, 1 sequence at context 128", 1, 128, 1}};
constexpr int kContextMax = 512;
constexpr int kWarmUps = 2;

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

void Must(const Status& status) { MR_CHECK(status.ok()) << status.ToString(); }

std::string FolderOf(const Options& options) {
  const std::string folder = options.models + "/" + options.shape;
  if (!std::filesystem::exists(folder)) {
    std::filesystem::create_directories(options.models);
    fmt::print(stderr, "making {} (once)...\n", folder);
    Must(model::MakeModel(Must(model::ShapeConfig(options.shape)), folder, {}));
  }
  return folder;
}

// Records the time spent in calls.
class TimedCollective : public net::Collective {
 public:
  explicit TimedCollective(std::unique_ptr<net::Collective> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Status AllReduceSum(std::span<float> values) override {
    const double begin = Now(clock);
    Status status = inner_->AllReduceSum(values);
    seconds_ += Now(clock) - begin;
    return status;
  }
  bool Waits() const override { return inner_->Waits(); }
  void Abort(std::string_view why) override { inner_->Abort(why); }
  double Take() { return std::exchange(seconds_, 0); }

 private:
  std::unique_ptr<net::Collective> inner_;
  double seconds_ = 0;
};

// One model, whole or one rank's part, on one core.
class Runner {
 public:
  Runner(const std::string& folder, TimedCollective* collective)
      : collective_(collective),
        device_(Must(tensor::NewCpuDevice({.threads = 1, .pin_threads = false}))) {
    model::LoadOptions load;
    load.max_batched_tokens = kContextMax;
    if (collective != nullptr) load.tensor_rank = {collective->rank(), collective->size()};
    load.collective = collective;
    model_ = Must(model::Model::Load(folder, *device_, load));
    kv_ = Must(device_->NewKvPool(model_->KvShapeFor(kBlockSize, kBlocks)));
    blocks_.resize(kBlocks);
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  // Seconds of one step.
  double Step(const Work& work) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions, last;
    std::vector<tensor::AttentionSpan> spans;
    const int blocks_each = kBlocks / work.sequences;
    for (int s = 0; s < work.sequences; ++s) {
      const int first = static_cast<int>(tokens.size());
      spans.push_back({first, work.rows, work.start,
                       std::span(blocks_).subspan(static_cast<size_t>(s * blocks_each))});
      for (int i = 0; i < work.rows; ++i) {
        tokens.push_back((first + 7 * i) % model_->spec().vocab_size);
        positions.push_back(work.start + i);
      }
      last.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    float together = 0;
    if (collective_ != nullptr) {
      Must(collective_->AllReduceSum({&together, 1}));
      collective_->Take();  // the wait for the start does not count to the step
    }
    const double begin = Now(clock);
    const tensor::StepPart part{kv_.get(), 0, 0, static_cast<int>(tokens.size()), spans};
    const tensor::RowRange all = model_->Begin({tokens, positions, {&part, 1}, last});
    model_->Embed(all);
    Must(model_->Layers(all));
    if (model_->has_head()) {
      logits_.resize(last.size() * static_cast<size_t>(model_->spec().vocab_size));
      device_->Read(model_->Head(0, static_cast<int>(last.size())), logits_.data());
    }
    return Now(clock) - begin;
  }

  const std::vector<float>& logits() const { return logits_; }

 private:
  static constexpr int kBlockSize = 16, kBlocks = 16 * 12;

  TimedCollective* const collective_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<tensor::KvPool> kv_;
  std::vector<BlockIndex> blocks_;
  std::vector<float> logits_;
};

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  MR_CHECK(sched_setaffinity(0, sizeof set, &set) == 0) << "CPU " << cpu;
}

std::vector<int> Cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  MR_CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string LoadAverage() {
  std::string load;
  std::getline(std::ifstream("/proc/loadavg"), load, ' ');
  return load;
}

void RunSecondRank(const Options& options, const net::SameHostOptions& host) {
  TimedCollective collective(Must(net::JoinSameHost(host)));
  Runner ranks(FolderOf(options), &collective);
  for (const Work& work : kWork) {
    for (int i = 0; i < kWarmUps + options.repeats; ++i) ranks.Step(work);
  }
}

void RunFirstRank(const Options& options, const net::SameHostOptions& host) {
  TimedCollective collective(Must(net::JoinSameHost(host)));
  Runner ranks(FolderOf(options), &collective), whole(FolderOf(options), nullptr);
  fmt::print("| what | one core, ms | two ranks, ms | in sums, ms | ratio | least to most |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const Work& work : kWork) {
    std::vector<double> one, two, sums, ratio;
    for (int i = 0; i < kWarmUps + options.repeats; ++i) {
      const double alone = whole.Step(work);
      const double together = ranks.Step(work);
      const double in_sums = collective.Take();
      MR_CHECK(whole.logits() == ranks.logits()) << "the ranks' logits are not those of one core";
      if (i < kWarmUps) continue;
      one.push_back(alone * 1e3);
      two.push_back(together * 1e3);
      sums.push_back(in_sums * 1e3);
      ratio.push_back(alone / together);
    }
    const auto [least, most] = std::minmax_element(ratio.begin(), ratio.end());
    fmt::print("| {} {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} to {:.2f} |\n", options.shape,
               work.what, Median(one), Median(two), Median(sums), Median(ratio), *least, *most);
    std::fflush(stdout);
  }
}

int Run(const Options& options) {
  const std::vector<int> cpus = Cpus();
  MR_CHECK(cpus.size() >= 2) << "two ranks want two cores";
  FolderOf(options);
  std::random_device random;
  net::SameHostOptions host{.size = 2,
                            .meeting = fmt::format("{}-{}", random(), random()),
                            .deadline = Duration::Seconds(120)};
  fmt::print(
      "Method: two processes on CPUs {} and {}, one thread each, against one process on CPU {}; "
      "{}; medians of {} pairs of steps; equal logits checked; load average at the start {}.\n\n",
      cpus[0], cpus[1], cpus[0], options.cpu_time ? "CPU time of the first" : "elapsed time",
      options.repeats, LoadAverage());
  std::fflush(stdout);
  const pid_t second = fork();
  MR_CHECK(second >= 0);
  PinTo(cpus[second == 0 ? 1 : 0]);
  if (second == 0) {
    host.rank = 1;
    RunSecondRank(options, host);
    _exit(0);
  }
  RunFirstRank(options, host);
  int status = 0;
  waitpid(second, &status, 0);
  fmt::print("\nLoad average at the end {}.\n", LoadAverage());
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app{"Two tensor-parallel ranks against one core"};
  app.add_option("--repeats", options.repeats, "Pairs of steps of each measurement");
  app.add_flag("--cpu-time", options.cpu_time,
               "CPU time of rank 0 instead of elapsed time: for a machine that is not idle");
  app.add_option("--shape", options.shape, "A shape of millrace make-model");
  app.add_option("--models", options.models, "Where the random models are made and kept");
  CLI11_PARSE(app, argc, argv);
  using millrace::bench::Clock;
  millrace::bench::clock = options.cpu_time ? Clock::kCallerCpu : Clock::kWall;
  return millrace::bench::Run(options);
}
