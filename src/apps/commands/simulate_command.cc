// millrace simulate: predicts what a deployment delivers, with the production scheduler on a
// virtual clock.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/autopilot/decision_json.h"
#include "apps/autopilot/simulated_pilot.h"
#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/common/dispatch_option.h"
#include "apps/simulate/pictures.h"
#include "apps/simulate/replay.h"
#include "apps/simulate/runner.h"
#include "apps/simulate/workload_args.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"

namespace millrace::apps {
namespace {

constexpr size_t kTimelineSteps = 20'000;  // for pictures
constexpr size_t kTraceSteps = 200'000;    // for --trace
constexpr int kSeedsMax = 1000;

struct SimulateFlags {
  DeploymentFlags deployment;
  WorkloadArgs workload;
  RunOptions run;
  AutopilotFlags autopilot;
  int64_t seed = 0;
  bool goodput = false, json = false, no_progress = false;
  double goodput_tolerance_percent = 2;
  std::string csv, plot, trace, replay;
  std::set<std::string> given;
};

// Rejects options that have no effect with the other given ones.
Status RefuseUnread(const SimulateFlags& flags) {
  const DeploymentFlags& deployment = flags.deployment;
  if (!flags.goodput) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"goodput-tolerance"}, "needs --goodput"));
  }
  if (deployment.profile.empty()) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"pace"}, "needs --profile"));
  }
  if (deployment.engine.swap_gib <= 0) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"swap-bandwidth"}, "needs --swap-space"));
  }
  if (!deployment.cluster.empty()) {
    return RefuseGiven(flags.given,
                       {"dispatch", "kv-policy", "preemption-mode", "swap-space", "kv-bandwidth"},
                       "is for instances that are all alike; leave it out with --plan");
  }
  if (deployment.prefill_instances == 0 && deployment.membership.availability.empty()) {
    MR_RETURN_IF_ERROR(
        RefuseGiven(flags.given, {"kv-bandwidth"}, "needs --prefill-instances or --availability"));
  }
  if (flags.run.scheduling == Scheduling::kStatic) {
    return RefuseGiven(
        flags.given,
        {"dispatch", "step-mix", "scheduling-policy", "preemption-mode", "swap-space", "kv-policy",
         "enable-prefix-caching", "max-num-batched-tokens", "scheduler-overhead", "pace"},
        "is for Millrace's scheduler; leave it out with --scheduling static");
  }
  return OkStatus();
}

Status ValidatePiloted(const SimulateFlags& flags) {
  if (flags.goodput) {
    return InvalidArgument(
        "--goodput runs many rates, and --autopilot searches for plans in each; leave one out");
  }
  if (flags.deployment.membership.on_notice == sim::OnNotice::kFinish) {
    return InvalidArgument(
        "--on-notice finish tells the autopilot nothing before a machine is lost; leave it out "
        "with "
        "--autopilot, or set --notice 0");
  }
  return OkStatus();
}

Status Validate(const SimulateFlags& flags) {
  if (!flags.replay.empty()) {
    return RefuseOthers(flags.given,
                        {"replay", "json", "no-progress", "config", "log-level", "log-format"},
                        "is for a forecast; leave it out with --replay");
  }
  MR_RETURN_IF_ERROR(ValidateAutopilot(flags.autopilot, flags.given));
  DeploymentFlags deployment = flags.deployment;
  deployment.by_node = flags.autopilot.choice != AutopilotChoice::kOff;
  if (deployment.by_node) MR_RETURN_IF_ERROR(ValidatePiloted(flags));
  MR_RETURN_IF_ERROR(ValidateDeployment(deployment));
  MR_RETURN_IF_ERROR(ValidateWorkloadArgs(flags.workload));
  if (!flags.deployment.cluster.empty() && flags.run.scheduling == Scheduling::kStatic) {
    return InvalidArgument("--scheduling static cannot be used with --plan");
  }
  if (flags.run.scheduling == Scheduling::kStatic &&
      (flags.deployment.instances.value_or(1) > 1 || flags.deployment.prefill_instances > 0 ||
       !flags.deployment.membership.availability.empty() || !flags.trace.empty())) {
    return InvalidArgument("--scheduling static has one permanent instance and writes no --trace");
  }
  return RefuseUnread(flags);
}

std::string GoodputText(const sim::Goodput& found, const sim::WorkloadSpec& workload, int seeds) {
  if (found.rate.mean == 0) {
    return "\nGoodput: none; the limits are missed at any rate: even a single request takes "
           "longer\n";
  }
  std::string text = fmt::format("\nGoodput: {:.4g} requests/s", found.rate.mean);
  if (seeds > 1) {
    text += fmt::format(" [{:.4g}, {:.4g}] over {} seeds", std::max(found.rate.low, 0.0),
                        found.rate.high, seeds);
  }
  text += fmt::format(" with {:.4g} % of the requests within all limits, {} runs\n",
                      workload.limits.share() * 100, found.trials.size());
  if (found.unbounded) text += "Every rate tried meets the limits.\n";
  return text;
}

Json GoodputJson(const sim::Goodput& found) {
  Json trials = Json::array();
  for (const sim::GoodputTrial& t : found.trials) {
    trials.push_back(
        {{"rate", t.rate}, {"seed", t.seed}, {"attainment", t.attainment}, {"kept", t.kept}});
  }
  return {{"rate", found.rate.mean},      {"rate_low", found.rate.low},
          {"rate_high", found.rate.high}, {"per_seed", found.per_seed},
          {"unbounded", found.unbounded}, {"trials", trials}};
}

// The workload's rate, or each of --rate in ascending order.
std::vector<std::optional<double>> RatesOf(const WorkloadArgs& args) {
  std::vector<std::optional<double>> rates(args.rates.begin(), args.rates.end());
  std::sort(rates.begin(), rates.end());
  if (rates.empty()) rates.emplace_back();
  return rates;
}

struct Outcome {
  Pictures pictures;
  std::vector<std::vector<cluster::Decision>> decisions;  // by report, with --autopilot
  std::optional<sim::Goodput> goodput;
};

Status NothingServed(const Deployment& deployment, const sim::SimReport& report) {
  if (report.membership && report.membership->waited_most > 0) {
    return FailedPrecondition(fmt::format(
        "all {} requests were refused: until the trace of --availability ended, no instance or no "
        "pipeline through the plan's stages was available",
        report.latency.refused));
  }
  if (deployment.plan) {
    return FailedPrecondition(fmt::format(
        "all {} requests were refused: prompt and answer may have {} tokens "
        "together, and their KV must fit on every stage of a pipeline",
        report.latency.refused, deployment.plan->options.controller.scheduler.max_model_len));
  }
  const sched::SchedulerOptions& scheduler = deployment.instance.scheduler;
  return FailedPrecondition(fmt::format(
      "all {} requests were refused: prompt and answer may have {} tokens "
      "together, and they must fit in {} KV blocks of {}",
      report.latency.refused, scheduler.max_model_len, scheduler.num_blocks, scheduler.block_size));
}

Result<Outcome> RunAll(const SimulateFlags& flags, const Deployment& deployment,
                       const sim::WorkloadSpec& workload) {
  Runner runner(deployment, workload, flags.run);
  const auto rates = RatesOf(flags.workload);
  const SteadyClock clock;
  const auto total = static_cast<int64_t>(workload.ExpectedRequests()) * flags.run.num_seeds *
                     static_cast<int64_t>(rates.size());
  ProgressStyle style = ProgressStyle::ForStream(stderr);
  style.only_long = true;
  std::optional<Progress> progress;
  if (!flags.no_progress) {
    progress.emplace("Requests", ProgressUnit::kRequests, total, stderr, style, clock);
    runner.on_progress = [&](uint64_t requests) {
      const auto done = static_cast<int64_t>(requests);
      progress->UpdateTotal(done, std::max(total, done));
    };
  }
  const size_t steps = !flags.trace.empty()  ? kTraceSteps
                       : !flags.plot.empty() ? kTimelineSteps
                                             : 0;
  Outcome out{.pictures = {.timeline = sim::Timeline(steps)}};
  for (const auto& rate : rates) {
    const bool first = out.pictures.reports.empty();
    MR_ASSIGN_OR_RETURN(sim::SimReport report,
                        runner.Run(rate, first && steps > 0 ? &out.pictures.timeline : nullptr));
    if (report.latency.requests == 0) return NothingServed(deployment, report);
    if (first) out.pictures.load = runner.load();
    if (flags.run.autopilot) out.decisions.push_back(runner.decisions());
    out.pictures.reports.push_back(std::move(report));
  }
  if (flags.goodput) {
    MR_ASSIGN_OR_RETURN(out.goodput, runner.FindGoodput(flags.goodput_tolerance_percent / 100));
  }
  return out;
}

// Checked before a long run instead of after it.
Status CheckFolderOf(const char* option, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder)) return OkStatus();
  return NotFound(
      fmt::format("{} {}: folder {} does not exist", option, Printable(path), Printable(folder)));
}

Status WriteFiles(const SimulateFlags& flags, const Outcome& outcome) {
  if (!flags.csv.empty()) {
    std::string text = sim::ReportCsvHeader();
    for (const auto& report : outcome.pictures.reports) text += sim::ReportCsvRow(report);
    MR_RETURN_IF_ERROR(WriteFileAtomically(flags.csv, text));
  }
  if (!flags.plot.empty()) {
    MR_ASSIGN_OR_RETURN(const auto names, WritePictures(outcome.pictures, flags.plot));
    for (const std::string& name : names) {
      if (!flags.json) fmt::print("Wrote {}\n", name);
    }
  }
  if (!flags.trace.empty()) {
    MR_RETURN_IF_ERROR(
        WriteFileAtomically(flags.trace, sim::ChromeTrace(outcome.pictures.timeline)));
  }
  return OkStatus();
}

void PrintJson(const Outcome& outcome) {
  Json json = {{"runs", Json::array()}};
  for (size_t i = 0; i < outcome.pictures.reports.size(); ++i) {
    Json& run = json["runs"].emplace_back(sim::ReportJson(outcome.pictures.reports[i]));
    if (outcome.decisions.empty()) continue;
    run["decisions"] = Json::array();
    for (const auto& decision : outcome.decisions[i]) run["decisions"].push_back(ToJson(decision));
  }
  json["goodput"] = outcome.goodput ? GoodputJson(*outcome.goodput) : Json();
  fmt::print("{}\n", DumpJson(json));
}

void PrintText(const SimulateFlags& flags, const Outcome& outcome,
               const sim::WorkloadSpec& workload) {
  const char* separator = "";
  for (size_t i = 0; i < outcome.pictures.reports.size(); ++i) {
    fmt::print("{}{}", separator, sim::ReportTable(outcome.pictures.reports[i]));
    separator = "\n";
    if (outcome.decisions.empty()) continue;
    fmt::print("\nDecisions of the autopilot{}\n", flags.run.num_seeds > 1 ? " (first seed)" : "");
    if (outcome.decisions[i].empty()) fmt::print("   none\n");
    for (const auto& decision : outcome.decisions[i]) {
      fmt::print("{}", DecisionText(decision, false, DecisionTimes::kSinceStart));
    }
  }
  if (outcome.goodput) {
    fmt::print("{}", GoodputText(*outcome.goodput, workload, flags.run.num_seeds));
  }
}

Status RunSimulate(const SimulateFlags& given) {
  SimulateFlags flags = given;
  flags.run.first_seed = static_cast<uint64_t>(flags.seed);
  // What a simulated controller logs has happened to nobody.
  if (!flags.given.contains("log-level")) spdlog::set_level(spdlog::level::off);
  MR_RETURN_IF_ERROR(CheckFolderOf("--csv", flags.csv));
  MR_RETURN_IF_ERROR(CheckFolderOf("--trace", flags.trace));
  MR_ASSIGN_OR_RETURN(const sim::WorkloadSpec workload, LoadWorkloadArgs(flags.workload));
  if (flags.given.contains("enable-prefix-caching") && !workload.SharesPrefixes()) {
    return InvalidArgument(
        "--enable-prefix-caching is for prompts that share prefixes: a trace with hash_ids or "
        "prefix_id, or prefixes in the workload");
  }
  flags.deployment.shares_prefixes = workload.SharesPrefixes();
  if (flags.autopilot.choice != AutopilotChoice::kOff) {
    MR_ASSIGN_OR_RETURN(SimulatedPilot pilot, PrepareAutopilot(flags.autopilot, flags.deployment,
                                                               workload, flags.run.first_seed));
    flags.deployment.by_node = true;
    flags.deployment.found = std::move(pilot.plan);
    flags.run.autopilot = std::move(pilot.options);
  }
  MR_ASSIGN_OR_RETURN(const Deployment deployment, MakeDeployment(flags.deployment));
  if (flags.goodput && !workload.limits.any()) {
    return InvalidArgument(
        "--goodput needs limits: --slo ttft=250ms tpot=100ms, or slo in the workload");
  }
  if (flags.goodput && !workload.MeanRate()) {
    return InvalidArgument("--goodput needs a workload with a rate");
  }
  MR_ASSIGN_OR_RETURN(const Outcome outcome, RunAll(flags, deployment, workload));
  if (flags.json) {
    PrintJson(outcome);
  } else {
    PrintText(flags, outcome, workload);
  }
  return WriteFiles(flags, outcome);
}

void AddPolicyOptions(Command& command, SimulateFlags* flags) {
  constexpr char kGroup[] = "Policy";
  command.Add(kGroup,
              ChoiceOption<Scheduling>(
                  "scheduling", &flags->run.scheduling,
                  {{"iteration", Scheduling::kIteration}, {"static", Scheduling::kStatic}}),
              "iteration: Millrace's scheduler; static: whole batches of at most --max-num-seqs "
              "requests, the baseline of the Orca paper");
  command.Add(kGroup,
              ChoiceOption<sched::StepMix>("step-mix", &flags->deployment.step_mix,
                                           {{"mixed", sched::StepMix::kMixed},
                                            {"prefill-first", sched::StepMix::kPrefillFirst}}),
              "mixed: prompts and decodes in one step, long prompts in chunks; prefill-first: "
              "prompts alone while there are any, as vLLM did at the time of its paper");
  command.Add(kGroup, DispatchOption(&flags->run.dispatch),
              "Instance that gets a request: the one with the fewest requests, each in turn, a "
              "random one, or the one with the least predicted prefill time ahead");
  AddPrefixCachingOption(command, kGroup, &flags->deployment.engine);
}

void AddReportOptions(Command& command, SimulateFlags* flags) {
  constexpr char kGroup[] = "Report";
  command.Add(kGroup, IntOption("seed", "N", &flags->seed, 0, INT64_MAX),
              "Random seed; the same command line prints the same bytes");
  command.Add(kGroup, IntOption("seeds", "N", &flags->run.num_seeds, 1, kSeedsMax),
              "Number of runs, with seeds from --seed on; intervals are over these runs");
  command.Add(kGroup, FlagOption("goodput", &flags->goodput),
              "Search for the highest rate that meets the limits");
  command.Add(
      kGroup,
      RealOption("goodput-tolerance", "PERCENT", &flags->goodput_tolerance_percent, 0.1, 50),
      "Relative precision of the search");
  command.Add(kGroup, FlagOption("json", &flags->json), "Print JSON");
  const auto path = [&](const char* name, const char* value, std::string* target, ValueKind kind,
                        const char* help) {
    Option option = TextOption(name, value, target);
    option.kind = kind;
    command.Add(kGroup, std::move(option), help);
  };
  path("csv", "FILE", &flags->csv, ValueKind::kFile, "Write a row per rate");
  path("plot", "DIR", &flags->plot, ValueKind::kFolder,
       "Write pictures: latencies, queue, a timeline of the stages, and with several rates "
       "latency and attainment against rate");
  path("trace", "FILE", &flags->trace, ValueKind::kFile,
       "Write the steps for chrome://tracing or ui.perfetto.dev, the first 200,000");
  path("replay", "FILE", &flags->replay, ValueKind::kFile,
       "Instead of a forecast: replay a step log of 'millrace serve --step-log' and compare every "
       "decision");
  command.Add(kGroup, FlagOption("no-progress", &flags->no_progress), "No progress bar");
}

}  // namespace

std::unique_ptr<Command> MakeSimulateCommand() {
  auto command = std::make_unique<Command>();
  command->name = "simulate";
  command->summary = "Forecast what a deployment delivers under a workload";
  command->description =
      "Runs the production scheduler on a virtual clock: a model on given devices, pipelines and "
      "copies, under a trace or a random workload. Reports latencies, attainment of limits, "
      "throughput, KV memory, the bottleneck and the cost.";
  command->log_level = "warning";
  command->examples = {
      {"millrace simulate --model llama-13b --device a100-80gb --rate 4 --input-len 512 "
       "--output-len 128 --slo ttft=250ms tpot=100ms",
       "one device, 10,000 requests of a Poisson stream"},
      {"millrace simulate --model opt-13b --distserve-profile profile.json --workload chat.yaml "
       "--goodput --seeds 5",
       "the highest rate that meets the limits of a workload file"},
      {"millrace simulate --model llama-70b --device h100-80gb --tp 4 --pp 2 --workload azure.csv "
       "--rate 1,2,4,8 --plot pictures",
       "a trace at several rates, with pictures"},
      {"millrace simulate --cluster cluster.yaml --model llama-70b --workload day.yaml --slo "
       "ttft=5s "
       "tpot=500ms --autopilot act",
       "a cluster that changes its plan as the load does, and why it did"}};
  auto flags = std::make_shared<SimulateFlags>();
  flags->deployment.engine.max_num_seqs = 256;
  AddDeploymentOptions(*command, &flags->deployment);
  AddWorkloadArgs(*command, &flags->workload);
  AddPolicyOptions(*command, flags.get());
  AddAutopilotOptions(*command, &flags->autopilot);
  AddSchedulingOptions(*command, &flags->deployment.engine);
  for (const char* name :
       {"block-size", "max-num-seqs", "max-num-batched-tokens", "enable-prefix-caching"}) {
    command->Named(name).default_text += "; with --plan of the cluster file, else the server's";
  }
  AddReportOptions(*command, flags.get());
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] {
    return flags->replay.empty() ? RunSimulate(*flags) : RunReplay(flags->replay, flags->json);
  };
  return command;
}

}  // namespace millrace::apps
