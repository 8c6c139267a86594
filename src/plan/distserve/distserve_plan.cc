#include "plan/distserve/distserve_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace millrace::plan {
namespace {

struct PlacedInstance {
  std::vector<int> stages;  // indices into Plan::stages
  int unit = 0;
};

class UnitPlacer {
 public:
  UnitPlacer(const FlowProblem& problem, const DistServeCandidate& candidate)
      : problem_(problem), candidate_(candidate) {
    for (const FlowNode& node : problem.nodes) free_.push_back(node.devices);
    plan_.model = problem.model;
    plan_.cluster = problem.cluster;
    plan_.num_layers = problem.num_layers;
    plan_.partial_inference = false;
  }

  Result<Plan> Make(double prompt_tokens, double output_tokens) {
    const DistServeUnit& unit = candidate_.unit;
    const bool apart = unit.mode == ServingMode::kDisaggregated;
    for (int u = 0; u < candidate_.units; ++u) {
      if (apart && !unit.kv_across_nodes) {
        MR_RETURN_IF_ERROR(PlaceInside(u));
        continue;
      }
      // Wide stages first: narrow ones fill the gaps.
      const bool decode_first = apart && unit.decode.tensor > unit.prefill.tensor;
      if (decode_first) MR_RETURN_IF_ERROR(PlaceAnywhere(u, StageRole::kDecode));
      MR_RETURN_IF_ERROR(PlaceAnywhere(u, apart ? StageRole::kPrefill : StageRole::kBoth));
      if (apart && !decode_first) MR_RETURN_IF_ERROR(PlaceAnywhere(u, StageRole::kDecode));
    }
    AddEdges(candidate_.requests_per_s, prompt_tokens, output_tokens);
    const double fits = std::min(1.0, FlowThatFits());
    for (PlanEdge& edge : plan_.edges) edge.tokens_per_s *= fits;
    for (const PlanEdge& edge : plan_.edges) {
      if (!edge.from) plan_.tokens_per_s += edge.tokens_per_s;
    }
    NameUnused();
    return std::move(plan_);
  }

 private:
  void AddStage(int node, int devices, LayerRange layers, StageRole role,
                PlacedInstance& instance) {
    free_[static_cast<size_t>(node)] -= devices;
    instance.stages.push_back(static_cast<int>(plan_.stages.size()));
    plan_.stages.push_back(
        {.nodes = {node}, .tensor_parallel = devices, .layers = layers, .role = role});
  }
  LayerRange LayersOf(const Parallel& parallel, int stage) const {
    const int each = problem_.num_layers / parallel.pipeline;
    return {stage * each, (stage + 1) * each};
  }
  std::vector<PlacedInstance>& Instances(StageRole role) {
    return role == StageRole::kDecode ? decodes_ : prefills_;
  }
  Status DoesNotFit(const Parallel& parallel) const {
    return FailedPrecondition(fmt::format("no node has {} free devices for a stage of {}",
                                          parallel.tensor, candidate_.unit.ToString()));
  }

  // All instances of one role, each stage in the first node that has the devices.
  Status PlaceAnywhere(int unit, StageRole role) {
    const bool decodes = role == StageRole::kDecode;
    const Parallel& parallel = decodes ? candidate_.unit.decode : candidate_.unit.prefill;
    const int count = decodes ? candidate_.unit.decodes : candidate_.unit.prefills;
    for (int i = 0; i < count; ++i) {
      PlacedInstance instance{.unit = unit};
      for (int s = 0; s < parallel.pipeline; ++s) {
        const auto at =
            std::ranges::find_if(free_, [&](int free) { return free >= parallel.tensor; });
        if (at == free_.end()) return DoesNotFit(parallel);
        AddStage(static_cast<int>(at - free_.begin()), parallel.tensor, LayersOf(parallel, s), role,
                 instance);
      }
      Instances(role).push_back(std::move(instance));
    }
    return OkStatus();
  }

  // Segment s of all instances of the unit is in one node (Algorithm 2).
  Status PlaceInside(int unit) {
    const DistServeUnit& it = candidate_.unit;
    const int each = it.devices() / it.segments;
    std::vector<PlacedInstance> prefills(static_cast<size_t>(it.prefills), {.unit = unit});
    std::vector<PlacedInstance> decodes(static_cast<size_t>(it.decodes), {.unit = unit});
    for (int segment = 0; segment < it.segments; ++segment) {
      const auto at = std::ranges::find_if(free_, [&](int free) { return free >= each; });
      if (at == free_.end()) return DoesNotFit({.tensor = each});
      const auto node = static_cast<int>(at - free_.begin());
      const auto add = [&](const Parallel& parallel, StageRole role,
                           std::vector<PlacedInstance>& instances) {
        const int stages = parallel.pipeline / it.segments;
        for (PlacedInstance& instance : instances) {
          for (int s = segment * stages; s < (segment + 1) * stages; ++s) {
            AddStage(node, parallel.tensor, LayersOf(parallel, s), role, instance);
          }
        }
      };
      add(it.prefill, StageRole::kPrefill, prefills);
      add(it.decode, StageRole::kDecode, decodes);
    }
    std::ranges::move(prefills, std::back_inserter(prefills_));
    std::ranges::move(decodes, std::back_inserter(decodes_));
    return OkStatus();
  }

  void AddChain(const PlacedInstance& instance, EdgePhase phase, double tokens_per_s) {
    std::optional<int> from;
    for (const int stage : instance.stages) {
      plan_.edges.push_back({from, stage, tokens_per_s, phase});
      from = stage;
    }
    plan_.edges.push_back({from, std::nullopt, tokens_per_s, phase});
  }

  void AddEdges(double requests_per_s, double prompt_tokens, double output_tokens) {
    const auto instances = static_cast<double>(prefills_.size());
    if (decodes_.empty()) {
      for (const PlacedInstance& instance : prefills_) {
        AddChain(instance, EdgePhase::kBoth,
                 requests_per_s * (prompt_tokens + output_tokens) / instances);
      }
      return;
    }
    const double prompts = requests_per_s * prompt_tokens / instances;
    for (const PlacedInstance& instance : prefills_) {
      AddChain(instance, EdgePhase::kPrefill, prompts);
    }
    for (const PlacedInstance& instance : decodes_) {
      AddChain(instance, EdgePhase::kDecode,
               requests_per_s * output_tokens / static_cast<double>(decodes_.size()));
    }
    for (const PlacedInstance& from : prefills_) {
      for (const PlacedInstance& to : decodes_) {
        if (from.unit == to.unit) AddHandOvers(from, to, prompts / candidate_.unit.decodes);
      }
    }
  }

  void AddHandOvers(const PlacedInstance& from, const PlacedInstance& to, double tokens_per_s) {
    for (const int a : from.stages) {
      for (const int b : to.stages) {
        const LayerRange x = plan_.stages[static_cast<size_t>(a)].layers;
        const LayerRange y = plan_.stages[static_cast<size_t>(b)].layers;
        if (std::max(x.begin, y.begin) >= std::min(x.end, y.end)) continue;
        plan_.edges.push_back({a, b, tokens_per_s, EdgePhase::kHandOver});
      }
    }
  }

  // The part of the flows that devices and links carry.
  double FlowThatFits() const {
    double fits = 1;
    std::map<std::pair<int, int>, double> links;
    const auto node_of = [&](const std::optional<int>& stage) {
      return stage ? plan_.stages[static_cast<size_t>(*stage)].nodes.front()
                   : problem_.coordinator();
    };
    std::vector<double> through(plan_.stages.size(), 0);
    for (const PlanEdge& edge : plan_.edges) {
      double weight = 1;
      if (edge.phase == EdgePhase::kHandOver) {
        const LayerRange x = plan_.stages[static_cast<size_t>(*edge.from)].layers;
        const LayerRange y = plan_.stages[static_cast<size_t>(*edge.to)].layers;
        weight = problem_.kv_layer_tokens * (std::min(x.end, y.end) - std::max(x.begin, y.begin));
      } else if (edge.to) {
        through[static_cast<size_t>(*edge.to)] += edge.tokens_per_s;
      }
      links[{node_of(edge.from), node_of(edge.to)}] += weight * edge.tokens_per_s;
    }
    for (size_t s = 0; s < through.size(); ++s) {
      if (through[s] <= 0) continue;
      fits = std::min(fits, CapacityOf(plan_.stages[s]) / through[s]);
    }
    for (const auto& [ends, load] : links) {
      if (ends.first == ends.second || load <= 0) continue;
      fits = std::min(fits, problem_.Link(ends.first, ends.second) / load);
    }
    return fits;
  }

  // That share of its node's rate which its devices are of the node's.
  double CapacityOf(const StagePlan& stage) const {
    const FlowNode& node = problem_.nodes[static_cast<size_t>(stage.nodes.front())];
    const std::vector<double>& rates = stage.role == StageRole::kPrefill ? node.prefill_tokens_per_s
                                       : stage.role == StageRole::kDecode ? node.decode_tokens_per_s
                                                                          : node.tokens_per_s;
    const auto k = static_cast<size_t>(stage.layers.size()) - 1;
    return k < rates.size() ? rates[k] * stage.tensor_parallel / node.devices : 0;
  }

  void NameUnused() {
    for (int i = 0; i < problem_.num_nodes(); ++i) {
      const bool used = std::ranges::any_of(
          plan_.stages, [i](const StagePlan& stage) { return stage.nodes.front() == i; });
      if (used) continue;
      plan_.unused.push_back(
          {i, fmt::format("{} of {} leave it free", candidate_.units, candidate_.unit.ToString())});
    }
  }

  const FlowProblem& problem_;
  const DistServeCandidate& candidate_;
  std::vector<int> free_;  // devices, by node
  std::vector<PlacedInstance> prefills_, decodes_;
  Plan plan_;
};

}  // namespace

Result<Plan> PlanOfUnits(const FlowProblem& problem, const DistServeCandidate& candidate,
                         double prompt_tokens, double output_tokens) {
  return UnitPlacer(problem, candidate).Make(prompt_tokens, output_tokens);
}

}  // namespace millrace::plan
