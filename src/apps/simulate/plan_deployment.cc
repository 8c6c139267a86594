// Converts a plan of unequal stages to a simulated deployment: each stage computes at the estimate
// for its node's devices and holds the KV that fits beside its weights.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/plan/inputs.h"
#include "apps/plan/report.h"
#include "apps/simulate/deployment.h"
#include "base/file.h"
#include "base/log.h"
#include "cost/memory_model.h"
#include "plan/io/cluster_yaml.h"
#include "plan/io/plan_yaml.h"
#include "plan/io/yaml_reader.h"

namespace millrace::apps {
namespace {

constexpr double kTokenIdBytes = 4;
constexpr int kPlanWaitingMax = 1 << 20;

// What a stage has of its nodes: its share of several devices, or the only one, whose memory
// several stages divide in proportion to their layers.
struct NodePart {
  int devices = 0;
  int64_t memory_bytes = 0;
};
NodePart PartOfNodes(const StagePlan& stage, const Plan& plan, const ClusterSpec& cluster) {
  NodePart out;
  const auto nodes = static_cast<int>(stage.nodes.size());
  for (const NodeIndex index : stage.nodes) {
    const NodeSpec& node = cluster.nodes[static_cast<size_t>(index)];
    if (node.device_count > 1) {
      const int devices = std::min(node.device_count, (stage.tensor_parallel + nodes - 1) / nodes);
      out.devices += devices;
      out.memory_bytes += node.memory_bytes / node.device_count * devices;
      continue;
    }
    int layers = 0;
    for (const StagePlan& other : plan.stages) {
      if (std::ranges::find(other.nodes, index) != other.nodes.end()) layers += other.layers.size();
    }
    out.devices += 1;
    out.memory_bytes += node.memory_bytes * stage.layers.size() / layers;
  }
  return out;
}

// Adds a machine: its cost of one layer and of the projection, and its room for KV.
Result<sim::LayeredMachine*> AddMachine(const NodeSpec& node, const NodePart& part,
                                        const NodeCosts& costs, const DeploymentFlags& flags,
                                        Deployment& out) {
  const int middle = out.spec.num_layers / 2, end = out.spec.num_layers;
  const auto cost_of = [&](LayerRange layers) -> Result<const cost::StepCost*> {
    MR_ASSIGN_OR_RETURN(auto cost, costs.Of(node, part.devices, out.spec, layers));
    out.costs.push_back(std::move(cost));
    return out.costs.back().get();
  };
  sim::LayeredMachine::Options machine{.num_layers = end};
  MR_ASSIGN_OR_RETURN(machine.per_layer, cost_of({middle, middle + 1}));
  MR_ASSIGN_OR_RETURN(machine.head, cost_of({end, end}));
  machine.overhead_s = flags.scheduler_overhead_us ? *flags.scheduler_overhead_us * 1e-6
                                                   : costs.OverheadSeconds(node);
  machine.kv_token_layers = [spec = out.spec, memory = part.memory_bytes,
                             step_tokens = flags.engine.max_num_batched_tokens](LayerRange layers) {
    const int64_t tokens = cost::KvCapacityTokens(spec, layers, memory, step_tokens);
    return std::max<int64_t>(tokens, 0) * layers.size();
  };
  auto made = std::make_unique<sim::LayeredMachine>(std::move(machine));
  sim::LayeredMachine* added = made.get();
  out.plan->machines.push_back(std::move(made));
  out.plan->options.machines.push_back(added);
  return added;
}

Status NoKvMemory(const StagePlan& stage, const NodeSpec& node) {
  return InvalidArgument(
      fmt::format("the plan puts layers [{}, {}) on '{}', but their weights leave no KV memory; "
                  "'millrace plan check' gives details",
                  stage.layers.begin, stage.layers.end, node.name));
}

Status AddStage(const StagePlan& stage, const NodeCosts& costs, const DeploymentFlags& flags,
                Deployment& out) {
  const ClusterSpec& cluster = out.plan->options.cluster;
  const NodeSpec& node = cluster.nodes[static_cast<size_t>(stage.nodes.front())];
  const auto part = PartOfNodes(stage, out.plan->options.plan, cluster);
  MR_ASSIGN_OR_RETURN(const auto* machine, AddMachine(node, part, costs, flags, out));
  return machine->KvTokenLayers(stage.layers) < 1 ? NoKvMemory(stage, node) : OkStatus();
}

// Each node is one worker that uses all its devices.
Status AddNodes(const NodeCosts& costs, const DeploymentFlags& flags, Deployment& out) {
  const ClusterSpec& cluster = out.plan->options.cluster;
  for (const NodeSpec& node : cluster.nodes) {
    MR_RETURN_IF_ERROR(
        AddMachine(node, {node.device_count, node.memory_bytes}, costs, flags, out).status());
  }
  std::vector<bool> used(cluster.nodes.size());
  for (const StagePlan& stage : out.plan->options.plan.stages) {
    const auto index = static_cast<size_t>(stage.nodes.front());
    const NodeSpec& node = cluster.nodes[index];
    if (stage.nodes.size() > 1 || used[index] || stage.tensor_parallel != node.device_count) {
      return InvalidArgument(fmt::format(
          "with --autopilot each node is one worker with all its devices, but the plan puts layers "
          "[{}, {}) on {} with {} of {} devices; take a plan with one stage per node",
          stage.layers.begin, stage.layers.end,
          used[index] ? fmt::format("'{}', which has other layers already,", node.name)
                      : fmt::format("'{}'", node.name),
          stage.tensor_parallel, node.device_count));
    }
    used[index] = true;
    if (out.plan->machines[index]->KvTokenLayers(stage.layers) < 1) return NoKvMemory(stage, node);
  }
  out.plan->options.workers = sim::SimWorkers::kByNode;
  return OkStatus();
}

// The machines of the trace are assigned to the plan's nodes in order; of a plan that can change,
// to all nodes.
Status AddMembership(const DeploymentFlags& given, Deployment& out) {
  const MembershipFlags& flags = given.membership;
  if (flags.availability.empty()) return OkStatus();
  std::vector<NodeIndex> nodes = sim::UsedNodes(out.plan->options.plan);
  if (given.by_node) {
    nodes.resize(out.plan->options.cluster.nodes.size());
    std::iota(nodes.begin(), nodes.end(), 0);
  }
  MR_ASSIGN_OR_RETURN(Membership membership, LoadMembership(flags, static_cast<int>(nodes.size())));
  for (sim::MembershipChange& change : membership.changes) {
    change.instance = nodes[static_cast<size_t>(change.instance)];
  }
  out.plan->options.membership = std::move(membership.changes);
  out.plan->options.on_notice = membership.on_notice;
  return OkStatus();
}

}  // namespace

Result<Deployment> DeployPlan(Plan plan, ClusterSpec cluster, const ModelSpec& spec,
                              const NodeCosts& costs, const DeploymentFlags& flags) {
  Deployment out;
  out.spec = spec;
  out.cost_from = costs.Describe(cluster);
  double price = PricePerHour(plan, cluster);
  if (flags.by_node) {  // also those that the first plan leaves out
    price = 0;
    for (const NodeSpec& node : cluster.nodes) price += node.price_usd_per_hour;
  }
  if (price > 0) out.usd_per_hour = price;
  out.plan.emplace();
  sim::ClusterSimOptions& options = out.plan->options;
  options.plan = std::move(plan);
  options.cluster = std::move(cluster);
  options.activation_bytes_per_token = static_cast<double>(costs.ActivationBytes(spec));
  options.token_bytes = kTokenIdBytes;
  options.kv_bytes_per_token_layer = static_cast<double>(spec.KvBytesPerToken()) / spec.num_layers;
  if (flags.by_node) {
    MR_RETURN_IF_ERROR(AddNodes(costs, flags, out));
    options.change_load_time = ChangeLoadTime(flags.membership);
  } else {
    for (const StagePlan& stage : options.plan.stages) {
      MR_RETURN_IF_ERROR(AddStage(stage, costs, flags, out));
    }
  }
  sched::SchedulerOptions& s = options.controller.scheduler;
  s.block_size = flags.engine.block_size;
  s.max_model_len = flags.engine.max_model_len.value_or(out.spec.max_position);
  s.max_num_seqs = flags.engine.max_num_seqs;
  s.max_num_batched_tokens = flags.engine.max_num_batched_tokens;
  s.max_waiting = kPlanWaitingMax;
  s.policy = flags.engine.policy;
  s.step_mix = flags.step_mix;
  s.prefix_caching = flags.engine.prefix_caching && flags.shares_prefixes;
  return out;
}

EngineFlags PlanEngine(EngineFlags given) {
  if (!given.given.max_num_seqs) given.max_num_seqs = EngineFlags().max_num_seqs;
  return given;
}

Result<Deployment> MakePlanDeployment(const DeploymentFlags& given) {
  MR_ASSIGN_OR_RETURN(const std::string cluster_text, ReadFile(given.cluster, plan::kYamlBytesMax));
  MR_ASSIGN_OR_RETURN(ClusterSpec cluster, plan::ParseClusterYaml(cluster_text, given.cluster));
  DeploymentFlags flags = given;
  flags.engine = WithServerSizes(PlanEngine(given.engine), cluster.server);
  MR_RETURN_IF_ERROR(ValidateEngineFlags(flags.engine));
  const std::string plan_name = flags.plan.empty() ? "the plan that was found" : flags.plan;
  Plan plan = flags.found.value_or(Plan());
  if (!flags.plan.empty()) {
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan, plan::kYamlBytesMax));
    MR_ASSIGN_OR_RETURN(plan, plan::ParsePlanYaml(text, plan_name, cluster));
  }
  const std::string model = flags.engine.model.empty() ? plan.model : flags.engine.model;
  MR_ASSIGN_OR_RETURN(const auto footprint, LoadFootprint(model));
  if (plan.num_layers != footprint.spec.num_layers) {
    return InvalidArgument(fmt::format("{}: made for {} layers, but {} has {}",
                                       Printable(plan_name), plan.num_layers, Printable(model, 60),
                                       footprint.spec.num_layers));
  }
  const std::string text = fmt::format("{} on the {} stages of {}, cluster {}", model,
                                       plan.stages.size(), plan_name, cluster.name);
  MR_ASSIGN_OR_RETURN(const NodeCosts costs,
                      NodeCosts::Load(flags.node_profiles, cluster, footprint.spec));
  MR_ASSIGN_OR_RETURN(Deployment out, DeployPlan(std::move(plan), std::move(cluster),
                                                 footprint.spec, costs, flags));
  MR_RETURN_IF_ERROR(AddMembership(flags, out));
  out.text = text;
  if (!out.plan->options.membership.empty()) {
    out.text += ", whose nodes come and go (" + flags.membership.availability + ")";
  }
  return out;
}

}  // namespace millrace::apps
