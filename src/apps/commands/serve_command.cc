// millrace serve: the OpenAI-compatible server.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "apps/autopilot/attach.h"
#include "apps/cli/parse.h"
#include "apps/cluster/cluster_flags.h"
#include "apps/cluster/tls_folder.h"
#include "apps/commands/commands.h"
#include "apps/commands/serve_run.h"
#include "apps/fleet/attach.h"
#include "ops/cluster/leading.h"
#include "ops/hub/fetch_model.h"

namespace millrace::apps {
namespace {

struct ServeClusterFlags {
  std::string store;  // empty: no cluster
  std::string etcd_tls_dir;
  ControllerFlags controller;
  AutopilotFlags autopilot;
  std::string fleet;  // a file; empty: none
  std::set<std::string> given;
};

void AddClusterOptions(Command& command, ServeClusterFlags* flags) {
  constexpr char kGroup[] = "Cluster";
  command.Add(
      kGroup, TextOption("cluster", "STORE", &flags->store),
      "Run the controller of a cluster instead of computing here, with the cluster's state in "
      "sqlite:FOLDER on one machine, or in etcd://HOST:PORT,..., with which a standby "
      "controller on another machine can take over");
  command.Add(kGroup, AddressOption("listen", "ADDRESS", &flags->controller.listen),
              "HOST:PORT where workers join");
  Option etcd_tls = TextOption("etcd-tls-dir", "DIR", &flags->etcd_tls_dir);
  etcd_tls.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(etcd_tls),
              "Certificates for etcd: ca.crt, tls.crt, tls.key [default: plain text]");
  AddJournalOptions(command, &flags->controller, "FOLDER/journal of sqlite:FOLDER");
  AddTrustOptions(command, &flags->controller.trust);
  AddLayoutOptions(command, &flags->controller, "1");
  AddAutopilotOptions(command, &flags->autopilot);
  AddFleetOption(command, &flags->fleet);
}

void DescribeClusterMeaning(Command& command) {
  for (const char* name : {"threads", "kv-cache-memory", "populate-kv"}) {
    command.Named(name).help += "; with --cluster it is an option of the workers";
  }
  command.Named("num-gpu-blocks-override").help +=
      "; with --cluster at most this many for each pipeline, as the workers' memory allows";
}

constexpr std::string_view kSqliteStore = "sqlite:";

// Without --cluster this process computes the whole model and no worker joins.
Status ValidateAlone(const ServeClusterFlags& flags) {
  const ControllerFlags& c = flags.controller;
  const char* flag = c.stages.value_or(1) > 1                          ? "--pipeline-parallel-size"
                     : c.tensor_parallel > 1                           ? "--tensor-parallel-size"
                     : c.prefill_workers                               ? "--prefill-workers"
                     : c.decode_workers                                ? "--decode-workers"
                     : c.replicas                                      ? "--data-parallel-size"
                     : !c.plan_file.empty()                            ? "--plan"
                     : c.fixed                                         ? "--fixed-layout"
                     : c.dispatch                                      ? "--dispatch"
                     : c.cross_class_replay                            ? "--cross-class-replay"
                     : !c.journal.empty()                              ? "--journal"
                     : WantsSync(c)                                    ? "--journal-sync"
                     : !c.listen.empty()                               ? "--listen"
                     : !flags.etcd_tls_dir.empty()                     ? "--etcd-tls-dir"
                     : !c.trust.token_file.empty()                     ? "--token"
                     : !c.trust.tls_dir.empty()                        ? "--tls-dir"
                     : c.trust.insecure                                ? "--insecure"
                     : flags.autopilot.choice != AutopilotChoice::kOff ? "--autopilot"
                     : !flags.fleet.empty()                            ? "--fleet"
                                                                       : nullptr;
  if (flag == nullptr) return OkStatus();
  return InvalidArgument(fmt::format(
      "{} is for a cluster, and without --cluster one process computes the whole model: give "
      "--cluster as well, or use `millrace up`",
      flag));
}

// The controller of a cluster computes nothing and holds no KV.
Status ValidateController(const ServeClusterFlags& flags, const ServeFlags& serve) {
  const ControllerFlags& c = flags.controller;
  const EngineFlags& engine = serve.engine;
  const char* flag = engine.threads                         ? "--threads"
                     : engine.kv_bytes                      ? "--kv-cache-memory"
                     : engine.populate_kv                   ? "--populate-kv"
                     : !engine.compute.cpu_features.empty() ? "--cpu-features"
                     : !engine.compute.activations.empty()  ? "--activations"
                     : engine.compute.numa_node             ? "--numa-node"
                                                            : nullptr;
  if (flag != nullptr) {
    return InvalidArgument(fmt::format(
        "{} is for the workers, and with --cluster this process is their controller, which "
        "computes nothing: give it to each `millrace worker`",
        flag));
  }
  if (!flags.etcd_tls_dir.empty() && flags.store.starts_with(kSqliteStore)) {
    return InvalidArgument("--etcd-tls-dir is for a --cluster etcd://HOST:PORT; leave it out");
  }
  if (c.listen.empty())
    return InvalidArgument("--cluster needs --listen: the address where workers join");
  MR_RETURN_IF_ERROR(ValidateLayout(c));
  MR_RETURN_IF_ERROR(ReadFleet(flags.fleet).status());
  MR_RETURN_IF_ERROR(ValidateJournal(c, flags.store, serve.resume_grace_s));
  return ReadTrust(c.trust).status();
}

// Waits for the leadership, then starts the controller.
Result<std::unique_ptr<LocalModel>> LeadCluster(const ServeFlags& flags,
                                                const ServeClusterFlags& cluster,
                                                const Clock& clock) {
  ClusterFlags settings;
  settings.listen = cluster.controller.listen;
  settings.journal = ReadJournal(cluster.controller, cluster.store, flags.resume_grace_s);
  MR_RETURN_IF_ERROR(ReadLayout(cluster.controller, &settings));
  MR_ASSIGN_OR_RETURN(settings.security, ReadTrust(cluster.controller.trust));
  cluster::EtcdTls tls;
  if (!cluster.etcd_tls_dir.empty()) {
    const std::filesystem::path folder = cluster.etcd_tls_dir;
    tls = {folder / kTlsAuthorityFile, folder / kTlsCertificateFile, folder / kTlsKeyFile};
  }
  // Before it may lead: a standby has the model when it is needed.
  MR_RETURN_IF_ERROR(ops::FetchModel(flags.engine.model, flags.engine.hub).status());
  MR_ASSIGN_OR_RETURN(settings.leading,
                      ops::Leading::Wait(cluster.store, cluster.controller.listen, tls, clock));
  settings.term = settings.leading->term();
  MR_ASSIGN_OR_RETURN(ClusterModel started,
                      StartClusterModel(flags.engine, flags.chat_template, settings, clock));
  MR_RETURN_IF_ERROR(
      AttachAutopilot(cluster.autopilot, flags.engine, settings.leading, started, clock));
  MR_RETURN_IF_ERROR(AttachFleet(cluster.fleet, flags.engine, started, clock));
  return std::move(started.model);
}

}  // namespace

std::unique_ptr<Command> MakeServeCommand() {
  auto command = std::make_unique<Command>();
  command->name = "serve";
  command->summary = "Serve a model over an OpenAI-compatible HTTP API";
  command->description =
      "Loads a model and answers /v1/completions, /v1/chat/completions, /v1/models, /metrics and "
      "more. The port is open from the start: /health answers at once, /ready once the model is "
      "loaded. SIGTERM and Ctrl-C let running requests finish.";
  command->examples = {{"millrace serve models/demo", "the demo model on http://127.0.0.1:8000"},
                       {"millrace serve org/name --host 0.0.0.0 --api-key KEY --max-model-len 8192",
                        "a model of the Hugging Face hub, for the whole network, with a key"},
                       {"millrace serve models/demo --config server.yaml --port 9000",
                        "options from a file, one of them overridden"}};
  command->examples.push_back(
      {"millrace serve org/name --cluster sqlite:state --listen 127.0.0.1:7000 --token "
       "cluster.token",
       "the controller of a cluster: `millrace worker` processes join it and hold the layers"});
  auto flags = std::make_shared<ServeFlags>();
  auto cluster = std::make_shared<ServeClusterFlags>();
  AddClusterOptions(*command, cluster.get());
  AddServerOptions(*command, flags.get());
  AddEngineOptions(*command, &flags->engine);
  AddMaxWaitingOption(*command, &flags->engine);
  AddPopulateKvOption(*command, kMemoryGroup, &flags->engine.populate_kv);
  AddWeightCacheOption(*command, kMemoryGroup, &flags->engine.weight_cache);
  AddEngineSeedOption(*command, &flags->engine);
  AddGeneralOptions(*command);
  DescribeClusterMeaning(*command);
  command->on_given = [cluster](const std::set<std::string>& names) { cluster->given = names; };
  command->validate = [flags, cluster] {
    MR_RETURN_IF_ERROR(ValidateServeFlags(*flags));
    MR_RETURN_IF_ERROR(ValidateAutopilot(cluster->autopilot, cluster->given));
    return cluster->store.empty() ? ValidateAlone(*cluster) : ValidateController(*cluster, *flags);
  };
  command->run = [flags, cluster] {
    if (!cluster->store.empty()) {
      return RunServer(*flags, [flags, cluster](const Clock& clock) {
        return LeadCluster(*flags, *cluster, clock);
      });
    }
    return RunServer(*flags, [flags](const Clock& clock) {
      return LoadWithProgress(flags->engine,
                              {.chat_template = flags->chat_template, .serves = true}, clock);
    });
  };
  return command;
}

}  // namespace millrace::apps
