// why: what the time of a request went into.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/parse.h"
#include "apps/cluster/account_view.h"
#include "apps/cluster/admin_client.h"
#include "apps/cluster/json_fields.h"
#include "apps/commands/commands.h"
#include "serve/observe/request_registry.h"

namespace millrace::apps {
namespace {

struct WhyFlags {
  AdminFlags admin;
  std::string request;
  std::optional<int> slowest;
  bool json = false;
};

// Characters with a meaning of their own in a URL become "%2F" and so on.
std::string PathEscaped(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

Status RunWhy(const WhyFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  if (flags.slowest) {
    MR_ASSIGN_OR_RETURN(const Json answer,
                        client.Get(fmt::format("/debug/requests?slowest={}", *flags.slowest)));
    fmt::print("{}", flags.json ? answer.dump(2) + "\n" : FormatSlowest(answer));
    return OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Json answer, client.Get("/debug/requests/" + PathEscaped(flags.request)));
  if (flags.json) {
    answer["verdict"] = AccountVerdict(answer);
    fmt::print("{}\n", answer.dump(2));
    return OkStatus();
  }
  fmt::print("{}", FormatAccount(answer));
  for (const Json& other : ObjectsField(answer, "others")) {
    fmt::print("\n{}", FormatAccount(other));
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakeWhyCommand() {
  auto command = std::make_unique<Command>();
  command->name = "why";
  command->summary = "Show what the time of a request went into, and what to do about it";
  command->description =
      "Prints a request's time as a list that adds up: in the queue and behind whom, in steps that "
      "computed its prompt or its tokens and what shared them, waiting, moving, delivering. The "
      "last line names the largest part and its cure. Works while the request runs and for the "
      "last 256 that ended. A request is named by its number, the id of its answer, or its "
      "x-request-id.";
  command->examples = {{"millrace why --slowest 5", "the slowest requests that ended lately"},
                       {"millrace why 17", "one of them, in full"},
                       {"millrace why cmpl-4f2a0c81 --json", "for scripts"}};
  auto flags = std::make_shared<WhyFlags>();
  Option request = TextOption("request", "REQUEST", &flags->request);
  request.positional = request.command_line_only = true;
  command->Add("Request", std::move(request), "Its number, the id of its answer, or x-request-id");
  command->Add("Request",
               IntOption("slowest", "N", &flags->slowest, 1,
                         static_cast<int64_t>(serve::kEndedRequestsKept)),
               "List the slowest of the requests that ended lately");
  command->Add("Output", FlagOption("json", &flags->json),
               "Print the answer of GET /debug/requests/{id}, with the verdict");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] {
    if (flags->request.empty() == !flags->slowest) {
      return InvalidArgument("give a REQUEST, or --slowest N to find one");
    }
    return OkStatus();
  };
  command->run = [flags] { return RunWhy(*flags); };
  return command;
}

}  // namespace millrace::apps
