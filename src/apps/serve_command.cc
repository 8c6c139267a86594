// millrace serve: the OpenAI-compatible server.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "apps/cli/parse.h"
#include "apps/cluster/cluster_flags.h"
#include "apps/cluster/leading.h"
#include "apps/cluster/tls_folder.h"
#include "apps/commands.h"
#include "apps/serve_run.h"

namespace millrace::apps {
namespace {

struct ServeClusterFlags {
  std::string store;  // empty: no cluster
  std::string etcd_tls_dir;
  ControllerFlags controller;
};

void AddClusterOptions(Command& command, ServeClusterFlags* flags) {
  constexpr char kGroup[] = "Cluster";
  command.Add(kGroup, TextOption("cluster", "STORE", &flags->store),
              "Lead a cluster instead of computing here; where its state is kept: sqlite:FOLDER on "
              "one machine, or etcd://HOST:PORT,... where a standby controller can take over");
  command.Add(kGroup, TextOption("listen", "ADDRESS", &flags->controller.listen),
              "Where workers join, host:port");
  Option etcd_tls = TextOption("etcd-tls-dir", "DIR", &flags->etcd_tls_dir);
  etcd_tls.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(etcd_tls),
              "Certificates for etcd: ca.crt, tls.crt, tls.key [default: plain text]");
  AddJournalOptions(command, &flags->controller, "the folder journal in that of sqlite:FOLDER");
  AddTrustOptions(command, &flags->controller.trust);
  AddLayoutOptions(command, &flags->controller);
}

Status ValidateCluster(const ServeClusterFlags& flags, double resume_grace_s) {
  const ControllerFlags& c = flags.controller;
  if (!flags.store.empty()) {
    MR_RETURN_IF_ERROR(ValidateJournal(c, resume_grace_s));
    if (c.listen.empty()) return InvalidArgument("--cluster needs --listen: where workers join");
    return ReadTrust(c.trust).status();
  }
  if (c.stages > 1 || c.tensor_parallel > 1 || !c.plan_file.empty() || !c.listen.empty() ||
      !c.journal.empty()) {
    return InvalidArgument(
        "one process computes the whole model: give --cluster as well, or use `millrace up`");
  }
  return OkStatus();
}

// The model's engine, and the leadership it needs.
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
  MR_ASSIGN_OR_RETURN(settings.leading,
                      Leading::Wait(cluster.store, cluster.controller.listen, tls, clock));
  settings.term = settings.leading->term();
  MR_ASSIGN_OR_RETURN(ClusterModel started,
                      StartClusterModel(flags.engine, flags.chat_template, settings, clock));
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
                        "a model of the Hugging Face cache, for the whole network, with a key"},
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
  AddEngineSeedOption(*command, &flags->engine);
  AddGeneralOptions(*command);
  command->validate = [flags, cluster] {
    MR_RETURN_IF_ERROR(ValidateServeFlags(*flags));
    return ValidateCluster(*cluster, flags->resume_grace_s);
  };
  command->run = [flags, cluster] {
    if (!cluster->store.empty()) {
      return RunServer(*flags, [flags, cluster](const Clock& clock) {
        return LeadCluster(*flags, *cluster, clock);
      });
    }
    return RunServer(*flags, [flags](const Clock& clock) {
      return LoadWithProgress(flags->engine, flags->chat_template, clock);
    });
  };
  return command;
}

}  // namespace millrace::apps
