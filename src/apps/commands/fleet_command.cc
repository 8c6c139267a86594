// millrace fleet: the machines of a cluster, and what they cost.
#include <fmt/format.h>

#include "apps/cli/parse.h"
#include "apps/cluster/admin_client.h"
#include "apps/commands/commands.h"
#include "apps/fleet/fleet_json.h"

namespace millrace::apps {
namespace {

struct FleetFlags {
  AdminFlags admin;
  bool json = false;
};

Status RunFleet(const FleetFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  MR_ASSIGN_OR_RETURN(const Json status, client.Get("/cluster/status"));
  const Json fleet = status.value("fleet", Json());
  if (!fleet.is_object()) {
    return FailedPrecondition("the cluster has no fleet: start its controller with --fleet FILE");
  }
  fmt::print("{}", flags.json ? DumpJson(fleet) + "\n" : FleetText(fleet));
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakeFleetCommand() {
  auto command = std::make_unique<Command>();
  command->name = "fleet";
  command->summary = "Show the machines of a cluster, and what they cost";
  command->description =
      "Shows, for each kind of machine, how many there should be and how many there are; what they "
      "cost now and per million tokens; and what was acquired and released lately, and why.";
  command->examples = {{"millrace fleet", "the fleet of the controller on this machine"}};
  auto flags = std::make_shared<FleetFlags>();
  command->Add("Output", FlagOption("json", &flags->json),
               "Print \"fleet\" of GET /cluster/status");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->run = [flags] { return RunFleet(*flags); };
  return command;
}

}  // namespace millrace::apps
