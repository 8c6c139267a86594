// millrace plan check and explain: whether a plan from a file is sound, and what limits it.
#include <fmt/format.h>

#include <optional>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/slo_option.h"
#include "apps/plan/explain.h"
#include "apps/plan/explain_roles.h"
#include "apps/plan/inputs.h"
#include "apps/plan/report.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "plan/flow/check.h"
#include "plan/flow/trunks.h"
#include "plan/io/plan_yaml.h"
#include "plan/io/quantity.h"
#include "plan/io/yaml_reader.h"
#include "plan/rank_plans.h"

namespace millrace::apps {
namespace {

struct ReadPlanFlags {
  PlanInputFlags inputs;
  std::string plan;
  LatencyLimits slo;  // of --slo
  bool json = false;
  double seconds_per_kind = 2;
};

struct ReadPlan {
  PlanInputs inputs;
  Plan plan;
  plan::FlowProblem problem;  // with the trunks that the plan fills
  plan::CheckOptions options;
  std::vector<std::string> violations;
};

void AddTrunkViolations(ReadPlan& read) {
  constexpr double kFits = 1 + 1e-6;
  for (const plan::TrunkLoad& load :
       TrunkLoads(read.inputs.cluster, read.plan, read.inputs.token_bytes)) {
    if (load.ratio() <= kFits) continue;
    read.violations.push_back(
        fmt::format("the trunk '{}' would carry {} in one direction and has {}",
                    read.inputs.cluster.trunks[static_cast<size_t>(load.trunk)].name,
                    plan::FormatQuantity(plan::Quantity::kBandwidth, load.bytes_per_s),
                    plan::FormatQuantity(plan::Quantity::kBandwidth, load.capacity)));
  }
}

Result<ReadPlan> Load(const ReadPlanFlags& flags) {
  ReadPlan out;
  MR_ASSIGN_OR_RETURN(const ClusterSpec cluster, LoadCluster(flags.inputs));
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan, plan::kYamlBytesMax));
  MR_ASSIGN_OR_RETURN(out.plan, plan::ParsePlanYaml(text, flags.plan, cluster));
  PlanInputFlags inputs = flags.inputs;
  inputs.partial = out.plan.partial_inference;
  if (inputs.model.empty() && inputs.capacity.empty()) inputs.model = out.plan.model;
  MR_ASSIGN_OR_RETURN(out.inputs, LoadPlanInputs(inputs));
  if (out.plan.num_layers != out.inputs.problem.num_layers) {
    return InvalidArgument(fmt::format(
        "{}: the plan is for {} layers and {} has {}", Printable(flags.plan), out.plan.num_layers,
        Printable(out.inputs.problem.model, 60), out.inputs.problem.num_layers));
  }
  AddTrunkViolations(out);
  plan::CheckOptions& options = out.options;
  options.kv_affinity = out.inputs.cluster.kv_affinity;
  for (const NodeSpec& node : out.inputs.cluster.nodes) {
    options.numeric_classes.push_back(node.numeric_class);
  }
  if (out.inputs.goodput) {
    options.prompt_tokens = out.inputs.goodput->prompt_tokens;
    options.output_tokens = out.inputs.goodput->output_tokens;
  }
  out.problem =
      WithTrunksFull(out.inputs.problem, out.inputs.cluster, out.plan, out.inputs.token_bytes);
  if (out.violations.empty()) out.violations = CheckPlan(out.problem, out.plan, options);
  return out;
}

Status Refused(const ReadPlanFlags& flags, const std::vector<std::string>& violations) {
  return InvalidArgument(fmt::format(
      "{}: {}{}; --workload and --capacity must be the same as for making the plan",
      Printable(flags.plan), violations.front(),
      violations.size() > 1 ? fmt::format(" (and {} more)", violations.size() - 1) : ""));
}

Status RunCheck(const ReadPlanFlags& flags) {
  MR_ASSIGN_OR_RETURN(const ReadPlan read, Load(flags));
  if (flags.json) {
    const Json out = {{"sound", read.violations.empty()},
                      {"violations", read.violations},
                      {"tokens_per_s", read.plan.tokens_per_s},
                      {"max_flow", RecomputeFlow(read.problem, read.plan, read.options)}};
    fmt::print("{}\n", DumpJson(out));
  }
  if (!read.violations.empty()) return Refused(flags, read.violations);
  if (flags.json) return OkStatus();
  // Hand-overs and latency limits bound a plan with roles below what its stages carry.
  fmt::print("{}: sound; {:.3f} tokens/s, and {} {:.3f}\n", Printable(flags.plan),
             read.plan.tokens_per_s, plan::HasRoles(read.plan) ? "its stages carry" : "recomputed",
             RecomputeFlow(read.problem, read.plan, read.options));
  return OkStatus();
}

void ShowTried(ProgressText& text, const std::string& kind) {
  text.Show("trying one more " + Printable(kind, 60));
}

Status ExplainWithRoles(const ReadPlanFlags& flags, const ReadPlan& read, const Clock& clock,
                        std::optional<ProgressText>& text) {
  if (!read.inputs.goodput) {
    return InvalidArgument(
        "a plan with roles is explained with --model: a table of rates says "
        "nothing about prefill and decode apart");
  }
  const RoleExplanation explanation =
      ExplainRoles(read.inputs, read.plan,
                   {.clock = &clock,
                    .seconds_per_kind = flags.seconds_per_kind,
                    .progress = [&text](const std::string& kind) { ShowTried(*text, kind); }});
  text.reset();
  if (flags.json) {
    fmt::print("{}\n", DumpJson(RoleExplanationJson(explanation)));
    return OkStatus();
  }
  fmt::print("{}\n{}", RoleExplanationText(explanation, read.plan, read.inputs.cluster),
             PlanText(read.plan, read.inputs.cluster));
  return OkStatus();
}

Status RunExplain(const ReadPlanFlags& flags) {
  MR_ASSIGN_OR_RETURN(ReadPlan read, Load(flags));
  if (!read.violations.empty()) return Refused(flags, read.violations);
  if (flags.slo.any() && !plan::HasRoles(read.plan)) {
    return InvalidArgument(fmt::format(
        "{}: --slo is for plans with roles; this plan has none and is explained by its flow",
        Printable(flags.plan)));
  }
  MR_ASSIGN_OR_RETURN(read.inputs.limits, CompleteSlo(flags.slo, read.inputs.limits));
  const SteadyClock clock;
  std::optional<ProgressText> text(std::in_place, stderr, ProgressStyle::ForStream(stderr));
  if (plan::HasRoles(read.plan)) return ExplainWithRoles(flags, read, clock, text);
  ExplainOptions options;
  options.clock = &clock;
  options.seconds_per_kind = flags.seconds_per_kind;
  options.progress = [&text](const std::string& kind) { ShowTried(*text, kind); };
  auto explanation = ExplainPlan(read.inputs, read.plan, options);
  text.reset();
  if (!explanation.ok()) return explanation.status();
  if (flags.json) {
    fmt::print("{}\n", DumpJson(ExplanationJson(*explanation)));
    return OkStatus();
  }
  fmt::print("{}\n{}", ExplanationText(*explanation, read.plan),
             PlanText(read.plan, read.inputs.cluster));
  return OkStatus();
}

void AddReadOptions(Command& command, ReadPlanFlags* flags) {
  Option plan = TextOption("plan", "PLAN", &flags->plan);
  plan.kind = ValueKind::kFile;
  plan.positional = plan.required = true;
  plan.command_line_only = true;
  command.Add("Arguments", std::move(plan), "The plan, as 'millrace plan --out' wrote it");
  AddPlanInputOptions(command, &flags->inputs);
  command.Add("Result", FlagOption("json", &flags->json), "Print JSON");
}

Status Validate(const ReadPlanFlags& flags) {
  PlanInputFlags inputs = flags.inputs;
  if (inputs.model.empty()) inputs.model = "that of the plan";
  return ValidatePlanInputs(inputs);
}

}  // namespace

std::unique_ptr<Command> MakePlanCheckCommand() {
  auto command = std::make_unique<Command>();
  command->name = "check";
  command->summary = "Check whether a plan can be carried out and delivers what it claims";
  command->description =
      "Checks coverage, memory, flow and links of a plan with code that shares nothing with the "
      "planner, at the rates of the same --workload or --capacity. Exits with 1 and the first "
      "violation if the plan is not sound.";
  command->log_level = "warning";
  command->examples = {{"millrace plan check plan.yaml --cluster cluster.yaml",
                        "checks the plan against the machines it was made for"}};
  auto flags = std::make_shared<ReadPlanFlags>();
  AddReadOptions(*command, flags.get());
  AddGeneralOptions(*command);
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunCheck(*flags); };
  return command;
}

std::unique_ptr<Command> MakePlanExplainCommand() {
  auto command = std::make_unique<Command>();
  command->name = "explain";
  command->summary = "Show what limits a plan and what one more machine would add";
  command->description =
      "Shows the binding cut and the bottleneck of a plan, the utilisation of each node, and how "
      "much one more node of each kind would add.";
  command->log_level = "warning";
  command->examples = {
      {"millrace plan explain plan.yaml --cluster cluster.yaml", "why it is not faster"}};
  auto flags = std::make_shared<ReadPlanFlags>();
  AddReadOptions(*command, flags.get());
  command->Add(
      "Limits", SloOption(&flags->slo),
      std::string(kSloHelp) + ". For a plan with roles; its limits replace those of --workload");
  command->Add("Search",
               RealOption("seconds-per-kind", "SECONDS", &flags->seconds_per_kind, 0.1, 3600),
               "Search time for a plan with one more node of a kind");
  AddGeneralOptions(*command);
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunExplain(*flags); };
  return command;
}

}  // namespace millrace::apps
