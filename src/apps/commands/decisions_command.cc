// millrace decisions: what the autopilot of a cluster decided, and why.
#include <fmt/format.h>

#include <algorithm>

#include "apps/autopilot/decision_json.h"
#include "apps/cli/parse.h"
#include "apps/cluster/admin_client.h"
#include "apps/cluster/json_fields.h"
#include "apps/commands/commands.h"

namespace millrace::apps {
namespace {

constexpr int kShownDefault = 20;

struct DecisionsFlags {
  AdminFlags admin;
  std::optional<int> id, plan;
  int last = kShownDefault;
  bool json = false;
};

Status NoSuchDecision(int id) {
  return NotFound(
      fmt::format("there is no decision {}: `millrace decisions` lists those that are kept", id));
}

Status RunDecisions(const DecisionsFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  MR_ASSIGN_OR_RETURN(const Json answer, client.Get("/cluster/decisions"));
  if (!FlagField(answer, "autopilot")) {
    return FailedPrecondition(
        "the cluster has no autopilot: start its controller with --autopilot advise or act");
  }
  if (flags.json) {
    fmt::print("{}\n", answer.dump(2));
    return OkStatus();
  }
  const std::vector<Json> written = ObjectsField(answer, "decisions");
  std::vector<cluster::Decision> decisions;
  for (const Json& json : written) decisions.push_back(ReadDecision(json));
  if (const std::optional<int> id = flags.plan ? flags.plan : flags.id) {
    const auto found = std::ranges::find_if(
        decisions, [&id](const auto& decision) { return std::cmp_equal(decision.id, *id); });
    if (found == decisions.end()) return NoSuchDecision(*id);
    if (!flags.plan) {
      fmt::print("{}", DecisionText(*found, true));
      return OkStatus();
    }
    // As the controller wrote it, which may be of another release.
    const auto candidates =
        ObjectsField(written[static_cast<size_t>(found - decisions.begin())], "candidates");
    const Json text = candidates.empty() ? Json() : ValueField(candidates.front(), "plan");
    if (!text.is_string()) {
      return FailedPrecondition(fmt::format("decision {} found no plan", *id));
    }
    fmt::print("{}", text.get<std::string>());
    return OkStatus();
  }
  if (decisions.empty()) fmt::print("The autopilot has decided nothing so far.\n");
  const auto skipped = std::max<ptrdiff_t>(0, std::ssize(decisions) - flags.last);
  for (size_t i = static_cast<size_t>(skipped); i < decisions.size(); ++i) {
    fmt::print("{}", DecisionText(decisions[i], false));
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakeDecisionsCommand() {
  auto command = std::make_unique<Command>();
  command->name = "decisions";
  command->summary = "Show what the autopilot decided, and why";
  command->description =
      "Lists the decisions of the autopilot of a running cluster, the newest last: what made it "
      "look for a better plan, what it decided and why, and what came of it. With an id, the plans "
      "that it compared as well.";
  command->examples = {
      {"millrace decisions", "the last twenty"},
      {"millrace decisions 12", "one of them, with the plans that were compared"},
      {"millrace decisions --plan 12 > plan.yaml", "the best plan of a decision, for plan apply"}};
  auto flags = std::make_shared<DecisionsFlags>();
  Option id = IntOption("id", "ID", &flags->id, 1, INT32_MAX);
  id.positional = id.command_line_only = true;
  command->Add("Output", std::move(id), "Show this decision in full");
  command->Add("Output", IntOption("plan", "ID", &flags->plan, 1, INT32_MAX),
               "Print the best plan that this decision found, as a plan file");
  command->Add("Output", IntOption("last", "N", &flags->last, 1, INT32_MAX),
               "Show at most so many");
  command->Add("Output", FlagOption("json", &flags->json),
               "Print the answer of GET /cluster/decisions");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] {
    if (flags->json && (flags->id || flags->plan)) {
      return InvalidArgument("--json prints every decision; leave out the id");
    }
    if (flags->id && flags->plan) {
      return InvalidArgument("give the id alone, or --plan ID alone");
    }
    if (flags->admin.given.contains("last") && (flags->json || flags->id || flags->plan)) {
      return InvalidArgument("--last goes with the list; leave it out");
    }
    return OkStatus();
  };
  command->run = [flags] { return RunDecisions(*flags); };
  return command;
}

}  // namespace millrace::apps
