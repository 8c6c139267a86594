// millrace worker: a process that holds layers for a cluster.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "apps/cli/parse.h"
#include "apps/cluster/cluster_flags.h"
#include "apps/commands/commands.h"
#include "apps/commands/in_process.h"
#include "apps/commands/notice_flags.h"
#include "apps/commands/worker_health.h"
#include "apps/common/engine_flags.h"
#include "apps/common/signals.h"
#include "base/host_memory.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/units.h"
#include "cluster/runtime/worker_process.h"
#include "cluster/worker/worker_model.h"
#include "ops/hub/fetch_model.h"
#include "ops/process/process_deadline.h"
#include "ops/process/worker_notices.h"
#include "ops/profile/worker_profiler.h"
#include "plan/io/quantity.h"
#include "tensor/cpu/cpu_features.h"

namespace millrace::apps {
namespace {

constexpr int kWorkerThreadsMax = 1024;
constexpr int kWorkerPortMax = 65535;
constexpr int kModelLenMax = 1 << 24;
constexpr size_t kZoneBytesMax = 128;

struct WorkerFlags {
  std::vector<std::string> join;
  ops::HubFlags hub;
  std::string model, name, listen = "127.0.0.1:0", advertise;
  TrustFlags trust;
  int data_port = 0;
  std::optional<int> threads, max_model_len;
  std::optional<int64_t> kv_bytes, extra_bytes;
  PopulateKv populate_kv;
  bool weight_cache = true;
  cluster::WeightsFrom weights = cluster::WeightsFrom::kAuto;
  std::string zone;
  std::optional<double> price_usd_per_hour;
  bool spot = false;
  std::string profile, profile_cache = ops::DefaultCacheFolder();
  bool measure_profile = true;
  NoticeFlags notices;
  HealthFlags health;
  std::set<std::string> given;  // options on the command line
};

std::string DefaultName() {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) return "worker";
  return host;
}

// Where the worker finds its model. A worker that may get its weights from others downloads nothing
// that it is not told to: with --weights peer, or with --offline.
Result<std::string> ModelOf(const WorkerFlags& flags) {
  if (flags.weights != cluster::WeightsFrom::kPeer && ops::MayDownload(flags.model, flags.hub)) {
    MR_ASSIGN_OR_RETURN(model::ModelPath path, ops::FetchModel(flags.model, flags.hub));
    return std::move(path.folder);
  }
  auto found = model::FindModel(flags.model, flags.hub.revision);
  if (found.ok()) return std::move(found->folder);
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  return flags.model;  // opening it says what it lacks
}

Status RunWorker(const WorkerFlags& flags) {
  StopSignals signals;                             // before any other thread
  signals.OnSignal([](int) { std::_Exit(130); });  // a download continues where it ended
  RaiseFileLimit();
  ExplainLostModelFiles();
  MR_ASSIGN_OR_RETURN(const cluster::LinkSecurity security, ReadTrust(flags.trust));
  MR_ASSIGN_OR_RETURN(notice::Watched watched, ChooseNoticeSources(flags.notices));
  if (flags.kv_bytes) {
    MR_RETURN_IF_ERROR(CheckKvFits(*flags.kv_bytes, "--kv-cache-memory", ReadMemoryAvailable()));
  }
  const SteadyClock clock;
  ops::ProcessDeadline deadline(clock);  // outlives what may not end in time
  MR_ASSIGN_OR_RETURN(const std::string folder, ModelOf(flags));
  MR_ASSIGN_OR_RETURN(
      const cluster::WorkerModel model,
      cluster::OpenWorkerModel(folder, flags.weights, WeightCacheOf(flags.weight_cache), clock));
  cluster::WorkerProcessOptions options;
  options.controllers = flags.join;
  options.control_address = flags.listen;
  MR_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(flags.listen));
  options.data_host = listen.host;
  options.data_port = static_cast<uint16_t>(flags.data_port);
  options.advertised_host = flags.advertise;
  options.security = security;
  options.join.name = flags.name.empty() ? DefaultName() : flags.name;
  options.join.identity = model.identity;
  const int threads = flags.threads.value_or(DefaultThreads());
  options.join.device = tensor::CpuName(threads);
  if (const std::string advice = NumaAdvice(); !advice.empty()) MR_LOG(warn, "{}", advice);
  options.join.memory_bytes = ReadMemoryAvailable().bytes;
  options.join.machine = {.cores = threads,
                          .zone = flags.zone,
                          .price_usd_per_hour = flags.price_usd_per_hour,
                          .spot = flags.spot};
  options.weights = model.weights;
  options.loader = cluster::MakeShardLoader({.folder = model.folder,
                                             .on_disk = model.on_disk,
                                             .weights = model.from_peers ? model.weights : nullptr,
                                             .threads = threads,
                                             .kv_bytes = flags.kv_bytes,
                                             .populate_kv_bytes = flags.populate_kv,
                                             .extra_bytes = flags.extra_bytes,
                                             .max_model_len = flags.max_model_len});
  MR_ASSIGN_OR_RETURN(auto profiler,
                      ops::WorkerProfiler::Create({.file = flags.profile,
                                                   .cache = flags.profile_cache,
                                                   .measure = flags.measure_profile,
                                                   .model = DefaultServedName(flags.model),
                                                   .folder = model.folder,
                                                   .device = options.join.device,
                                                   .numeric_class = model.identity.numeric_class,
                                                   .threads = threads},
                                                  clock));
  MR_ASSIGN_OR_RETURN(const auto worker, cluster::WorkerProcess::Start(std::move(options), clock));
  MR_ASSIGN_OR_RETURN(auto health, WorkerHealth::Start(flags.health, worker->host(), clock));
  MR_ASSIGN_OR_RETURN(const auto notices,
                      ops::WorkerNotices::Start(std::move(watched), *worker, deadline, clock));
  signals.OnSignal([raw = notices.get()](int count) { raw->OnSignal(count); });
  profiler->Start(worker->host());
  MR_LOG(info, "joining {} as {}", Printable(flags.join.front()),
         Printable(flags.name.empty() ? DefaultName() : flags.name));
  const Status ended = notices->Run();
  profiler.reset();  // before the host that it uses
  health.reset();
  signals.OnSignal([](int) { std::_Exit(130); });  // the worker is about to be destroyed
  const cluster::KvExchangeCounters kv = worker->kv_counters();
  const cluster::WeightCounters weights = model.weights->counters();
  MR_LOG(info,
         "KV: served {} pulls ({}), pulled {}; refused {}, {} of them forged, {} stale, {} "
         "withdrawn while read. Weights: served {}, fetched {}, refused {}; {} sources sent wrong "
         "weights",
         kv.served, FormatBytes(static_cast<int64_t>(kv.served_bytes)),
         FormatBytes(static_cast<int64_t>(kv.pulled_bytes)), kv.refused, kv.exports.forged,
         kv.exports.stale, kv.exports.taken_back,
         FormatBytes(static_cast<int64_t>(weights.served_bytes)),
         FormatBytes(static_cast<int64_t>(weights.pulled_bytes)), weights.refused,
         weights.sources_disabled);
  return ended;
}

void AddMachineOptions(Command& command, WorkerFlags* flags) {
  constexpr char kGroup[] = "Machine";
  Option zone = CustomOption("zone", "NAME", "", [flags](const std::string& text) {
    if (text.empty() || text.size() > kZoneBytesMax || Printable(text) != text) {
      return InvalidArgument(fmt::format("must be a name of at most {} printable bytes, got '{}'",
                                         kZoneBytesMax, Printable(text, 60)));
    }
    flags->zone = text;
    return OkStatus();
  });
  command.Add(kGroup, std::move(zone),
              "Where the machine is: machines of one zone are near each other; a region of the "
              "planner's cluster file");
  Option price = CustomOption("price", "PRICE", "", [flags](const std::string& text) {
    MR_ASSIGN_OR_RETURN(flags->price_usd_per_hour,
                        plan::ParseQuantity(plan::Quantity::kPrice, text));
    return OkStatus();
  });
  price.default_text = "not known";
  command.Add(kGroup, std::move(price), "What the machine costs, such as '0.12 USD/h'");
  command.Add(kGroup, FlagOption("spot", &flags->spot),
              "The machine may be taken away at short notice");
  AddNoticeOptions(command, kGroup, &flags->notices);
  const auto path = [&](const char* name, const char* value, ValueKind kind, std::string* target,
                        const char* help) -> Option& {
    Option option = TextOption(name, value, target);
    option.kind = kind;
    return command.Add(kGroup, std::move(option), help);
  };
  path("profile", "FILE", ValueKind::kFile, &flags->profile,
       "The worker's step times, as `millrace profile` measured them with this model; they are "
       "for the planner [default: measured once with one layer while the worker has nothing to "
       "do, and kept]");
  path("profile-cache", "DIR", ValueKind::kFolder, &flags->profile_cache,
       "Folder in which measured profiles are kept, one for all workers of a machine")
      .default_text = "millrace in the user's cache folder";
  command
      .Add(kGroup, FlagOption("measure-profile", &flags->measure_profile),
           "Measure a profile if there is none")
      .negatable = true;
}

}  // namespace

std::unique_ptr<Command> MakeWorkerCommand() {
  auto command = std::make_unique<Command>();
  command->name = "worker";
  command->summary = "Hold layers of a model for a cluster";
  command->description =
      "Joins a controller (`millrace serve --cluster` or `millrace up`), loads the layers it is "
      "given and computes them. When the controller goes away, the worker keeps its weights and "
      "joins again. On SIGTERM, and when its machine's provider gives notice, it hands over "
      "running requests and then ends; on a second signal it ends at once.";
  command->examples = {
      {"millrace worker models/demo --join 127.0.0.1:7000 --token cluster.token",
       "a worker on the controller's machine"},
      {"millrace worker org/name --join head:7000 --token cluster.token --tls-dir tls "
       "--listen 10.0.0.2:7001",
       "on another machine, where others reach it at 10.0.0.2"}};
  auto flags = std::make_shared<WorkerFlags>();
  Option model = TextOption("model", "MODEL", &flags->model);
  model.positional = model.required = true;
  command->Add("Arguments", std::move(model),
               std::string(kModelHelp) + "; the same model as the controller's");
  AddHubOptions(*command, "Arguments", &flags->hub);
  Option join = AddressOption("join", "ADDRESS", &flags->join);
  join.required = true;
  command->Add("Cluster", std::move(join),
               "The controller's HOST:PORT for workers; of several, the worker finds the leader");
  command->Add("Cluster", TextOption("name", "NAME", &flags->name),
               "The worker's name in plans and status; must be unique [default: the host's name]");
  command->Add(
      "Cluster", AddressOption("listen", "ADDRESS", &flags->listen),
      "HOST:PORT where other workers reach this one for steps; the host is used for data too");
  command->Add("Cluster", IntOption("data-port", "PORT", &flags->data_port, 0, kWorkerPortMax),
               "TCP port for activations and KV; 0: any free one");
  command->Add("Cluster", HostOption("advertise", "HOST", &flags->advertise),
               "The host name that other workers use, if it differs from --listen");
  command->Add("Cluster",
               RefusedOption("rdma",
                             "it was removed; KV is pulled over TCP, or through shared "
                             "memory on one host"),
               "");
  AddHealthOptions(*command, "Cluster", &flags->health);
  AddTrustOptions(*command, &flags->trust);
  AddMachineOptions(*command, flags.get());
  command->Add("Memory and threads", BytesOption("kv-cache-memory", &flags->kv_bytes),
               "Memory for the KV of all requests [default: 40 % of the free memory]");
  AddPopulateKvOption(*command, "Memory and threads", &flags->populate_kv);
  AddWeightCacheOption(*command, "Memory and threads", &flags->weight_cache);
  command->Add("Memory and threads", BytesOption("weights-extra", &flags->extra_bytes),
               "Memory that a change of plan may take beside the layers that serve; a plan that "
               "needs more is given up [default: what these and their KV leave]");
  command->Add(
      "Memory and threads",
      IntOption("max-model-len", "TOKENS", &flags->max_model_len, 1, kModelLenMax),
      "Longest sequence to prepare for; a worker that is prepared for less than the controller "
      "serves gets no layers [default: the model's maximum]");
  command->Add("Memory and threads",
               IntOption("threads", "N", &flags->threads, 1, kWorkerThreadsMax),
               "Compute threads [default: one per CPU that this process may use]");
  AddComputeOptions(*command, "Memory and threads");
  command->Add("Memory and threads",
               ChoiceOption<cluster::WeightsFrom>("weights", &flags->weights,
                                                  {{"auto", cluster::WeightsFrom::kAuto},
                                                   {"disk", cluster::WeightsFrom::kDisk},
                                                   {"peer", cluster::WeightsFrom::kPeer}}),
               "Where weights come from: disk; peer: other workers, or the disk if they have none; "
               "auto: the disk, or other workers if files are missing in MODEL");
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& given) { flags->given = given; };
  command->validate = [flags] {
    if (flags->health.listen.empty()) {
      MR_RETURN_IF_ERROR(
          RefuseGiven(flags->given, {"health-stuck-after"}, "goes with --health-listen"));
    }
    return ChooseNoticeSources(flags->notices).status();
  };
  command->run = [flags] { return RunWorker(*flags); };
  return command;
}

}  // namespace millrace::apps
