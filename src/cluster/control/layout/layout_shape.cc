#include "cluster/control/layout/layout_shape.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::cluster {
namespace {

// Appends a pipeline of the role to the plan.
void Append(const LayoutShape& shape, StageRole role, Plan& plan) {
  const Plan one = EvenPlan(plan.model, plan.num_layers, shape.stages, shape.tensor_parallel);
  const int before = static_cast<int>(plan.stages.size());
  const auto moved = [&](std::optional<int> stage) {
    return stage ? std::optional(*stage + before) : std::nullopt;
  };
  for (StagePlan stage : one.stages) {
    stage.role = role;
    plan.stages.push_back(std::move(stage));
  }
  if (role != StageRole::kBoth) return;
  for (const PlanEdge& edge : one.edges) {
    plan.edges.push_back({moved(edge.from), moved(edge.to), edge.tokens_per_s, edge.phase});
  }
}

std::string Counted(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

LayoutShape Fit(const LayoutShape& shape, int usable, int num_layers) {
  LayoutShape fit = shape;
  fit.stages = std::clamp(shape.stages, 1, num_layers);
  const int groups = usable / shape.tensor_parallel;
  const int pipelines = groups / fit.stages;
  if (pipelines >= shape.pipelines()) return fit;
  if (shape.apart() && pipelines >= 2) {
    const int share = (pipelines * shape.prefill + shape.pipelines() / 2) / shape.pipelines();
    fit.prefill = std::clamp(share, std::max(1, pipelines - shape.decode),
                             std::min(shape.prefill, pipelines - 1));
    fit.decode = pipelines - fit.prefill;
    return fit;
  }
  fit.prefill = fit.decode = 0;
  fit.replicas = std::max(1, pipelines);
  fit.stages = std::clamp(groups, 1, fit.stages);
  return fit;
}

int UsableTogether(const LayoutShape& shape, const std::map<BitClass, int>& usable) {
  const int each = shape.stages * shape.tensor_parallel;
  int most = 0, in_pipelines = 0;
  for (const auto& [bits, workers] : usable) {
    most = std::max(most, workers);
    in_pipelines += workers / each * each;
  }
  const bool several = usable.size() > 1 && !shape.apart() && in_pipelines > 0;
  return several ? in_pipelines : most;
}

Plan PlanFor(const LayoutShape& shape, const std::string& model, int num_layers) {
  if (shape.pipelines() == 1) {
    return EvenPlan(model, num_layers, shape.stages, shape.tensor_parallel);
  }
  Plan plan;
  plan.model = model;
  plan.num_layers = num_layers;
  if (!shape.apart()) {
    for (int i = 0; i < shape.replicas; ++i) Append(shape, StageRole::kBoth, plan);
    return plan;
  }
  for (int i = 0; i < shape.prefill; ++i) Append(shape, StageRole::kPrefill, plan);
  for (int i = 0; i < shape.decode; ++i) Append(shape, StageRole::kDecode, plan);
  return plan;
}

bool SameStages(const Plan& a, const Plan& b) {
  return std::ranges::equal(a.stages, b.stages, [](const StagePlan& x, const StagePlan& y) {
    return x.layers == y.layers && x.role == y.role && x.tensor_parallel == y.tensor_parallel;
  });
}

std::optional<LayoutShape> CompleteShapeOf(const Layout& layout) {
  LayoutShape shape{.replicas = 0};
  for (const PlannedPipeline& pipeline : layout.pipelines) {
    const bool complete = std::ranges::all_of(pipeline.route, [&](const Hop& hop) {
      return layout.stages[static_cast<size_t>(hop.stage)].FullyAssigned();
    });
    if (!complete) continue;
    const LayoutStage& first = layout.stages[static_cast<size_t>(pipeline.route.front().stage)];
    shape.stages = static_cast<int>(pipeline.route.size());
    shape.tensor_parallel = first.plan.tensor_parallel;
    ++(pipeline.role == StageRole::kPrefill  ? shape.prefill
       : pipeline.role == StageRole::kDecode ? shape.decode
                                             : shape.replicas);
  }
  if (shape.prefill > 0 && shape.decode > 0) shape.replicas = 1;  // it has no meaning
  if (shape.apart() != (shape.decode > 0) || shape.replicas == 0) return std::nullopt;
  return shape;
}

std::string Describe(const LayoutShape& shape) {
  const std::string size =
      Counted(shape.stages, "stage") + " x " + Counted(shape.tensor_parallel, "worker");
  if (shape.apart()) {
    return fmt::format("{} prefill and {} decode pipelines of {}", shape.prefill, shape.decode,
                       size);
  }
  return shape.replicas == 1 ? size : fmt::format("{} pipelines of {}", shape.replicas, size);
}

}  // namespace millrace::cluster
