#include "apps/commands/notice_flags.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "plan/io/quantity.h"

namespace millrace::apps {
namespace {

std::optional<std::string> NoticeEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

void AddNoticeOptions(Command& command, const char* group, NoticeFlags* flags) {
  Option source = CustomOption("notice-source", "SOURCE", "auto", [flags](const std::string& text) {
    MR_ASSIGN_OR_RETURN(flags->source, notice::ParseSourceChoice(text));
    return OkStatus();
  });
  command.Add(
      group, std::move(source),
      fmt::format("Where notices of this machine's end come from: {}; auto: what the machine "
                  "looks like",
                  notice::SourceChoices()));
  Option endpoint = CustomOption("notice-endpoint", "URL", "", [flags](const std::string& text) {
    MR_ASSIGN_OR_RETURN(flags->endpoint, notice::ParseEndpoint(text));
    return OkStatus();
  });
  endpoint.default_text = "that of the provider";
  command.Add(group, std::move(endpoint),
              fmt::format("The metadata service of {}", notice::MetadataNames()));
  Option grace = CustomOption("grace", "TIME", "", [flags](const std::string& text) {
    MR_ASSIGN_OR_RETURN(const double seconds, plan::ParseQuantity(plan::Quantity::kDuration, text));
    flags->grace = Duration::Seconds(seconds);
    return OkStatus();
  });
  grace.default_text = "30 s in Kubernetes, otherwise not known";
  command.Add(group, std::move(grace),
              "How long after SIGTERM this process is killed, such as 30s");
}

Result<notice::Watched> ChooseNoticeSources(const NoticeFlags& flags) {
  return notice::ChooseSources(flags.source, flags.grace, flags.endpoint,
                               {.environment = NoticeEnvironment});
}

}  // namespace millrace::apps
