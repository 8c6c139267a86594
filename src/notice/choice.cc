#include "notice/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "notice/notice_board.h"

namespace millrace::notice {
namespace {

constexpr Duration kKubernetesGrace = Duration::Seconds(30);  // its default

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
  return source && ProviderOf(*source).ask != nullptr;
}

Result<net::Url> EndpointOf(const Provider& provider, const Machine& machine) {
  constexpr char kUsual[] = "http://169.254.169.254";
  const char* variable = provider.endpoint_variable;
  const auto value = variable == nullptr ? std::nullopt : machine.environment(variable);
  if (!value || value->empty()) return ParseEndpoint(kUsual);
  auto url = ParseEndpoint(provider.endpoint_before + *value);
  if (url.ok()) return url;
  return InvalidArgument(fmt::format("{} {}", variable, url.status().message()));
}

}  // namespace

Result<SourceChoice> ParseSourceChoice(const std::string& text) {
  if (text == "auto") return SourceChoice{};
  if (text == "none") return SourceChoice{.automatic = false};
  for (const Provider& provider : Providers()) {
    const std::string_view name = NoticeSourceName(provider.source);
    SourceChoice choice{.automatic = false, .source = provider.source};
    if (provider.argument == nullptr) {
      if (text == name) return choice;
      continue;
    }
    const std::string start = fmt::format("{}:", name);
    if (!text.starts_with(start)) continue;
    choice.argument = text.substr(start.size());
    if (!choice.argument.empty() && choice.argument.size() <= kArgumentBytesMax) return choice;
  }
  return InvalidArgument(fmt::format("must be {}, got '{}'", SourceChoices(), Printable(text, 60)));
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
    for (const Provider& provider : Providers()) {
      if (!watched.source && provider.is_here != nullptr && provider.is_here(machine)) {
        watched.source = provider.source;
      }
    }
  }
  const bool may_have_endpoint = choice.automatic || HasEndpoint(choice.source);
  if (endpoint && !may_have_endpoint) {
    return InvalidArgument(fmt::format(
        "--notice-endpoint needs --notice-source {}: the others ask no metadata service",
        MetadataNames()));
  }
  if (endpoint && !HasEndpoint(watched.source)) {
    return InvalidArgument(fmt::format(
        "--notice-endpoint is given, but this machine does not look like one of {}; say "
        "which with --notice-source",
        MetadataCompanies()));
  }
  if (!HasEndpoint(watched.source)) return watched;
  if (endpoint) {
    watched.endpoint = *endpoint;
  } else {
    MR_ASSIGN_OR_RETURN(watched.endpoint, EndpointOf(ProviderOf(*watched.source), machine));
  }
  return watched;
}

}  // namespace millrace::notice
