// The speed of the simulator, with the production scheduler: CPU seconds of one core.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "experiments/list.h"
#include "sim/cluster/instances.h"
#include "sim/fast/service.h"

namespace millrace::experiments {
namespace {

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double PeakMebibytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// OPT-13B on one A100 by DistServe's profile, prefill and decode in one batch.
class MixedCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& b) const override {
    return (19.9 + 0.102 * static_cast<double>(b.prefill_tokens) +
            7.1e-6 * static_cast<double>(b.prefill_tokens_squared) +
            6.3e-4 * static_cast<double>(b.decode_context) + 0.0385 * b.decode_sequences) *
           1e-3;
  }
};

Result<sim::ServiceReport> Serve(const sim::InstanceClusterOptions& options, bool cluster,
                                 sim::Workload& workload) {
  if (cluster) {
    MR_ASSIGN_OR_RETURN(const auto instances, sim::InstanceCluster::Create(options));
    return instances->Run(workload);
  }
  MR_ASSIGN_OR_RETURN(const auto service, sim::Service::Create(options.service));
  return service->Run(workload);
}

Result<std::vector<Figure>> Run(const Context& context) {
  MR_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(context.data + "/traces/AzureLLMInferenceTrace_conv_2023.csv", sim::kTraceBytesMax));
  MR_ASSIGN_OR_RETURN(const auto trace, sim::ParseTrace(text, 1 << 20));
  std::vector<sim::Lengths> lengths;
  for (const auto& e : trace) lengths.push_back({e.input_tokens, std::max(e.output_tokens, 1)});

  const MixedCost cost;
  sim::InstanceOptions instance;
  instance.stages = {&cost};
  instance.scheduler.num_blocks = 40'000;
  instance.scheduler.max_num_seqs = 256;
  instance.scheduler.max_num_batched_tokens = 2048;
  instance.scheduler.max_model_len = 16'384;
  instance.scheduler.max_waiting = 1 << 20;
  instance.scheduler.prefix_caching = false;
  sim::InstanceClusterOptions options;
  options.service.instances.assign(32, instance);
  const uint64_t requests = context.quick ? 20'000 : 1'000'000;
  struct Case {
    double rate;
    bool cluster;         // with controller and workers
    double target_cpu_s;  // for 10^6 requests
  };
  std::vector<Figure> figures;
  for (const Case& c : {Case{64, false, 60}, Case{100, false, 60}, Case{64, true, 180}}) {
    const auto workload = sim::NewSynthetic({.requests = requests,
                                             .rate = c.rate,
                                             .lengths = lengths,
                                             .draw_lengths = true,
                                             .seed = 1});
    const double begin = CpuSeconds();
    MR_ASSIGN_OR_RETURN(const sim::ServiceReport report, Serve(options, c.cluster, *workload));
    const double seconds = CpuSeconds() - begin;
    const auto tokens = static_cast<double>(report.latency.output_tokens);
    const double target = c.target_cpu_s * static_cast<double>(requests) / 1e6;
    figures.push_back(
        {.name =
             fmt::format("{} requests of Azure conversation lengths, 32 instances, {} req/s, {}",
                         requests, c.rate, c.cluster ? "a cluster" : "fast path"),
         .paper = nullptr,
         .ours = seconds,
         .unit = "CPU s",
         .verdict = fmt::format(
             "{}: target {} s for 10^6; {:.3g} output tokens, {:.0f} ns each, {} "
             "steps, mean batch {:.1f}, mean TPOT {:.1f} ms, peak memory {:.0f} "
             "MiB",
             seconds <= target ? "reached" : "missed", c.target_cpu_s, tokens,
             seconds / tokens * 1e9, report.steps, tokens / static_cast<double>(report.steps),
             report.latency.tpot.mean() * 1e3, PeakMebibytes())});
  }
  return figures;
}

}  // namespace

Experiment SimSpeedExperiment() {
  return {.name = "sim_speed", .title = "Speed of the simulator, scheduler included", .run = Run};
}

}  // namespace millrace::experiments
