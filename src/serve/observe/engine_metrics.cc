// The metric families that are read from a snapshot of the controller's statistics, and those of
// the process.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "serve/observe/metrics.h"

namespace millrace::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::map<std::string, std::string>;

// vLLM's last bucket. The controller counts two more, which are not shown.
constexpr int kIterationTokensLast = 16384;

// Collects the families of one snapshot, which share labels.
class Snapshot {
 public:
  explicit Snapshot(Labels labels) : labels_(std::move(labels)) {}

  void Gauge(const std::string& name, const std::string& help, double value) {
    Family(name, help, MetricType::Gauge).metric.push_back(Metric({}, value));
  }
  void Counter(const std::string& name, const std::string& help, double value) {
    Family(name, help, MetricType::Counter).metric.push_back(Metric({}, value));
  }
  // Adds one family with an additional label.
  void Split(const std::string& name, const std::string& help, MetricType type,
             const std::string& label, const std::vector<std::pair<std::string, double>>& values) {
    MetricFamily& family = Family(name, help, type);
    for (const auto& [key, value] : values) {
      family.metric.push_back(Metric({{label, key}}, value));
    }
  }
  void Info(const std::string& name, const std::string& help, const Labels& more) {
    Family(name, help, MetricType::Gauge).metric.push_back(Metric(more, 1));
  }
  MetricFamily& Family(const std::string& name, const std::string& help, MetricType type) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
    return families_.back();
  }
  ClientMetric Metric(const Labels& more, double value) const {
    ClientMetric metric;
    for (const Labels& labels : {labels_, more}) {
      for (const auto& [key, label] : labels) metric.label.push_back({key, label});
    }
    metric.gauge.value = value;
    metric.counter.value = value;
    return metric;
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  const Labels labels_;
  std::vector<MetricFamily> families_;
};

void AddState(const sched::SchedulerStats& stats, Snapshot& out) {
  out.Gauge("vllm:num_requests_running", "Requests in the running batch.", stats.running);
  out.Gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.",
            stats.waiting + stats.pulling);
  out.Split(
      "vllm:num_requests_waiting_by_reason",
      "Requests waiting, by reason: capacity (for their turn, KV blocks or a worker) or deferred "
      "(for their KV from another worker).",
      MetricType::Gauge, "reason", {{"capacity", stats.waiting}, {"deferred", stats.pulling}});
  out.Split("vllm:engine_sleep_state", "1 for the engine's state; this engine is always awake.",
            MetricType::Gauge, "sleep_state",
            {{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}});
  out.Gauge("vllm:num_requests_swapped", "Requests whose KV cache is swapped out to host memory.",
            stats.swapped);
  const double total = stats.blocks_total;
  out.Gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 means all.",
            total > 0 ? (total - stats.blocks_free) / total : 0);
  out.Gauge("millrace_kv_blocks", "Total KV blocks.", total);
  out.Gauge("millrace_kv_blocks_free", "Free KV blocks.", stats.blocks_free);
  out.Gauge("millrace_kv_host_blocks_used", "Blocks of the swap pool in use.",
            stats.host_blocks_used);
}

void AddCounters(const sched::SchedulerStats& stats, Snapshot& out) {
  auto number = [](uint64_t value) { return static_cast<double>(value); };
  out.Counter("millrace_requests_accepted_total", "Requests that the engine accepted.",
              number(stats.requests_accepted));
  std::vector<std::pair<std::string, double>> finished;
  for (FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    finished.emplace_back(FinishReasonName(reason),
                          number(stats.requests_finished[static_cast<size_t>(reason)]));
  }
  out.Split("millrace_requests_finished_total",
            "Requests that finished in the engine; those ended by a stop string count as abort.",
            MetricType::Counter, "reason", finished);
  out.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              number(stats.prefix_query_tokens));
  out.Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              number(stats.prefix_hit_tokens));
  out.Counter("vllm:num_preemptions_total", "Preemptions.",
              number(stats.preemptions_recompute + stats.preemptions_swap));
  out.Split("millrace_preemptions_total", "Preemptions, by how the KV cache is restored.",
            MetricType::Counter, "mode",
            {{"recompute", number(stats.preemptions_recompute)},
             {"swap", number(stats.preemptions_swap)}});
  out.Counter("vllm:prompt_tokens_total", "Prompt tokens computed or found in the cache.",
              number(stats.prompt_tokens));
  out.Counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the cache.",
              number(stats.prefix_hit_tokens));
  out.Counter("vllm:prompt_tokens_recomputed_total",
              "Tokens computed again after a preemption or the loss of a worker.",
              number(stats.prompt_tokens_recomputed));
  out.Counter("vllm:generation_tokens_total", "Tokens generated.", number(stats.generation_tokens));
  out.Counter("millrace_swapped_out_blocks_total", "Blocks copied to the swap pool.",
              number(stats.swapped_out_blocks));
  out.Counter("millrace_engine_steps_total", "Steps (iterations of the model).",
              number(stats.steps));
}

void AddIterationTokens(const cluster::GeneratorStats& stats, Snapshot& out) {
  ClientMetric metric = out.Metric({}, 0);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < stats.iteration_tokens.size(); ++i) {
    cumulative += stats.iteration_tokens[i];
    if (i >= cluster::kIterationTokenBounds.size()) continue;
    const int bound = cluster::kIterationTokenBounds[i];
    if (bound > kIterationTokensLast) continue;
    metric.histogram.bucket.push_back(
        {.cumulative_count = cumulative, .upper_bound = static_cast<double>(bound)});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = static_cast<double>(stats.iteration_tokens_sum);
  out.Family("vllm:iteration_tokens_total", "Tokens per iteration.", MetricType::Histogram)
      .metric.push_back(std::move(metric));
}

double OpenFiles() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = -3;  // ".", ".." and the descriptor of this folder
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// The start of the process in Unix seconds: the boot time plus field 22 of /proc/self/stat.
double StartTimeSeconds() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  const double since_boot =
      std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream system("/proc/stat");
  std::string key;
  double boot = 0;
  while (system >> key) {
    if (key == "btime") {
      system >> boot;
      break;
    }
    system.ignore(1 << 16, '\n');
  }
  return boot + since_boot;
}

}  // namespace

std::vector<MetricFamily> ModelMetrics::Collect(const cluster::GeneratorStats& stats) const {
  std::vector<MetricFamily> families = registry_.Collect();
  for (const MetricFamily& family : std::vector<MetricFamily>(families)) {
    if (family.name != "vllm:inter_token_latency_seconds") continue;
    families.push_back(family);  // the name that older dashboards use
    families.back().name = "vllm:time_per_output_token_seconds";
  }
  Snapshot snapshot(labels_);
  AddState(stats.scheduler, snapshot);
  AddCounters(stats.scheduler, snapshot);
  AddIterationTokens(stats, snapshot);
  snapshot.Gauge("millrace_engine_stalled", "1 while a request that could run makes no progress.",
                 stats.stalled ? 1 : 0);
  std::map<std::string, std::string> cache_config = cache_config_;
  cache_config["num_gpu_blocks"] = std::to_string(stats.scheduler.blocks_total);
  snapshot.Info("vllm:cache_config_info", "The KV cache's settings, as labels.", cache_config);
  for (MetricFamily& family : snapshot.Take()) families.push_back(std::move(family));
  return families;
}

std::vector<MetricFamily> ModelMetrics::Collect(const std::vector<ClusterMetric>& metrics) const {
  Snapshot snapshot(labels_);
  for (const ClusterMetric& metric : metrics) {
    MetricFamily& family = snapshot.Family(
        metric.name, metric.help, metric.counter ? MetricType::Counter : MetricType::Gauge);
    for (const auto& [labels, value] : metric.series) {
      family.metric.push_back(snapshot.Metric(labels, value));
    }
  }
  return snapshot.Take();
}

std::vector<MetricFamily> ProcessMetrics() {
  Snapshot out({});
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  double virtual_pages = 0;
  double resident_pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
  out.Gauge("process_virtual_memory_bytes", "Virtual memory size.", virtual_pages * page);
  out.Gauge("process_resident_memory_bytes", "Resident memory size.", resident_pages * page);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  out.Counter("process_cpu_seconds_total", "User and system CPU time.",
              seconds(usage.ru_utime) + seconds(usage.ru_stime));
  out.Gauge("process_start_time_seconds", "Start of the process, in Unix seconds.",
            StartTimeSeconds());
  out.Gauge("process_open_fds", "Open file descriptors.", OpenFiles());
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  out.Gauge("process_max_fds", "Limit of open file descriptors.",
            static_cast<double>(limit.rlim_cur));
  return out.Take();
}

}  // namespace millrace::serve
