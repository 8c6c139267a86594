#include "apps/cluster/cluster_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "apps/cli/option.h"
#include "apps/cluster/tls_folder.h"
#include "apps/common/dispatch_option.h"
#include "base/file.h"
#include "base/private_file.h"
#include "cluster/control/layout/layout.h"
#include "net/certificate_dates.h"
#include "plan/io/plan_yaml.h"
#include "serve/answer/retained_stream.h"

namespace millrace::apps {
namespace {

constexpr int kStagesMax = 256, kWorkersMax = 256;
constexpr size_t kPlanBytesMax = 8'000'000;
constexpr std::string_view kEmbeddedStore = "sqlite:";
constexpr char kPrefillFlag[] = "--prefill-workers", kDecodeFlag[] = "--decode-workers";

// How many pipelines of the shape's size that many workers are.
Result<int> PipelinesOf(const cluster::LayoutShape& shape, const char* flag, int workers) {
  const int each = shape.stages * shape.tensor_parallel;
  if (workers % each == 0) return workers / each;
  return InvalidArgument(fmt::format(
      "{} {} is not a multiple of {}, the workers of a pipeline (--pipeline-parallel-size {} x "
      "--tensor-parallel-size {}); give {} or {}",
      flag, workers, each, shape.stages, shape.tensor_parallel, std::max(1, workers / each) * each,
      (workers / each + 1) * each));
}

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
  WarnIfOthersMayRead("--token", flags.token_file);
  if (!flags.tls_dir.empty()) {
    WarnIfOthersMayRead("--tls-dir", security.key_path);
    const std::string cure =
        "make new ones with `millrace certs`, and start controller and workers with them";
    using net::CertificateFile;
    net::NoteCertificate("cluster", security.certificate_path, CertificateFile::kChain, cure);
    net::NoteCertificate("cluster_authority", security.authority_path,
                         CertificateFile::kAuthorities, cure);
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
  command.Add(kGroup, IntOption("prefill-workers", "N", &flags->prefill_workers, 1, kWorkersMax),
              "Workers that compute prompts and hand their KV over to those of --decode-workers; "
              "a pipeline has --pipeline-parallel-size times --tensor-parallel-size of them, 1 if "
              "neither is given");
  command.Add(kGroup, IntOption("decode-workers", "N", &flags->decode_workers, 1, kWorkersMax),
              "Workers that generate the answers, likewise; with too few workers, one pipeline "
              "does both");
  command.Add(kGroup, IntOption("data-parallel-size", "N", &flags->replicas, 1, kWorkersMax),
              "Number of equal pipelines, each with the whole model; fewer if there are fewer "
              "workers");
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
  command.Add(kGroup, FlagOption("cross-class-replay", &flags->cross_class_replay),
              "Continue a request whose workers are gone on workers of another numeric class, "
              "with other bits, instead of waiting for one of its class");
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

Result<cluster::LayoutShape> ShapeOf(const ControllerFlags& flags) {
  const int tp = flags.tensor_parallel;
  if (tp != 1 && tp != 2 && tp != 4 && tp != 8) {
    return InvalidArgument(fmt::format("--tensor-parallel-size must be 1, 2, 4 or 8, got {}", tp));
  }
  cluster::LayoutShape shape{.replicas = flags.replicas.value_or(1),
                             .stages = flags.stages.value_or(1),
                             .tensor_parallel = tp};
  if (!flags.prefill_workers && !flags.decode_workers) return shape;
  if (!flags.prefill_workers || !flags.decode_workers) {
    return InvalidArgument(fmt::format("{0} needs {1}: give both",
                                       flags.prefill_workers ? kPrefillFlag : kDecodeFlag,
                                       flags.prefill_workers ? kDecodeFlag : kPrefillFlag));
  }
  if (flags.replicas) {
    return InvalidArgument(
        fmt::format("--data-parallel-size is the number of pipelines that do prefill and decode; "
                    "leave it out with {}",
                    kPrefillFlag));
  }
  MR_ASSIGN_OR_RETURN(shape.prefill, PipelinesOf(shape, kPrefillFlag, *flags.prefill_workers));
  MR_ASSIGN_OR_RETURN(shape.decode, PipelinesOf(shape, kDecodeFlag, *flags.decode_workers));
  return shape;
}

Status ValidateLayout(const ControllerFlags& flags) {
  if (flags.plan_file.empty()) return ShapeOf(flags).status();
  const char* flag = flags.stages                ? "--pipeline-parallel-size"
                     : flags.tensor_parallel > 1 ? "--tensor-parallel-size"
                     : flags.prefill_workers     ? kPrefillFlag
                     : flags.decode_workers      ? kDecodeFlag
                     : flags.replicas            ? "--data-parallel-size"
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
  MR_ASSIGN_OR_RETURN(cluster->shape, ShapeOf(flags));
  cluster->elastic = !flags.fixed;
  cluster->dispatch = flags.dispatch;
  cluster->cross_class_replay = flags.cross_class_replay;
  const cluster::LayoutShape& shape = cluster->shape;
  cluster->layout = shape.pipelines() == 1
                        ? fmt::format("{} x {}", shape.stages, shape.tensor_parallel)
                        : cluster::Describe(shape);
  if (flags.plan_file.empty()) return OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan_file, kPlanBytesMax));
  cluster->layout = text;
  MR_ASSIGN_OR_RETURN(WorkerPlan parsed, plan::ParseWorkerPlan(text, flags.plan_file));
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
