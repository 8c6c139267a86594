// millrace plan: decides which machine holds which layers and how much flows between them.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/cli/parse.h"
#include "apps/cluster/live_cluster.h"
#include "apps/commands/commands.h"
#include "apps/common/slo_option.h"
#include "apps/plan/goodput_search.h"
#include "apps/plan/inputs.h"
#include "apps/plan/report.h"
#include "apps/simulate/judge.h"
#include "apps/simulate/spot_plans.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "plan/cheapest.h"
#include "plan/flow/planner.h"
#include "plan/flow/trunks.h"
#include "plan/io/helix_files.h"
#include "plan/io/plan_yaml.h"
#include "plan/io/quantity.h"

namespace millrace::apps {
namespace {

constexpr double kTimeLimitMaxS = 86400;

enum class Objective { kFlow, kGoodput, kCost };

struct PlannerFlags {
  PlanInputFlags inputs;
  AdminFlags admin;  // of --live
  Objective objective = Objective::kFlow;
  LatencyLimits slo;  // of --slo
  double time_limit_s = 10;
  int64_t seed = 1, survive = 0;
  std::string warm_start;
  std::string out, picture;
  bool json = false, simulate = true;
  std::set<std::string> given;
};

// A plan and, by goodput, its rivals.
struct Found {
  plan::PlanOutcome outcome;
  std::optional<GoodputAnswer> goodput;
};

// How far the search has come.
class SearchLine {
 public:
  explicit SearchLine(double limit_s)
      : text_(stderr, ProgressStyle::ForStream(stderr),
              [limit_s, begin = SteadyClock().Now()](const std::string& text) {
                const double elapsed_s = (SteadyClock().Now() - begin).seconds();
                return fmt::format("{:4.1f} of {:.0f} s  {}", elapsed_s, limit_s, text);
              }) {
    text_.Show("searching for a plan");
  }
  void Show(const plan::PlanProgress& progress) {
    text_.Show(fmt::format("{:.1f} tokens/s, at most {:.1f}, gap {:.2f} %  {}",
                           progress.tokens_per_s, progress.bound, 100 * progress.gap(),
                           progress.method));
  }
  void Show(const plan::GoodputProgress& progress) {
    text_.Show(fmt::format("{:.3g} requests/s  {}", progress.requests_per_s, progress.doing));
  }

 private:
  ProgressText text_;
};

Result<std::vector<plan::Placement>> WarmStarts(const PlannerFlags& flags, size_t nodes) {
  if (flags.warm_start.empty()) return std::vector<plan::Placement>();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.warm_start, plan::kHelixBytesMax));
  MR_ASSIGN_OR_RETURN(plan::Placement placement, plan::ParseHelixPlacement(text, flags.warm_start));
  if (placement.size() > nodes) {
    return InvalidArgument(fmt::format("{} places layers on {} nodes and the cluster has {}",
                                       Printable(flags.warm_start), placement.size(), nodes));
  }
  placement.resize(nodes);
  return std::vector<plan::Placement>{std::move(placement)};
}

GoodputSearchOptions GoodputOptionsOf(const PlannerFlags& flags, const PlanInputs& inputs) {
  GoodputSearchOptions options;
  options.limits = inputs.limits;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.time_limit_s = flags.time_limit_s;
  options.survive = flags.survive > 0;
  return options;
}

// The best candidate as a plan within the trunks, chosen by the estimates and then by the
// simulator.
Result<Found> FindByGoodput(const PlannerFlags& flags, const PlanInputs& inputs, const Clock& clock,
                            SearchLine& line) {
  if (!inputs.goodput) {
    return InvalidArgument(
        "--objective goodput and --slo need --model: a table of rates says "
        "nothing about latency");
  }
  const Time begin = clock.Now();
  GoodputSearchOptions options = GoodputOptionsOf(flags, inputs);
  options.clock = &clock;
  options.progress = [&line](const plan::GoodputProgress& progress) { line.Show(progress); };
  if (flags.simulate) {
    options.judge = SimulatedGoodput(inputs, options.limits, [&clock, begin, &flags] {
      return (clock.Now() - begin).seconds() >= flags.time_limit_s;
    });
  }
  options.others = PlansOfAlikeNodes(inputs, options.limits);
  MR_ASSIGN_OR_RETURN(GoodputAnswer answer, SearchGoodput(inputs, options));
  plan::PlanOutcome outcome = OutcomeOf(answer);
  return Found{.outcome = std::move(outcome), .goodput = std::move(answer)};
}

// The machines that answer the workload's rate within the limits for the least money.
Result<Found> FindCheapest(const PlannerFlags& flags, const PlanInputs& inputs, const Clock& clock,
                           const std::vector<double>& usd_per_hour, SearchLine& line) {
  GoodputSearchOptions options = GoodputOptionsOf(flags, inputs);
  options.clock = &clock;
  options.progress = [&line](const plan::GoodputProgress& progress) { line.Show(progress); };
  std::function<Result<bool>(const Plan&)> keeps;
  if (flags.simulate) keeps = SimulatedRate(inputs, options.limits, *inputs.requests_per_s);
  MR_ASSIGN_OR_RETURN(GoodputAnswer answer,
                      SearchCheapest(inputs, options, usd_per_hour, *inputs.requests_per_s, keeps));
  plan::PlanOutcome outcome = OutcomeOf(answer);
  return Found{.outcome = std::move(outcome), .goodput = std::move(answer)};
}

Result<Found> AsFound(Result<plan::PlanOutcome> outcome) {
  if (!outcome.ok()) return outcome.status();
  return Found{.outcome = std::move(*outcome)};
}

Result<Found> Search(const PlannerFlags& flags, const PlanInputs& inputs,
                     const plan::PlanOptions& options, SearchLine& line) {
  const plan::FlowPlanner planner = [&inputs](const plan::FlowProblem& problem,
                                              const plan::PlanOptions& search) {
    return plan::PlanWithinTrunks(problem, inputs.cluster, inputs.token_bytes, search);
  };
  if (flags.objective == Objective::kGoodput) {
    return FindByGoodput(flags, inputs, *options.clock, line);
  }
  if (flags.objective == Objective::kFlow) return AsFound(planner(inputs.problem, options));
  if (!inputs.requests_per_s) {
    return InvalidArgument(
        "--objective cost needs a workload with a rate: this one's requests come "
        "all at once");
  }
  std::vector<double> prices;
  for (const NodeSpec& node : inputs.cluster.nodes) prices.push_back(node.price_usd_per_hour);
  if (inputs.limits.any()) return FindCheapest(flags, inputs, *options.clock, prices, line);
  if (flags.given.contains("simulate")) {
    return InvalidArgument(
        "--simulate and --no-simulate need limits with --objective cost: give --slo");
  }
  MR_RETURN_IF_ERROR(RefuseSimulatedSizes(flags.given));
  return AsFound(plan::CheapestPlan(
      inputs.problem, prices, *inputs.requests_per_s * inputs.request_tokens, options, planner));
}

Status RunPlan(PlannerFlags& flags) {
  if (!flags.inputs.live.empty()) {
    flags.admin.base_url = flags.inputs.live;
    flags.admin.given = flags.given;
    MR_ASSIGN_OR_RETURN(flags.inputs.live_text, FetchClusterFile(flags.admin));
  }
  MR_ASSIGN_OR_RETURN(PlanInputs inputs, LoadPlanInputs(flags.inputs));
  MR_ASSIGN_OR_RETURN(inputs.limits, CompleteSlo(flags.slo, inputs.limits));
  plan::PlanOptions options;
  MR_ASSIGN_OR_RETURN(options.warm_starts, WarmStarts(flags, inputs.cluster.nodes.size()));
  const SteadyClock clock;
  options.clock = &clock;
  options.time_limit_s = flags.time_limit_s;
  options.seed = static_cast<uint64_t>(flags.seed);
  auto found = [&] {
    SearchLine line(flags.time_limit_s);
    options.progress = [&line](const plan::PlanProgress& progress) { line.Show(progress); };
    return Search(flags, inputs, options, line);
  }();
  if (!found.ok()) return found.status();
  const plan::PlanOutcome* outcome = &found->outcome;
  if (!flags.out.empty()) {
    MR_RETURN_IF_ERROR(
        WriteFileAtomically(flags.out, plan::WritePlanYaml(outcome->plan, inputs.cluster)));
  }
  if (!flags.picture.empty()) {
    MR_RETURN_IF_ERROR(WriteFileAtomically(flags.picture, PlanSvg(outcome->plan, inputs.cluster)));
  }
  if (flags.json) {
    Json json = PlanJson(*outcome, inputs.cluster);
    if (found->goodput) json["candidates"] = GoodputJson(*found->goodput);
    if (inputs.goodput) {
      json["steps"] = {{"max_num_batched_tokens", inputs.engine.max_num_batched_tokens},
                       {"max_num_seqs", inputs.engine.max_num_seqs}};
    }
    fmt::print("{}\n", DumpJson(json));
    return OkStatus();
  }
  fmt::print("{}", PlanSummary(*outcome, inputs.cluster, inputs.rates_from, inputs.steps_from));
  if (found->goodput) {
    fmt::print("{}", GoodputText(*found->goodput, GoodputOptionsOf(flags, inputs), inputs.cluster));
  } else if (inputs.goodput) {
    fmt::print("{}", EstimateText(inputs, *outcome));
  }
  if (!flags.out.empty()) fmt::print("plan written to {}\n", flags.out);
  return OkStatus();
}

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  auto command = std::make_unique<Command>();
  command->name = "plan";
  command->summary = "Decide which machine holds which layers of a model";
  command->description =
      "Places the layers of a model on the machines of a cluster so that the most tokens per "
      "second flow through. Prints how far the result can be from the optimum, and writes a plan "
      "for 'millrace plan check' and 'millrace plan explain'.";
  command->log_level = "error";  // simulated clusters warn of what happens to them
  command->examples = {
      {"millrace plan --cluster cluster.yaml --model llama-70b --out plan.yaml",
       "a plan for the machines of a file"},
      {"millrace plan --cluster cluster.yaml --model llama-70b --picture plan.svg",
       "the same, with a drawing"},
      {"millrace plan --import-helix single24.ini --capacity single24.txt --time-limit 60",
       "a cluster of the Helix paper with measured rates"}};
  auto flags = std::make_shared<PlannerFlags>();
  AddPlanInputOptions(*command, &flags->inputs);
  constexpr char kLive[] = "What to plan";
  command->Add(kLive, TextOption("live", "URL", &flags->inputs.live),
               "Plan for the workers of a running cluster, as `millrace cluster describe` finds "
               "them: the controller's port on this machine, such as http://127.0.0.1:8000, or its "
               "--admin-listen with --admin-key");
  flags->admin.url_option = "--live";
  AddAdminKeyOptions(*command, kLive, &flags->admin);
  AddPartialOption(*command, &flags->inputs);
  AddSimulatedSizeOptions(*command, &flags->inputs);
  constexpr char kSearch[] = "Search";
  command->Add(kSearch,
               ChoiceOption<Objective>("objective", &flags->objective,
                                       {{"flow", Objective::kFlow},
                                        {"goodput", Objective::kGoodput},
                                        {"cost", Objective::kCost}}),
               "flow: the most tokens per second; goodput: the most requests per second that meet "
               "--slo, chosen by an estimate and then by simulation; cost: the lowest price per "
               "hour that carries the rate of --workload");
  command->Add(kSearch, SloOption(&flags->slo),
               std::string(kSloHelp) +
                   ". The simulation judges so; the estimate takes the limits as limits on the "
                   "mean. Its limits replace those of --workload");
  command->Add(kSearch,
               RealOption("time-limit", "SECONDS", &flags->time_limit_s, 0.1, kTimeLimitMaxS),
               "Stop the search after this time, or earlier if the plan is proved optimal");
  command
      ->Add(
          kSearch, FlagOption("simulate", &flags->simulate),
          "For --objective goodput: rank the ten candidates with the best estimates by simulation. "
          "For --objective cost with limits: confirm by simulation that the rate is answered")
      .negatable = true;
  command->Add(kSearch, IntOption("survive", "N", &flags->survive, 0, 1),
               "With 1, for --objective goodput: the best goodput after the loss of any one node; "
               "if the cluster has spot nodes, of any one of them");
  command->Add(kSearch, IntOption("seed", "N", &flags->seed, 0, INT64_MAX),
               "Seed of the search's random choices");
  Option warm = TextOption("warm-start", "FILE", &flags->warm_start);
  warm.kind = ValueKind::kFile;
  command->Add(kSearch, std::move(warm), "A placement to start from, as Helix's .ini");
  constexpr char kResult[] = "Result";
  Option out = TextOption("out", "FILE", &flags->out);
  out.kind = ValueKind::kFile;
  command->Add(kResult, std::move(out), "File to write the plan to (docs/formats/plan.md)");
  Option picture = TextOption("picture", "FILE", &flags->picture);
  picture.kind = ValueKind::kFile;
  command->Add(kResult, std::move(picture), "File to draw the plan to, as SVG");
  command->Add(kResult, FlagOption("json", &flags->json), "Print JSON instead of the summary");
  AddGeneralOptions(*command);
  command->on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  command->validate = [flags] {
    if (flags->objective == Objective::kCost && flags->inputs.workload.empty()) {
      return InvalidArgument("--objective cost needs --workload, which gives the rate to carry");
    }
    if (flags->objective == Objective::kFlow && flags->slo.any()) {
      return InvalidArgument("--slo needs --objective goodput or cost");
    }
    if (flags->objective != Objective::kGoodput) {
      MR_RETURN_IF_ERROR(RefuseGiven(flags->given, {"survive"}, "needs --objective goodput"));
    }
    if (flags->objective == Objective::kFlow) {
      MR_RETURN_IF_ERROR(
          RefuseGiven(flags->given, {"simulate"}, "needs --objective goodput or cost"));
    }
    if (flags->objective == Objective::kFlow || !flags->simulate) {
      MR_RETURN_IF_ERROR(RefuseSimulatedSizes(flags->given));
    }
    if (flags->objective == Objective::kGoodput) {
      MR_RETURN_IF_ERROR(
          RefuseGiven(flags->given, {"warm-start"}, "needs --objective flow or cost"));
    }
    if (flags->inputs.live.empty()) {
      MR_RETURN_IF_ERROR(RefuseGiven(flags->given, {"admin-key", "ca-file"}, "needs --live"));
    }
    return ValidatePlanInputs(flags->inputs);
  };
  command->run = [flags] { return RunPlan(*flags); };
  command->children.push_back(MakePlanCheckCommand());
  command->children.push_back(MakePlanExplainCommand());
  command->children.push_back(MakePlanApplyCommand());
  command->children.push_back(MakePlanDiffCommand());
  return command;
}

}  // namespace millrace::apps
