// millrace certs: makes an authority and the certificates with which controller and workers
// authenticate each other.
#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/parse.h"
#include "apps/cluster/tls_folder.h"
#include "apps/commands/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "cluster/link/link_security.h"
#include "net/authority.h"

namespace millrace::apps {
namespace {

constexpr int kDaysMax = 3650;
constexpr double kSecondsPerDay = 86400;
constexpr size_t kPemBytesMax = 1 << 20;
constexpr unsigned kPublicMode = 0644, kSecretMode = 0600;
constexpr char kAuthorityKey[] = "ca.key";

struct CertsFlags {
  std::string out;
  std::vector<std::string> hosts;
  int days = 730;
  bool force = false;
};

Status Validate(const CertsFlags& flags) {
  for (const std::string& host : flags.hosts) {
    if (net::IsCertificateHost(host)) continue;
    if (host.starts_with("*.") && net::IsCertificateHost(host.substr(2))) {
      return InvalidArgument(
          fmt::format("--host '{}': clients accept no wildcard before a single label; name more of "
                      "the domain, such as '{}.default.svc'",
                      Printable(host), Printable(host)));
    }
    return InvalidArgument(
        fmt::format("--host must be host names or addresses, got '{}'", Printable(host)));
  }
  return OkStatus();
}

Status MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return OkStatus();
  return FailedPrecondition(fmt::format("{}: {}", folder.string(), error.message()));
}

Status Write(const std::filesystem::path& path, const std::string& content, unsigned mode,
             bool force) {
  const auto existing = force ? ExistingFile::kReplace : ExistingFile::kKeep;
  const Status written = WriteFileWithMode(path.string(), content, mode, existing);
  if (written.ok() || force || !std::filesystem::exists(path)) return written;
  return FailedPrecondition(written.message() +
                            "; --force issues new certificates under the same authority");
}

// Returns the authority in the folder, or a new one. --force does not replace it, because the
// certificates that it has issued would become useless.
Result<net::CertificateAuthority> Authority(const std::filesystem::path& folder) {
  const std::string certificate = folder / kTlsAuthorityFile, key = folder / kAuthorityKey;
  if (std::filesystem::exists(certificate) || std::filesystem::exists(key)) {
    net::PemIdentity identity;
    MR_ASSIGN_OR_RETURN(identity.certificate_pem, ReadFile(certificate, kPemBytesMax));
    MR_ASSIGN_OR_RETURN(identity.key_pem, ReadFile(key, kPemBytesMax));
    auto loaded = net::CertificateAuthority::Load(identity);
    if (!loaded.ok()) return loaded.status().WithContext(certificate);
    return loaded;
  }
  MR_ASSIGN_OR_RETURN(
      auto made, net::CertificateAuthority::Create("millrace cluster",
                                                   Duration::Seconds(kDaysMax * kSecondsPerDay)));
  MR_RETURN_IF_ERROR(Write(key, made.identity().key_pem, kSecretMode, false));
  MR_RETURN_IF_ERROR(Write(certificate, made.identity().certificate_pem, kPublicMode, false));
  return made;
}

Status Issue(const net::CertificateAuthority& authority, const CertsFlags& flags,
             const std::string& role) {
  const bool controller = role == cluster::kControllerCommonName;
  const std::filesystem::path folder =
      std::filesystem::path(flags.out) / (controller ? "controller" : "worker");
  net::CertificateRequest request;
  request.name = role;
  request.hosts = flags.hosts;
  for (const char* own : {"localhost", "127.0.0.1", "::1"}) request.hosts.emplace_back(own);
  request.lifetime = Duration::Seconds(flags.days * kSecondsPerDay);
  MR_ASSIGN_OR_RETURN(const net::PemIdentity made, authority.Issue(request));
  MR_RETURN_IF_ERROR(MakeFolder(folder));
  MR_RETURN_IF_ERROR(
      Write(folder / kTlsCertificateFile, made.certificate_pem, kPublicMode, flags.force));
  MR_RETURN_IF_ERROR(Write(folder / kTlsKeyFile, made.key_pem, kSecretMode, flags.force));
  // A copy, so that a machine needs only its folder.
  return Write(folder / kTlsAuthorityFile, authority.identity().certificate_pem, kPublicMode, true);
}

Status RunCerts(const CertsFlags& flags) {
  const std::filesystem::path out = flags.out;
  for (const char* role : {"controller", "worker"}) {
    const auto path = out / role / kTlsCertificateFile;
    if (!flags.force && std::filesystem::exists(path)) {
      return FailedPrecondition(path.string() +
                                " exists; --force issues new certificates under the same "
                                "authority");
    }
  }
  MR_RETURN_IF_ERROR(MakeFolder(out));
  MR_ASSIGN_OR_RETURN(const auto authority, Authority(out));
  for (const char* role : {cluster::kControllerCommonName, cluster::kWorkerCommonName}) {
    MR_RETURN_IF_ERROR(Issue(authority, flags, role));
  }
  fmt::print(
      "{0}/controller  for the controller: --tls-dir\n"
      "{0}/worker      for the workers: copy it to their machines\n"
      "{0}/ca.key      makes more certificates: keep it away from the machines that serve\n",
      flags.out);
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakeCertsCommand() {
  auto command = std::make_unique<Command>();
  command->name = "certs";
  command->summary = "Make the certificates of a cluster's mutual TLS";
  command->description =
      "Makes an authority, and under it a certificate for the controller and one for the workers, "
      "each in a folder of its own with ca.crt, tls.crt and tls.key. Give such a folder to "
      "--tls-dir. Existing files are not overwritten; with --force new certificates are issued "
      "under the existing authority, for new hosts or before the old certificates expire.";
  command->examples = {{"millrace certs --out tls --host 10.0.0.1 10.0.0.2 10.0.0.3",
                        "for three machines, called by address"},
                       {"millrace certs --out tls --host controller '*.workers.default.svc'",
                        "for names, one with a wildcard"},
                       {"scp -r tls/worker gpu-2:tls", "what a worker's machine needs"}};
  auto flags = std::make_shared<CertsFlags>();
  Option out = TextOption("out", "FOLDER", &flags->out);
  out.kind = ValueKind::kFolder;
  out.required = true;
  command->Add("Certificates", std::move(out), "Folder to write to; created if it does not exist");
  Option hosts = TextListOption("host", "NAME", &flags->hosts);
  hosts.required = true;
  command->Add("Certificates", std::move(hosts),
               "Names and addresses of all machines of the cluster; localhost is always included");
  command->Add("Certificates", IntOption("days", "N", &flags->days, 1, kDaysMax),
               "Days for which the certificates are valid; the authority is valid for ten years");
  command->Add("Certificates", FlagOption("force", &flags->force),
               "Replace certificates that exist; the authority stays");
  AddGeneralOptions(*command);
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunCerts(*flags); };
  return command;
}

}  // namespace millrace::apps
