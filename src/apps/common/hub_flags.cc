#include "apps/common/hub_flags.h"

#include <fmt/format.h>

#include "base/log.h"

namespace millrace::apps {

void AddHubOptions(Command& command, const char* group, ops::HubFlags* flags) {
  command.Add(
      group,
      CustomOption("revision", "REVISION", flags->revision,
                   [flags](const std::string& text) {
                     if (!model::IsRevision(text)) {
                       return InvalidArgument(fmt::format(
                           "must be a branch, a tag or a commit, got '{}'", Printable(text, 60)));
                     }
                     flags->revision = text;
                     return OkStatus();
                   }),
      "Branch, tag or commit of a model on the Hugging Face hub");
  command.Add(group, FlagOption("offline", &flags->offline),
              "Download nothing: MODEL must be on this machine, as with HF_HUB_OFFLINE=1");
}

}  // namespace millrace::apps
