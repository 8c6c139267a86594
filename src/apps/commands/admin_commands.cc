// The commands that call a controller's admin routes: status, drain, migrate, plan apply, plan
// diff.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "apps/autopilot/decision_json.h"
#include "apps/cli/parse.h"
#include "apps/cluster/admin_client.h"
#include "apps/cluster/cluster_view.h"
#include "apps/cluster/json_fields.h"
#include "apps/cluster/plan_diff.h"
#include "apps/commands/commands.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/io/yaml_reader.h"

namespace millrace::apps {
namespace {

constexpr auto kPollEvery = std::chrono::milliseconds(500);
constexpr auto kWatchEvery = std::chrono::seconds(1);
constexpr double kTimeoutMax_s = 86400;
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

struct WaitFlags {
  bool wait = true;
  double timeout_s = 600;
};

void AddWaitOptions(Command& command, WaitFlags* flags) {
  constexpr char kGroup[] = "Waiting";
  command.Add(kGroup, FlagOption("wait", &flags->wait), "Wait until it is done").negatable = true;
  command.Add(kGroup, RealOption("timeout", "SECONDS", &flags->timeout_s, 0, kTimeoutMax_s),
              "Stop waiting after this time; the operation continues");
}

Status Validate(const WaitFlags& flags, const AdminFlags& admin) {
  if (flags.wait || !admin.given.contains("timeout")) return OkStatus();
  return InvalidArgument(
      "--timeout limits how long the command waits; omit --timeout or --no-wait");
}

Option PositionalText(std::string name, std::string value_name, std::string* target) {
  Option option = TextOption(std::move(name), std::move(value_name), target);
  option.positional = option.required = option.command_line_only = true;
  return option;
}

Result<ClusterView> Look(AdminClient& client) {
  MR_ASSIGN_OR_RETURN(const Json status, client.Get("/cluster/status"));
  return ReadClusterView(status);
}

// Returns what remains to be done, as a line; nullopt: nothing.
using Remaining = std::function<Result<std::optional<std::string>>(const ClusterView&)>;

// Polls the status. Prints to stderr what remains whenever that changes.
Status WaitUntilDone(AdminClient& client, const WaitFlags& flags, const Remaining& remaining) {
  const SteadyClock clock;
  const Time end = clock.Now() + Duration::Seconds(flags.timeout_s);
  std::string printed;
  while (true) {
    MR_ASSIGN_OR_RETURN(const ClusterView view, Look(client));
    MR_ASSIGN_OR_RETURN(const std::optional<std::string> rest, remaining(view));
    if (!rest) return OkStatus();
    if (*rest != printed) fmt::print(stderr, "{}\n", *rest);
    printed = *rest;
    if (clock.Now() >= end) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("not done after --timeout {}: {}; the operation continues",
                                flags.timeout_s, *rest));
    }
    std::this_thread::sleep_for(kPollEvery);
  }
}

// ---- status

struct StatusFlags {
  AdminFlags admin;
  bool json = false, watch = false, advice = false;
};

Status PrintAdvice(AdminClient& client) {
  MR_ASSIGN_OR_RETURN(const Json status, client.Get("/cluster/status"));
  const Json autopilot = status.value("autopilot", Json());
  if (!autopilot.is_object()) {
    return FailedPrecondition(
        "the cluster has no autopilot: start its controller with --autopilot advise or act");
  }
  const Json advice = autopilot.value("advice", Json());
  if (!advice.is_object()) {
    fmt::print("The autopilot advises no change; it is {}.\n", TextField(autopilot, "state"));
    return OkStatus();
  }
  const cluster::Decision decision = ReadDecision(advice);
  fmt::print(
      "{}To follow it: millrace decisions --plan {} > plan.yaml; millrace plan apply "
      "plan.yaml\n",
      DecisionText(decision, true), decision.id);
  return OkStatus();
}

Status PrintStatus(AdminClient& client, bool json) {
  MR_ASSIGN_OR_RETURN(const Json status, client.Get("/cluster/status"));
  fmt::print("{}", json ? status.dump(2) + "\n" : FormatClusterView(ReadClusterView(status)));
  std::fflush(stdout);
  return OkStatus();
}

// Shows again and again what has changed since the last look.
class StatusWatch {
 public:
  StatusWatch(AdminClient& client, bool json) : client_(client), json_(json) {}

  Status Print() {
    MR_ASSIGN_OR_RETURN(const Json status, client_.Get("/cluster/status"));
    if (json_) {
      fmt::print("{}\n", status.dump(2));
      return OkStatus();
    }
    const Time now = clock_.Now();
    if (earlier_) earlier_->seconds = (now - looked_at_).seconds();
    ClusterView view = ReadClusterView(status);
    fmt::print("{}", FormatClusterNow(view, earlier_));
    earlier_ = EarlierView{.view = std::move(view)};
    looked_at_ = now;
    return OkStatus();
  }

 private:
  const SteadyClock clock_;
  AdminClient& client_;
  const bool json_;
  std::optional<EarlierView> earlier_;
  Time looked_at_;
};

Status RunStatus(const StatusFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  if (flags.advice) return PrintAdvice(client);
  StatusWatch watch(client, flags.json);
  while (flags.watch) {
    if (isatty(STDOUT_FILENO) == 1) fmt::print("{}", kClearScreen);
    const Status shown = watch.Print();
    // Continues while the controller restarts.
    if (shown.code() == StatusCode::kUnavailable) fmt::print("{}\n", shown.message());
    if (!shown.ok() && shown.code() != StatusCode::kUnavailable) return shown;
    if (std::fflush(stdout) != 0) return Unavailable("cannot write to standard output");
    std::this_thread::sleep_for(kWatchEvery);
  }
  return PrintStatus(client, flags.json);
}

// ---- drain

struct DrainFlags {
  AdminFlags admin;
  WaitFlags wait;
  std::string worker;
};

Result<std::optional<std::string>> DrainRemaining(const ClusterView& view,
                                                  const std::string& name) {
  const std::string shown = Printable(name, 64);
  int64_t requests = 0;
  int pipelines = 0;
  for (const PipelineView& pipeline : view.pipelines) {
    if (std::find(pipeline.workers.begin(), pipeline.workers.end(), shown) ==
        pipeline.workers.end())
      continue;
    requests += pipeline.requests;
    ++pipelines;
  }
  for (const WorkerView& worker : view.workers) {
    if (worker.name != shown || (worker.layers.empty() && pipelines == 0)) continue;
    if (worker.state == "serving" && view.given_up) {
      return FailedPrecondition(
          fmt::format("{} keeps serving, because the change of plan that would have freed it was "
                      "given up: {}",
                      shown, view.given_up->reason));
    }
    return std::optional(fmt::format("{} still has layers {} and {} requests on its pipelines",
                                     shown, LayersText(worker.layers), requests));
  }
  return std::optional<std::string>();
}

Status RunDrain(const DrainFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  MR_RETURN_IF_ERROR(client.Post("/cluster/drain", {{"worker", flags.worker}}).status());
  if (!flags.wait.wait) return OkStatus();
  MR_RETURN_IF_ERROR(WaitUntilDone(client, flags.wait, [&flags](const ClusterView& view) {
    return DrainRemaining(view, flags.worker);
  }));
  fmt::print("{} is free; it can be stopped\n", Printable(flags.worker, 64));
  return OkStatus();
}

// ---- migrate

struct MigrateFlags {
  AdminFlags admin;
  std::string request, worker;
};

Status RunMigrate(const MigrateFlags& flags) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  return client.Post("/cluster/migrate", {{"request", flags.request}, {"worker", flags.worker}})
      .status();
}

// ---- plan apply, plan diff

struct PlanFlags {
  AdminFlags admin;
  WaitFlags wait;
  std::string plan;
};

Result<PlanDiff> Diff(AdminClient& client, const PlanFlags& flags, const std::string& text) {
  MR_ASSIGN_OR_RETURN(const WorkerPlan then, plan::ParseWorkerPlan(text, flags.plan));
  MR_ASSIGN_OR_RETURN(const ClusterView now, Look(client));
  return DiffPlans(now, then);
}

Status RunPlanDiff(const PlanFlags& flags) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan, plan::kYamlBytesMax));
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  MR_ASSIGN_OR_RETURN(const PlanDiff diff, Diff(client, flags, text));
  fmt::print("{}", FormatPlanDiff(diff));
  return OkStatus();
}

Status RunPlanApply(const PlanFlags& flags) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan, plan::kYamlBytesMax));
  MR_RETURN_IF_ERROR(plan::ParseWorkerPlan(text, flags.plan).status());
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags.admin));
  MR_ASSIGN_OR_RETURN(const ClusterView before, Look(client));
  MR_RETURN_IF_ERROR(client.Post("/cluster/plan", {{"plan", text}}).status());
  if (!flags.wait.wait) return OkStatus();
  int64_t epoch = before.epoch;
  MR_RETURN_IF_ERROR(WaitUntilDone(
      client, flags.wait,
      [&epoch, old = before.epoch](const ClusterView& view) -> Result<std::optional<std::string>> {
        epoch = view.epoch;
        if (view.changing) {
          return std::optional(
              fmt::format("plan {} stays in force while the new one is loaded", view.epoch));
        }
        if (view.epoch == old) {
          return FailedPrecondition(
              fmt::format("the plan was given up and plan {} stays in force: {}", view.epoch,
                          view.given_up ? view.given_up->reason : "the controller's log says why"));
        }
        return std::optional<std::string>();
      }));
  fmt::print("plan {} is in force\n", epoch);
  return OkStatus();
}

std::shared_ptr<PlanFlags> AddPlanFile(Command& command) {
  auto flags = std::make_shared<PlanFlags>();
  Option plan = PositionalText("plan", "PLAN", &flags->plan);
  plan.kind = ValueKind::kFile;
  command.Add("Plan", std::move(plan), "The plan file; its nodes are workers' names");
  AddAdminOptions(command, &flags->admin);
  return flags;
}

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() {
  auto command = std::make_unique<Command>();
  command->name = "status";
  command->summary = "Show a running cluster: stages, requests, flow, workers";
  command->description =
      "Draws the plan in force as text: the stages by role, with their layers, requests and KV, "
      "and "
      "how much flows between them, planned and measured. Then come the workers, their machines, "
      "and what has happened since the controller started. With --watch, measured flow is per "
      "second, since the last look.";
  command->examples = {{"millrace status", "the controller on this machine"},
                       {"millrace status --watch", "the plan and its flow, again every second"},
                       {"millrace status --json | jq '.workers[] | select(.state != \"serving\")'",
                        "for scripts: the answer of GET /cluster/status"}};
  auto flags = std::make_shared<StatusFlags>();
  command->Add("Output", FlagOption("json", &flags->json), "Print JSON");
  command->Add("Output", FlagOption("watch", &flags->watch), "Show it again every second");
  command->Add("Output", FlagOption("advice", &flags->advice),
               "Show the change of plan that the autopilot advises, and why");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] {
    if (!flags->advice || (!flags->json && !flags->watch)) return OkStatus();
    return InvalidArgument("--advice is for people; --json has it under autopilot.advice");
  };
  command->run = [flags] { return RunStatus(*flags); };
  return command;
}

std::unique_ptr<Command> MakeDrainCommand() {
  auto command = std::make_unique<Command>();
  command->name = "drain";
  command->summary = "Take a worker out of service without losing a token";
  command->description =
      "The controller gives the worker's layers to others and moves its requests there, with their "
      "KV where that is possible. Waits until the worker holds nothing; then it can be stopped. It "
      "gets no layers until it joins again.";
  command->examples = {{"millrace drain w2", "before maintenance of its machine"},
                       {"millrace drain w2 --no-wait", "return without waiting"}};
  auto flags = std::make_shared<DrainFlags>();
  command->Add("Worker", PositionalText("worker", "WORKER", &flags->worker),
               "The name under which it joined");
  AddWaitOptions(*command, &flags->wait);
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] { return Validate(flags->wait, flags->admin); };
  command->run = [flags] { return RunDrain(*flags); };
  return command;
}

std::unique_ptr<Command> MakeMigrateCommand() {
  auto command = std::make_unique<Command>();
  command->name = "migrate";
  command->summary = "Move a running request to another worker, with its KV";
  command->description =
      "The request continues where it is while most of its KV is copied, pauses for the rest, and "
      "continues on the other worker. Its client sees a pause but misses no token. If the copy "
      "fails, the request is computed again from its tokens.";
  command->examples = {
      {"millrace migrate 42 w3", "by the engine's number"},
      {"millrace migrate cmpl-7f3a... w3", "by the answer's id; an x-request-id works as well"}};
  auto flags = std::make_shared<MigrateFlags>();
  command->Add("Move", PositionalText("request", "REQUEST", &flags->request),
               "Its number, its answer's id or its x-request-id");
  command->Add("Move", PositionalText("worker", "WORKER", &flags->worker),
               "A worker of the pipeline to move it to");
  AddAdminOptions(*command, &flags->admin);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->run = [flags] { return RunMigrate(*flags); };
  return command;
}

std::unique_ptr<Command> MakePlanApplyCommand() {
  auto command = std::make_unique<Command>();
  command->name = "apply";
  command->summary = "Change a running cluster to another plan";
  command->description =
      "The controller loads what the new plan needs beside what is there, moves the affected "
      "requests with their KV, and drops what is not needed any more. Other requests do not stop. "
      "If the change fails, the old plan stays in force.";
  command->examples = {{"millrace plan apply plan.yaml", "and wait until it is in force"},
                       {"millrace plan apply plan.yaml --no-wait", "return without waiting"}};
  auto flags = AddPlanFile(*command);
  AddWaitOptions(*command, &flags->wait);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] { return Validate(flags->wait, flags->admin); };
  command->run = [flags] { return RunPlanApply(*flags); };
  return command;
}

std::unique_ptr<Command> MakePlanDiffCommand() {
  auto command = std::make_unique<Command>();
  command->name = "diff";
  command->summary = "Show what a plan would change in a running cluster";
  command->description =
      "Compares the layers that each worker holds with those that the plan gives it: what it would "
      "fetch, what it would drop, and about how many bytes that is. Changes nothing.";
  command->examples = {{"millrace plan diff plan.yaml", "before millrace plan apply plan.yaml"}};
  auto flags = AddPlanFile(*command);
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->run = [flags] { return RunPlanDiff(*flags); };
  return command;
}

}  // namespace millrace::apps
