// The scheduler's own cost: Schedule + Commit of one decode step, without an executor.
//
//   build/release/bench/sched_cost [running requests, default 1024]
//
// Method: all requests are admitted and decode; each measured step contains all of them. Time is
// the thread's CPU time, so that a busy machine does not count. A run is 800 steps, in which each
// sequence crosses 50 block borders; medians over five runs. Prompts differ in length, so borders
// fall evenly. "Aligned" is the worst case: all sequences open (and hash) a block in the same step.
// Target: at most 0.2 us per running request per step, p99 of a step at most 250 us at 1,024
// running.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/statistics.h"
#include "sched/scheduler.h"

namespace millrace {
namespace {

constexpr int kRuns = 5;
constexpr int kSteps = 800;
constexpr int kPromptTokens = 128;

struct Figures {
  double us_per_request = 0;
  double median_us = 0;
  double p99_us = 0;
};

double CpuMicros() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

Figures RunOnce(int running, bool prefix_caching, bool aligned) {
  sched::SchedulerOptions o;
  o.num_blocks = running * 64;
  o.max_num_seqs = running;
  o.max_num_batched_tokens = running * (kPromptTokens + o.block_size);
  o.max_model_len = 1024;
  o.max_waiting = running;
  o.prefix_caching = prefix_caching;
  auto scheduler = std::move(sched::Scheduler::Create(o)).value();
  SamplingParams params;
  params.max_tokens = kSteps + 2;
  const auto shared_params = std::make_shared<const SamplingParams>(params);
  for (int i = 0; i < running; ++i) {
    auto prompt =
        std::make_shared<std::vector<TokenId>>(kPromptTokens + (aligned ? 0 : i % o.block_size), i);
    MR_CHECK(scheduler
                 ->Add({.id = RequestId(static_cast<uint64_t>(i) + 1),
                        .prompt = std::move(prompt),
                        .params = shared_params},
                       Time{})
                 .ok());
  }
  StepResult result;
  std::vector<RequestOutput> outputs;
  std::vector<double> step_us;
  for (int step = 0; step <= kSteps; ++step) {
    const double start = CpuMicros();
    const StepPlan* plan = scheduler->Schedule(Time{step});
    const double planned = CpuMicros();
    MR_CHECK(plan && std::ssize(plan->sequences) == running) << "every request is in every step";
    result.id = plan->id;
    result.sequences.resize(plan->sequences.size());
    for (size_t i = 0; i < plan->sequences.size(); ++i) {
      result.sequences[i].id = plan->sequences[i].id;
      result.sequences[i].token = step;
    }
    outputs.clear();
    const double committing = CpuMicros();
    scheduler->Commit(result, Time{step}, outputs);
    const double us = (planned - start) + (CpuMicros() - committing);
    if (step > 0) step_us.push_back(us);  // step 0 computes the prompts
  }
  double sum = 0;
  for (double us : step_us) sum += us;
  return {.us_per_request = sum / kSteps / running,
          .median_us = Median(step_us),
          .p99_us = Percentile(step_us, 99)};
}

double MedianOf(const std::vector<Figures>& runs, double Figures::*field) {
  std::vector<double> values;
  for (const Figures& run : runs) values.push_back(run.*field);
  return Median(std::move(values));
}

void Report(int running, bool prefix_caching, bool aligned) {
  std::vector<Figures> runs;
  for (int i = 0; i < kRuns; ++i) runs.push_back(RunOnce(running, prefix_caching, aligned));
  fmt::print("| {} | {} | {} | {:.3f} | {:.1f} | {:.1f} |\n", running,
             prefix_caching ? "on" : "off", aligned ? "aligned" : "even",
             MedianOf(runs, &Figures::us_per_request), MedianOf(runs, &Figures::median_us),
             MedianOf(runs, &Figures::p99_us));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const int running = argc > 1 ? std::atoi(argv[1]) : 1024;
  if (running < 1) {
    fmt::print(stderr, "usage: sched_cost [running requests, at least 1]\n");
    return 2;
  }
  fmt::print("Schedule + Commit of a decode step; medians of {} runs of {} steps.\n\n",
             millrace::kRuns, millrace::kSteps);
  fmt::print(
      "| running | prefix caching | block borders | us per request | step median us | step p99 us "
      "|\n"
      "|---|---|---|---|---|---|\n");
  for (bool prefix_caching : {false, true}) {
    for (bool aligned : {false, true}) millrace::Report(running, prefix_caching, aligned);
  }
  return 0;
}
