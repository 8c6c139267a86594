#include "notice/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <utility>

#include "base/log.h"
#include "notice/notice_board.h"

namespace millrace::notice {
namespace {

constexpr Duration kKubernetesGrace = Duration::Seconds(30);  // its default
constexpr size_t kDmiBytesMax = 256;
// Azure's virtual machines have this asset tag; other machines of Hyper-V do not.
constexpr char kAzureTag[] = "7783-7084-3265-9085-8269-3286-77";
constexpr char kNamedSources[] =
    "must be auto, none, aws, gcp, azure, kubernetes, slurm, file:PATH or exec:CMD";

std::string ReadDmi(const Machine& machine, const char* name) {
  std::ifstream file(machine.dmi_folder + "/" + name);
  std::string line(kDmiBytesMax, 0);
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(file.gcount()));
  return line.substr(0, line.find('\n'));
}

std::optional<NoticeSource> CloudOf(const Machine& machine) {
  const std::string vendor = ReadDmi(machine, "sys_vendor");
  if (vendor == "Amazon EC2" || ReadDmi(machine, "bios_vendor") == "Amazon EC2" ||
      ReadDmi(machine, "bios_version").find("amazon") != std::string::npos) {
    return NoticeSource::kAws;
  }
  if (ReadDmi(machine, "product_name") == "Google Compute Engine") return NoticeSource::kGcp;
  if (vendor == "Microsoft Corporation" && ReadDmi(machine, "chassis_asset_tag") == kAzureTag) {
    return NoticeSource::kAzure;
  }
  return std::nullopt;
}

// The end of the job, in seconds since 1970.
std::optional<WallTime> SlurmEnd(const Machine& machine) {
  const auto text = machine.environment("SLURM_JOB_END_TIME");
  WallTime end;
  if (!text) return std::nullopt;
  const auto [stopped, error] = std::from_chars(text->data(), text->data() + text->size(), end.s);
  if (error != std::errc() || stopped != text->data() + text->size() || end.s <= 0) {
    return std::nullopt;
  }
  return end;
}

bool HasEndpoint(std::optional<NoticeSource> source) {
  return source == NoticeSource::kAws || source == NoticeSource::kGcp ||
         source == NoticeSource::kAzure;
}

Result<net::Url> EndpointOf(NoticeSource source, const Machine& machine) {
  constexpr char kUsual[] = "http://169.254.169.254";
  const char* variable = source == NoticeSource::kAws   ? "AWS_EC2_METADATA_SERVICE_ENDPOINT"
                         : source == NoticeSource::kGcp ? "GCE_METADATA_HOST"
                                                        : nullptr;
  const auto value = variable == nullptr ? std::nullopt : machine.environment(variable);
  if (!value || value->empty()) return ParseEndpoint(kUsual);
  auto url = ParseEndpoint(source == NoticeSource::kGcp ? "http://" + *value : *value);
  if (url.ok()) return url;
  return InvalidArgument(fmt::format("{} {}", variable, url.status().message()));
}

}  // namespace

Result<SourceChoice> ParseSourceChoice(const std::string& text) {
  if (text == "auto") return SourceChoice{};
  if (text == "none") return SourceChoice{.automatic = false};
  for (const NoticeSource source : {NoticeSource::kAws, NoticeSource::kGcp, NoticeSource::kAzure,
                                    NoticeSource::kKubernetes, NoticeSource::kSlurm}) {
    if (text == NoticeSourceName(source)) {
      return SourceChoice{.automatic = false, .source = source};
    }
  }
  for (const NoticeSource source : {NoticeSource::kFile, NoticeSource::kExec}) {
    const std::string start = fmt::format("{}:", NoticeSourceName(source));
    if (!text.starts_with(start)) continue;
    SourceChoice choice{.automatic = false, .source = source};
    choice.argument = text.substr(start.size());
    if (!choice.argument.empty() && choice.argument.size() <= kArgumentBytesMax) return choice;
  }
  return InvalidArgument(fmt::format("{}, got '{}'", kNamedSources, Printable(text, 60)));
}

Result<net::Url> ParseEndpoint(const std::string& text) {
  auto url = net::ParseUrl(text);
  if (url.ok() && !url->https && url->target.find('?') == std::string::npos) return url;
  return InvalidArgument(
      fmt::format("must be a URL such as http://169.254.169.254, got '{}'", Printable(text, 60)));
}

MachineNotice SignalNotice(const SignalSource& source, const Moment& now) {
  MachineNotice notice{.origin = {source.source, NoticeKind::kTerminate}};
  if (source.grace) notice.deadline = DeadlineFor(std::nullopt, *source.grace, now);
  if (source.end) {
    constexpr Duration kJobMost = Duration::Seconds(7 * 86400);
    const Time end = DeadlineFor(source.end, source.grace.value_or(kJobMost), now);
    notice.deadline = std::min(notice.deadline.value_or(end), end);
  }
  return notice;
}

Result<Watched> ChooseSources(const SourceChoice& choice, std::optional<Duration> grace,
                              const std::optional<net::Url>& endpoint, const Machine& machine) {
  Watched watched;
  const bool kubernetes = choice.automatic
                              ? machine.environment("KUBERNETES_SERVICE_HOST").has_value()
                              : choice.source == NoticeSource::kKubernetes;
  const bool slurm = choice.automatic ? machine.environment("SLURM_JOB_ID").has_value()
                                      : choice.source == NoticeSource::kSlurm;
  watched.signal.grace = grace;
  if (kubernetes) {
    watched.signal.source = NoticeSource::kKubernetes;
    watched.signal.grace = grace.value_or(kKubernetesGrace);
  } else if (slurm) {
    watched.signal.source = NoticeSource::kSlurm;
    watched.signal.end = SlurmEnd(machine);
  }
  if (!choice.automatic && !kubernetes && !slurm) {
    watched.source = choice.source;
    watched.argument = choice.argument;
  } else if (choice.automatic && !kubernetes) {
    // A kubelet passes its node's notice on, as SIGTERM.
    watched.source = CloudOf(machine);
  }
  const bool may_have_endpoint = choice.automatic || HasEndpoint(choice.source);
  if (endpoint && !may_have_endpoint) {
    return InvalidArgument(
        "--notice-endpoint needs --notice-source aws, gcp or azure: the others ask no metadata "
        "service");
  }
  if (endpoint && !HasEndpoint(watched.source)) {
    return InvalidArgument(
        "--notice-endpoint is given, but this machine does not look like one of AWS, Google Cloud "
        "or Azure; say which with --notice-source");
  }
  if (!HasEndpoint(watched.source)) return watched;
  if (endpoint) {
    watched.endpoint = *endpoint;
  } else {
    MR_ASSIGN_OR_RETURN(watched.endpoint, EndpointOf(*watched.source, machine));
  }
  return watched;
}

}  // namespace millrace::notice
