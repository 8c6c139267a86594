// millrace cluster: what a running cluster consists of.
#include <fmt/format.h>

#include "apps/cli/parse.h"
#include "apps/cluster/admin_client.h"
#include "apps/cluster/live_cluster.h"
#include "apps/commands/commands.h"
#include "base/file.h"

namespace millrace::apps {
namespace {

constexpr double kWaitMax_s = 86400;

struct DescribeFlags {
  AdminFlags admin;
  std::string out;
  double wait_s = 0;
};

Status RunDescribe(const DescribeFlags& flags) {
  MR_ASSIGN_OR_RETURN(const std::string text,
                      FetchClusterFile(flags.admin, Duration::Seconds(flags.wait_s)));
  if (!flags.out.empty()) return WriteFileAtomically(flags.out, text);
  fmt::print("{}", text);
  return OkStatus();
}

std::unique_ptr<Command> MakeDescribeCommand() {
  auto command = std::make_unique<Command>();
  command->name = "describe";
  command->summary = "Write a running cluster as a cluster file for the planner";
  command->description =
      "Asks a controller which workers have joined and writes them as the cluster file that "
      "`millrace plan --cluster` reads: device, memory, zone, price, the profile that each worker "
      "has measured or brought, and the links between workers as far as they were measured. The "
      "nodes have the workers' names, so that `millrace plan apply` takes a plan for them.";
  command->examples = {
      {"millrace cluster describe > cluster.yaml", "the controller on this machine"},
      {"millrace plan --cluster cluster.yaml --model models/demo --out plan.yaml",
       "a plan for what runs"}};
  auto flags = std::make_shared<DescribeFlags>();
  Option out = TextOption("out", "FILE", &flags->out);
  out.kind = ValueKind::kFile;
  command->Add("Output", std::move(out), "File to write instead of standard output");
  command->Add(
      "Output", RealOption("wait", "SECONDS", &flags->wait_s, 0, kWaitMax_s),
      "Wait until each worker has a profile and each link has been measured; if that takes "
      "longer, say what lacks and write nothing");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->run = [flags] { return RunDescribe(*flags); };
  return command;
}

}  // namespace

std::unique_ptr<Command> MakeClusterCommand() {
  auto command = std::make_unique<Command>();
  command->name = "cluster";
  command->summary = "Describe a running cluster";
  command->description = "Commands about the machines of a running cluster.";
  command->examples = {{"millrace cluster describe > cluster.yaml", "for the planner"}};
  command->children.push_back(MakeDescribeCommand());
  return command;
}

}  // namespace millrace::apps
