#include "apps/plan/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "apps/cli/parse.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/flow/flow_from_helix.h"
#include "plan/io/cluster_yaml.h"
#include "plan/io/helix_files.h"
#include "plan/io/yaml_reader.h"
#include "sim/load/workload_file.h"

namespace millrace::apps {
namespace {

constexpr char kPlanGroup[] = "What to plan";
constexpr char kServerGroup[] = "Server that will carry out the plan";
// Means of Azure's conversation trace of 2023, as in Helix.
constexpr plan::WorkloadMix kAzureConversation{763, 232};

void DefaultsFromCluster(Command& command, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    Option& option = command.Named(name);
    option.default_text = "of the cluster file, else " + option.default_text;
  }
}

// Averages the first requests: enough for a mean, and fast for a long trace.
plan::WorkloadMix MeanLengths(const sim::WorkloadSpec& workload) {
  constexpr int kRequestsMax = 100'000;
  const auto stream = workload.Make(0);
  plan::WorkloadMix sum;
  int requests = 0;
  while (requests < kRequestsMax) {
    const auto request = stream->Next();
    if (!request) break;
    sum.prompt_tokens += request->prompt_tokens;
    sum.output_tokens += request->output_tokens;
    ++requests;
  }
  const double count = std::max(requests, 1);
  return {std::max(1.0, sum.prompt_tokens / count), std::max(1.0, sum.output_tokens / count)};
}

// Reads a workload file or a trace.
Result<sim::WorkloadSpec> ReadWorkload(const std::string& path) {
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return sim::LoadWorkload(path);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, sim::kTraceBytesMax));
  sim::WorkloadSpec spec;
  spec.arrivals = sim::ArrivalKind::kTrace;
  auto entries = sim::ParseTrace(text, sim::kWorkloadRequestsMax);
  if (!entries.ok()) return entries.status().WithContext(Printable(path));
  spec.trace = std::move(*entries);
  if (const Status status = spec.Validate(); !status.ok()) {
    return status.WithContext(Printable(path));
  }
  return spec;
}

Status CheckCapacity(const plan::HelixCapacity& capacity, const ClusterSpec& cluster,
                     const PlanInputFlags& flags) {
  if (capacity.nodes.size() != cluster.nodes.size()) {
    return InvalidArgument(
        fmt::format("{} has {} nodes, but the cluster '{}' has {}; they must "
                    "describe the same machines",
                    Printable(flags.capacity), capacity.nodes.size(), Printable(cluster.name, 60),
                    cluster.nodes.size()));
  }
  if (!flags.model.empty() && flags.model != capacity.model) {
    return InvalidArgument(fmt::format("{} has the rates of model '{}', but --model is '{}'",
                                       Printable(flags.capacity), Printable(capacity.model, 60),
                                       Printable(flags.model, 60)));
  }
  return OkStatus();
}

Result<PlanInputs> FromCapacity(const PlanInputFlags& flags, ClusterSpec cluster) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.capacity, plan::kHelixBytesMax));
  MR_ASSIGN_OR_RETURN(const auto capacity, plan::ParseHelixCapacity(text, flags.capacity));
  MR_RETURN_IF_ERROR(CheckCapacity(capacity, cluster, flags));
  PlanInputs inputs;
  inputs.problem = plan::FlowFromHelix(capacity, flags.partial);
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    inputs.problem.nodes[i].name = cluster.nodes[i].name;
  }
  inputs.problem.cluster = cluster.name;
  inputs.token_bytes = {capacity.activation_bytes, capacity.token_bytes};
  inputs.cluster = std::move(cluster);
  inputs.rates_from = "the table " + Printable(flags.capacity);
  return inputs;
}

Result<plan::GoodputProblem> GoodputOf(const ClusterSpec& cluster,
                                       const plan::ModelFootprint& model,
                                       const plan::WorkloadMix& mix, const NodeCosts& costs,
                                       const plan::NodeCapacityOptions& options, bool partial) {
  const plan::LayerCost cost_of = [&](const NodeSpec& node, const auto& of, int layers) {
    return costs.Of(node, node.device_count, of.spec, {0, layers});
  };
  MR_ASSIGN_OR_RETURN(auto flow,
                      plan::FlowFromCluster(cluster, model, mix, cost_of, partial, options));
  return plan::GoodputFromCluster(std::move(flow), cluster, model, mix, cost_of,
                                  {*options.activation_bytes, options.token_id_bytes}, options);
}

// "of at most 192 tokens (--max-num-batched-tokens) and 64 sequences (the running server)".
std::string StepsFrom(const PlanInputFlags& flags, const ServerSizes& server,
                      const EngineFlags& engine) {
  const std::string of_server =
      flags.live.empty() ? Printable(flags.cluster) : "the running server";
  bool known = false;
  const auto source = [&](bool given, bool of_cluster, const char* option) {
    known = known || given || of_cluster;
    return given ? std::string(option) : of_cluster ? of_server : std::string("the default");
  };
  const std::string tokens =
      source(flags.engine.given.max_num_batched_tokens.has_value(),
             server.max_num_batched_tokens.has_value(), "--max-num-batched-tokens");
  const std::string sequences = source(flags.engine.given.max_num_seqs.has_value(),
                                       server.max_num_seqs.has_value(), "--max-num-seqs");
  if (!known) return "";
  return fmt::format("of at most {} tokens ({}) and {} sequences ({})",
                     engine.max_num_batched_tokens, tokens, engine.max_num_seqs, sequences);
}

}  // namespace

void AddPlanInputOptions(Command& command, PlanInputFlags* flags) {
  const auto file = [&](const char* name, std::string* target, const char* help) {
    Option option = TextOption(name, "FILE", target);
    option.kind = ValueKind::kFile;
    command.Add(kPlanGroup, std::move(option), help);
  };
  file("cluster", &flags->cluster, "The machines and links, as YAML (docs/formats/cluster.md)");
  file("import-helix", &flags->import_helix, "The machines and links, as Helix's .ini");
  command.Add(kPlanGroup, TextOption("model", "MODEL", &flags->model),
              "A published shape such as llama-70b, a config.json, or a model folder");
  file("capacity", &flags->capacity,
       "Tokens per second of each node and link, in place of an estimate for --model");
  AddNodeProfileOption(command, kPlanGroup, &flags->node_profiles);
  file("workload", &flags->workload,
       "The requests: a YAML file or a recorded trace (docs/formats/workload.md); "
       "without it prompts have 763 tokens and answers 232, as in Azure's conversations");
  AddStepOptions(command, kServerGroup, &flags->engine);
  DefaultsFromCluster(command, {"max-num-seqs", "max-num-batched-tokens"});
}

void AddSimulatedSizeOptions(Command& command, PlanInputFlags* flags) {
  command.Add(
      kServerGroup,
      IntOption("max-model-len", "TOKENS", &flags->engine.max_model_len, 1,
                ServerSizes::kModelLenMax),
      "Longest prompt and answer together [default: of the cluster file, else the model's]");
  AddBlockSizeOption(command, kServerGroup, &flags->engine);
  AddPrefixCachingOption(command, kServerGroup, &flags->engine);
  DefaultsFromCluster(command, {"block-size", "enable-prefix-caching"});
}

Status RefuseSimulatedSizes(const std::set<std::string>& given) {
  return RefuseGiven(given, {"max-model-len", "block-size", "enable-prefix-caching"},
                     "is for the simulation of a server, which needs --objective goodput, or "
                     "--objective cost with limits, and no --no-simulate");
}

void AddPartialOption(Command& command, PlanInputFlags* flags) {
  command
      .Add(kPlanGroup, FlagOption("partial", &flags->partial),
           "A node may run a part of the layers it holds")
      .negatable = true;
}

Status ValidatePlanInputs(const PlanInputFlags& flags) {
  if (!flags.live.empty()) {
    if (!flags.cluster.empty() || !flags.import_helix.empty()) {
      return InvalidArgument("--live asks a controller for its cluster; leave out the file");
    }
  } else if (flags.cluster.empty() == flags.import_helix.empty()) {
    return InvalidArgument("give either --cluster FILE or --import-helix FILE");
  }
  if (flags.model.empty() && flags.capacity.empty()) {
    return InvalidArgument(
        "give --model, a name such as llama-70b or a config.json, or --capacity with a table of "
        "rates");
  }
  if (!flags.capacity.empty() && !flags.workload.empty()) {
    return InvalidArgument(
        "the rates of --capacity are already for one workload; use --workload with --model only");
  }
  if (!flags.capacity.empty() && !flags.node_profiles.empty()) {
    return InvalidArgument("--capacity and --node-profile are mutually exclusive");
  }
  const ServerSizes& given = flags.engine.given;
  if (!flags.capacity.empty() && (given.max_num_seqs || given.max_num_batched_tokens)) {
    return InvalidArgument(
        "the rates of --capacity are already for one size of steps; use --max-num-seqs and "
        "--max-num-batched-tokens with --model only");
  }
  return OkStatus();
}

plan::GoodputProblem WithLimits(plan::GoodputProblem problem, const LatencyLimits& limits) {
  problem.ttft_s = limits.ttft_s;
  problem.tpot_s = limits.tpot_s;
  return problem;
}

Result<ClusterSpec> LoadCluster(const PlanInputFlags& flags) {
  if (!flags.live.empty()) return plan::ParseClusterYaml(flags.live_text, flags.live);
  if (!flags.cluster.empty()) {
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.cluster, plan::kYamlBytesMax));
    return plan::ParseClusterYaml(text, flags.cluster);
  }
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.import_helix, plan::kHelixBytesMax));
  return plan::ParseHelixCluster(text, flags.import_helix);
}

Result<PlanInputs> LoadPlanInputs(const PlanInputFlags& flags,
                                  std::optional<sim::WorkloadSpec> workload) {
  MR_ASSIGN_OR_RETURN(ClusterSpec cluster, LoadCluster(flags));
  if (!flags.capacity.empty()) return FromCapacity(flags, std::move(cluster));
  MR_ASSIGN_OR_RETURN(const plan::ModelFootprint model, LoadFootprint(flags.model));
  if (!flags.workload.empty()) {
    MR_ASSIGN_OR_RETURN(workload, ReadWorkload(flags.workload));
    workload = workload->Mixed();
  }
  MR_ASSIGN_OR_RETURN(NodeCosts costs, NodeCosts::Load(flags.node_profiles, cluster, model.spec));
  return MakePlanInputs(flags, std::move(cluster), model, std::move(costs), std::move(workload));
}

Result<PlanInputs> MakePlanInputs(const PlanInputFlags& flags, ClusterSpec cluster,
                                  const plan::ModelFootprint& model, NodeCosts costs,
                                  std::optional<sim::WorkloadSpec> workload) {
  PlanInputs inputs;
  plan::WorkloadMix mix = kAzureConversation;
  if (workload) {
    mix = MeanLengths(*workload);
    inputs.requests_per_s = workload->MeanRate();
    inputs.limits = workload->limits;
    inputs.workload = std::move(workload);
  }
  inputs.costs = std::move(costs);
  inputs.engine = WithServerSizes(flags.engine, cluster.server);
  MR_RETURN_IF_ERROR(ValidateEngineFlags(inputs.engine));
  inputs.steps_from = StepsFrom(flags, cluster.server, inputs.engine);
  const plan::NodeCapacityOptions options{
      .step_tokens = inputs.engine.max_num_batched_tokens,
      .max_sequences = inputs.engine.max_num_seqs,
      .activation_bytes = inputs.costs.ActivationBytes(model.spec)};
  inputs.token_bytes = {*options.activation_bytes, options.token_id_bytes};
  inputs.goodput_for = [model, mix, costs = inputs.costs, options,
                        partial = flags.partial](const ClusterSpec& of) {
    return GoodputOf(of, model, mix, costs, options, partial);
  };
  MR_ASSIGN_OR_RETURN(inputs.goodput, inputs.goodput_for(cluster));
  inputs.problem = inputs.goodput->flow;
  inputs.spec = model.spec;
  inputs.request_tokens = mix.prompt_tokens + mix.output_tokens;
  inputs.rates_from = fmt::format(
      "{}: prompts of {:.0f} tokens, answers of {:.0f}",
      inputs.costs.measured() ? inputs.costs.Describe(cluster) : "first principles, an estimate",
      mix.prompt_tokens, mix.output_tokens);
  inputs.cluster = std::move(cluster);
  return inputs;
}

}  // namespace millrace::apps
