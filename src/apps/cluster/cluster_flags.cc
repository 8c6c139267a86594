#include "apps/cluster/cluster_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "apps/cli/option.h"
#include "apps/cluster/tls_folder.h"
#include "apps/common/dispatch_option.h"
#include "base/file.h"
#include "cluster/control/layout.h"
#include "plan/io/plan_yaml.h"
#include "serve/retained_stream.h"

namespace millrace::apps {
namespace {

constexpr int kStagesMax = 256;
constexpr size_t kPlanBytesMax = 8'000'000;
constexpr std::string_view kEmbeddedStore = "sqlite:";

}  // namespace

void AddTrustOptions(Command& command, TrustFlags* flags) {
  constexpr char kGroup[] = "Trust";
  Option token = TextOption("token", "FILE", &flags->token_file);
  token.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(token),
              "The cluster's join token, as `millrace token` makes it; the same file everywhere");
  Option tls = TextOption("tls-dir", "DIR", &flags->tls_dir);
  tls.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(tls),
              "Certificates for mutual TLS, as `millrace certs` makes them: ca.crt, tls.crt, "
              "tls.key. Needed if any port listens beyond this machine");
  command.Add(kGroup, FlagOption("insecure", &flags->insecure),
              "Use plain text beyond this machine; only for a network that you trust completely");
}

Result<cluster::LinkSecurity> ReadTrust(const TrustFlags& flags) {
  cluster::LinkSecurity security;
  if (flags.token_file.empty()) {
    return InvalidArgument("--token is missing: make one with `millrace token --out FILE`");
  }
  if (flags.insecure && !flags.tls_dir.empty()) {
    return InvalidArgument(
        "--insecure is for a cluster without certificates, and --tls-dir gives some; leave one "
        "out");
  }
  MR_ASSIGN_OR_RETURN(security.token, cluster::ReadTokenFile(flags.token_file));
  if (!flags.tls_dir.empty()) {
    const std::filesystem::path folder = flags.tls_dir;
    security.authority_path = folder / kTlsAuthorityFile;
    security.certificate_path = folder / kTlsCertificateFile;
    security.key_path = folder / kTlsKeyFile;
  }
  security.plain_text_beyond_loopback = flags.insecure;
  return security;
}

void AddLayoutOptions(Command& command, ControllerFlags* flags, const std::string& default_stages) {
  constexpr char kGroup[] = "Layout";
  Option stages = IntOption("pipeline-parallel-size", "N", &flags->stages, 1, kStagesMax);
  stages.default_text = default_stages;
  command.Add(
      kGroup, std::move(stages),
      "Number of stages that the layers are split into, evenly; fewer if there are fewer workers");
  command.Add(kGroup, IntOption("tensor-parallel-size", "N", &flags->tensor_parallel, 1, 8),
              "Workers that share each layer: 1, 2, 4 or 8");
  Option plan = TextOption("plan", "FILE", &flags->plan_file);
  plan.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(plan),
              "A plan of `millrace plan` instead; its nodes are workers' names");
  command.Add(kGroup, FlagOption("fixed-layout", &flags->fixed),
              "Wait for a lost worker to return instead of moving its layers to the others");
  Option dispatch = DispatchOption(&flags->dispatch);
  dispatch.default_text = "by the plan's flow; without one, predicted";
  command.Add(kGroup, std::move(dispatch),
              "Pipeline that gets a request where a plan has several: the one with the fewest "
              "requests, each in turn, a random one, or the one with the least predicted prefill "
              "time ahead (the tokens of its prompts without a first token, by the rate at which "
              "it has computed steps of at least 64 tokens)");
}

void AddJournalOptions(Command& command, ControllerFlags* flags,
                       const std::string& default_folder) {
  constexpr char kGroup[] = "Cluster";
  Option journal = TextOption("journal", "DIR", &flags->journal);
  journal.kind = ValueKind::kFolder;
  journal.default_text = default_folder;
  command.Add(
      kGroup, std::move(journal),
      "Folder in which prompts and tokens are kept until some time after delivery, so that the "
      "next controller continues the streams of one that died; needs --resume-grace");
  using cluster::JournalSync;
  command.Add(
      kGroup,
      ChoiceOption<JournalSync>("journal-sync", &flags->journal_sync,
                                {{"never", JournalSync::kNever}, {"always", JournalSync::kAlways}}),
      "always: a token is on disk before a client gets it, so that streams survive the loss of "
      "the machine and not only of the process");
}

Status ValidateLayout(const ControllerFlags& flags) {
  if (flags.plan_file.empty()) return OkStatus();
  const char* flag = flags.stages                ? "--pipeline-parallel-size"
                     : flags.tensor_parallel > 1 ? "--tensor-parallel-size"
                                                 : nullptr;
  if (flag == nullptr) return OkStatus();
  return InvalidArgument(
      fmt::format("--plan says which worker holds which layers; leave out {}", flag));
}

bool WantsSync(const ControllerFlags& flags) {
  return flags.journal_sync != cluster::JournalSync::kNever;
}

Status ValidateJournal(const ControllerFlags& flags, const std::string& store,
                       double resume_grace_s) {
  if (!flags.journal.empty() && resume_grace_s <= 0) {
    return InvalidArgument(
        "--journal keeps streams for clients that resume them: give --resume-grace as well");
  }
  if (WantsSync(flags) && !ReadJournal(flags, store, resume_grace_s)) {
    return InvalidArgument(
        fmt::format("--journal-sync needs a journal: give {} as well, or leave it out",
                    resume_grace_s > 0 ? "--journal DIR" : "--resume-grace SECONDS"));
  }
  return OkStatus();
}

std::optional<cluster::JournalOptions> ReadJournal(const ControllerFlags& flags,
                                                   const std::string& store,
                                                   double resume_grace_s) {
  cluster::JournalOptions options;
  options.folder = flags.journal;
  if (options.folder.empty() && store.starts_with(kEmbeddedStore)) {
    options.folder = store.substr(kEmbeddedStore.size()) + "/journal";
  }
  if (options.folder.empty() || resume_grace_s <= 0) return std::nullopt;
  options.sync = flags.journal_sync;
  options.retain_finished = serve::ResumableStreams().retain;
  return options;
}

Status ReadLayout(const ControllerFlags& flags, ClusterFlags* cluster) {
  cluster->stages = flags.stages.value_or(1);
  cluster->tensor_parallel = flags.tensor_parallel;
  cluster->elastic = !flags.fixed;
  cluster->dispatch = flags.dispatch;
  const int tp = flags.tensor_parallel;
  if (tp != 1 && tp != 2 && tp != 4 && tp != 8) {
    return InvalidArgument(
        fmt::format("--tensor-parallel-size must be 1, 2, 4 or 8, got {}", flags.tensor_parallel));
  }
  cluster->layout = fmt::format("{} x {}", cluster->stages, flags.tensor_parallel);
  if (flags.plan_file.empty()) return OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan_file, kPlanBytesMax));
  cluster->layout = text;
  MR_ASSIGN_OR_RETURN(plan::WorkerPlan parsed, plan::ParseWorkerPlan(text, flags.plan_file));
  const auto layout = cluster::MakeLayout(parsed.plan, parsed.workers);
  if (!layout.ok()) {
    return InvalidArgument(fmt::format("{}: {}", flags.plan_file, layout.status().message()));
  }
  if (flags.dispatch && layout->pipelines.empty()) {
    return InvalidArgument(fmt::format(
        "{}: the plan's stages branch, so each request gets a route by the plan's flow; leave out "
        "--dispatch",
        flags.plan_file));
  }
  cluster->plan = std::move(parsed.plan);
  cluster->node_names = std::move(parsed.workers);
  return OkStatus();
}

}  // namespace millrace::apps
