// millrace up: a whole cluster on one machine.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/autopilot/attach.h"
#include "apps/cli/parse.h"
#include "apps/cluster/cluster_flags.h"
#include "apps/cluster/host_layout.h"
#include "apps/commands/commands.h"
#include "apps/commands/serve_run.h"
#include "apps/common/private_folder.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "cluster/worker/worker_model.h"
#include "model/describe.h"
#include "ops/hub/fetch_model.h"
#include "ops/process/supervisor.h"

namespace millrace::apps {
namespace {

constexpr int kWorkersMax = 256, kWorkersDefault = 2;

struct UpFlags {
  ServeFlags serve;
  ControllerFlags controller;
  AutopilotFlags autopilot;
  std::set<std::string> given;
  std::optional<int> workers;  // none: two, or as many as the layout needs
};

struct UpLayout {
  int workers = kWorkersDefault;
  std::optional<cluster::LayoutShape> shape;  // none: no option asks for one
};

Result<UpLayout> LayoutOf(const UpFlags& flags) {
  const ControllerFlags& c = flags.controller;
  UpLayout layout;
  if (!c.plan_file.empty()) {
    layout.workers = flags.workers.value_or(kWorkersDefault);
    return layout;
  }
  MR_ASSIGN_OR_RETURN(cluster::LayoutShape shape, ShapeOf(c));
  layout.workers = flags.workers.value_or(std::max(kWorkersDefault, shape.workers()));
  if (!c.stages && !c.prefill_workers && !c.replicas) {
    if (c.tensor_parallel == 1) return layout;
    shape.stages = std::max(1, layout.workers / c.tensor_parallel);  // one stage per group of ranks
  }
  if (shape.workers() > layout.workers) {
    return InvalidArgument(
        fmt::format("{} need {} workers; --workers is {}: raise it, or leave it out",
                    Describe(shape), shape.workers(), layout.workers));
  }
  layout.shape = shape;
  return layout;
}

// KV memory of each worker. For a given number of blocks, enough for all layers of each block.
int64_t KvBytesOfEach(const UpFlags& flags, int workers, const ModelSpec& spec) {
  const EngineFlags& engine = flags.serve.engine;
  if (engine.num_blocks) {
    return int64_t{*engine.num_blocks} * engine.block_size * spec.KvBytesPerToken();
  }
  const auto share = static_cast<int64_t>(cluster::kKvMemoryShare *
                                          static_cast<double>(ReadMemoryAvailable().bytes));
  return std::max<int64_t>(1, engine.kv_bytes.value_or(share) / workers);
}

// Chosen for this machine and model, where no option says which.
Result<cluster::LayoutShape> ChooseShape(const UpFlags& flags, int workers) {
  const EngineFlags& engine = flags.serve.engine;
  MR_ASSIGN_OR_RETURN(const model::ModelPath path, ops::FetchModel(engine.model, engine.hub));
  MR_ASSIGN_OR_RETURN(const model::ModelDescription model, model::DescribeModel(path.folder));
  HostLayoutNeed need{.spec = model.spec, .workers = workers};
  need.max_model_len = engine.max_model_len.value_or(model.spec.max_position);
  need.free_bytes = ReadMemoryAvailable().bytes;
  need.kv_bytes = workers * KvBytesOfEach(flags, workers, model.spec);
  const HostLayout chosen = FastestOnOneHost(need);
  MR_LOG(info, "layout: {}; {}", Describe(chosen.shape), chosen.why);
  return chosen.shape;
}

std::vector<ops::ChildSpec> WorkerSpecs(const UpFlags& flags, int workers, const Command& up,
                                        const LocalModel& model, int port,
                                        const std::string& token_file) {
  const EngineFlags& engine = flags.serve.engine;
  // The front end is this process.
  const int threads = engine.threads.value_or(std::max(1, DefaultThreads(true) / workers));
  const std::vector<int> nodes = NumaNodes();
  const int64_t kv_bytes = KvBytesOfEach(flags, workers, model.spec);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<ops::ChildSpec> specs;
  for (int i = 0; i < workers; ++i) {
    ops::ChildSpec& spec = specs.emplace_back();
    spec.name = fmt::format("worker-{}", i);
    spec.argv = {program,
                 "worker",
                 engine.model,
                 "--revision",
                 engine.hub.revision,
                 "--offline",  // this process has downloaded it
                 "--join",
                 fmt::format("127.0.0.1:{}", port),
                 "--token",
                 token_file,
                 "--name",
                 spec.name,
                 "--threads",
                 std::to_string(threads),
                 "--kv-cache-memory",
                 std::to_string(kv_bytes),
                 "--populate-kv",
                 PopulateKvText(engine.populate_kv),
                 engine.weight_cache ? "--weight-cache" : "--no-weight-cache",
                 "--notice-source",  // it takes all of them away, so none could relieve another
                 "none",
                 "--log-level",
                 up.log_level,
                 "--log-format",
                 up.log_format == LogFormat::kJson ? "json" : "text"};
    // They share this machine, so they would disturb each other. An autopilot needs the profiles.
    if (flags.autopilot.choice == AutopilotChoice::kOff) {
      spec.argv.emplace_back("--no-measure-profile");
    }
    const auto& [cpu_features, activations, numa_node] = engine.compute;
    if (!cpu_features.empty()) {
      spec.argv.insert(spec.argv.end(), {"--cpu-features", cpu_features});
    }
    if (!activations.empty()) spec.argv.insert(spec.argv.end(), {"--activations", activations});
    if (numa_node || nodes.size() > 1) {  // workers share the nodes out
      const int node = numa_node.value_or(nodes[static_cast<size_t>(i) % nodes.size()]);
      spec.argv.insert(spec.argv.end(), {"--numa-node", std::to_string(node)});
    }
    if (engine.max_model_len) {
      spec.argv.insert(spec.argv.end(), {"--max-model-len", std::to_string(*engine.max_model_len)});
    }
  }
  return specs;
}

// The model's controller and its workers. The workers are stopped first: no request runs any more
// by then, so nothing needs to be handed over.
struct Supervised {
  std::shared_ptr<cluster::Generator> engine;
  std::unique_ptr<PrivateFolder> folder;  // has the token
  std::unique_ptr<ops::Supervisor> workers;

  ~Supervised() {
    workers->Kill();
    workers->Wait();
  }
};

Result<std::unique_ptr<LocalModel>> StartCluster(const UpFlags& flags, const Command& up,
                                                 const Clock& clock) {
  ClusterFlags cluster;
  MR_RETURN_IF_ERROR(ReadLayout(flags.controller, &cluster));
  cluster.journal = ReadJournal(flags.controller, "", flags.serve.resume_grace_s);
  MR_ASSIGN_OR_RETURN(const UpLayout layout, LayoutOf(flags));
  if (layout.shape) {
    cluster.shape = *layout.shape;
  } else if (flags.controller.plan_file.empty()) {
    MR_ASSIGN_OR_RETURN(cluster.shape, ChooseShape(flags, layout.workers));
  }
  MR_ASSIGN_OR_RETURN(cluster.security.token, NewClusterToken());
  MR_ASSIGN_OR_RETURN(
      ClusterModel started,
      StartClusterModel(flags.serve.engine, flags.serve.chat_template, cluster, clock));
  const int64_t kv_bytes = KvBytesOfEach(flags, layout.workers, started.model->spec);
  MR_RETURN_IF_ERROR(
      CheckKvFits(kv_bytes * layout.workers,
                  flags.serve.engine.num_blocks ? "--num-gpu-blocks-override" : "--kv-cache-memory",
                  ReadMemoryAvailable()));
  MR_RETURN_IF_ERROR(AttachAutopilot(flags.autopilot, flags.serve.engine, nullptr, started, clock));
  MR_ASSIGN_OR_RETURN(auto folder, PrivateFolder::Make());
  MR_ASSIGN_OR_RETURN(const std::string token,
                      folder->WriteSecret("cluster.token", cluster.security.token));
  ops::SupervisorOptions options;
  options.on_line = [json = up.log_format == LogFormat::kJson](std::string_view name,
                                                               std::string_view line) {
    fmt::print(stderr, "{}\n",
               json ? JsonLogLineOf(name, line) : fmt::format("{}: {}", name, line));
  };
  MR_ASSIGN_OR_RETURN(auto workers,
                      ops::Supervisor::Start(std::move(options),
                                             WorkerSpecs(flags, layout.workers, up, *started.model,
                                                         started.server->port(), token)));
  auto& engine = started.model->engine;
  std::shared_ptr<Supervised> held(new Supervised{engine, std::move(folder), std::move(workers)});
  engine = {std::move(held), engine.get()};
  started.model->device_name = fmt::format("{} workers on this machine", layout.workers);
  return std::move(started.model);
}

Status Validate(const UpFlags& flags) {
  MR_RETURN_IF_ERROR(ValidateServeFlags(flags.serve));
  MR_RETURN_IF_ERROR(ValidateAutopilot(flags.autopilot, flags.given));
  MR_RETURN_IF_ERROR(ValidateLayout(flags.controller));
  MR_RETURN_IF_ERROR(ValidateJournal(flags.controller, "", flags.serve.resume_grace_s));
  return LayoutOf(flags).status();
}

void DescribeSharedOptions(Command& command) {
  command.Named("threads").help =
      "Compute threads of each worker [default: the CPUs that this process may use, less one of "
      "more than two for HTTP and text, divided by --workers]";
  command.Named("numa-node").help =
      "The NUMA node of all workers [default: the workers are spread over the nodes]";
  command.Named("kv-cache-memory").help =
      "Memory for the KV cache, such as 2GiB, of all workers together [default: 40 % of the free "
      "memory, or what --max-num-seqs sequences need if that is less]";
  command.Named("num-gpu-blocks-override").help =
      "Number of KV blocks of a pipeline, regardless of the memory";
  command.Named("log-level").help = "Least severe messages shown on stderr, of the workers as well";
}

}  // namespace

std::unique_ptr<Command> MakeUpCommand() {
  auto command = std::make_unique<Command>();
  command->name = "up";
  command->summary = "Serve a model from several workers on this machine";
  command->description =
      "Starts a controller with the HTTP API and worker processes, and splits the "
      "model's layers over them. A worker that dies is started again; the requests that ran on it "
      "continue where they were. Without layout options it takes the fastest layout of one machine "
      "that fits, and says which: a copy of the model for each worker, else workers that share "
      "each "
      "layer, else the stages of a pipeline.";
  command->examples = {
      {"millrace up models/demo --workers 2", "two workers, each with a copy of the model"},
      {"millrace up org/name --pipeline-parallel-size 2", "two workers, half the layers each"},
      {"millrace up org/name --workers 4 --pipeline-parallel-size 2 --tensor-parallel-size 2",
       "two stages of two workers"},
      {"millrace up org/name --prefill-workers 2 --decode-workers 4",
       "two workers for prompts, four for answers"},
      {"millrace up org/name --data-parallel-size 2 --pipeline-parallel-size 2",
       "two pipelines of two stages each"},
      {"millrace up org/name --workers 3 --plan plan.yaml",
       "workers worker-0 to worker-2 as the plan says"}};
  auto flags = std::make_shared<UpFlags>();
  command->Add("Layout", IntOption("workers", "N", &flags->workers, 1, kWorkersMax),
               "Worker processes to start [default: 2, or as many as the layout needs]");
  AddLayoutOptions(*command, &flags->controller, "1, or what is fastest here");
  AddJournalOptions(*command, &flags->controller, "none");
  AddAutopilotOptions(*command, &flags->autopilot);
  AddServerOptions(*command, &flags->serve);
  AddEngineOptions(*command, &flags->serve.engine);
  AddMaxWaitingOption(*command, &flags->serve.engine);
  AddPopulateKvOption(*command, kMemoryGroup, &flags->serve.engine.populate_kv);
  AddWeightCacheOption(*command, kMemoryGroup, &flags->serve.engine.weight_cache);
  AddEngineSeedOption(*command, &flags->serve.engine);
  AddGeneralOptions(*command);
  DescribeSharedOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags, up = command.get()] {
    return RunServer(flags->serve,
                     [flags, up](const Clock& clock) { return StartCluster(*flags, *up, clock); });
  };
  return command;
}

}  // namespace millrace::apps
