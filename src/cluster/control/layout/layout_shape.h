// LayoutShape: how many pipelines an automatic layout has, of which roles, and how large each is.
// Functions turn a shape into a plan, and fit it to the number of workers. Pure values; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/bit_class.h"
#include "core/plan.h"

namespace millrace::cluster {

// All pipelines have the same size. Either prefill and decode are apart and `replicas` has no
// meaning, or there are `replicas` pipelines that do both.
struct LayoutShape {
  int prefill = 0, decode = 0;  // pipelines of these roles; both or none
  int replicas = 1;
  int stages = 1;           // of each pipeline
  int tensor_parallel = 1;  // workers of each stage

  bool apart() const { return prefill > 0; }
  int pipelines() const { return apart() ? prefill + decode : replicas; }
  int workers() const { return pipelines() * stages * tensor_parallel; }
  friend bool operator==(const LayoutShape&, const LayoutShape&) = default;
};

// The largest layout of that shape for `usable` workers. Pipelines are left out first, prefill and
// decode in proportion and at least one of each. If the workers do not suffice for two pipelines,
// one pipeline does both. If they do not suffice for that, it gets fewer stages. A stage has at
// least one layer.
LayoutShape Fit(const LayoutShape& shape, int usable, int num_layers);

// How many of these workers, counted by class, a layout of that shape can use: those that make
// whole pipelines of one class. If no class has enough for one, those of the largest class. Prefill
// and decode pipelines hand KV over, so all of them are of the largest class.
int UsableTogether(const LayoutShape& shape, const std::map<BitClass, int>& usable);

// Stages of even size for each pipeline: the pipelines for prefill first, then those for decode,
// without edges between them; or a chain of edges for each replica. The plan of several pipelines
// states no flow (tokens_per_s is 0). REQUIRES: shape.stages <= num_layers.
Plan PlanFor(const LayoutShape& shape, const std::string& model, int num_layers);

// Whether the stages of both plans have the same layers, roles and sizes in the same order.
bool SameStages(const Plan& a, const Plan& b);
// The shape of what is left of an automatic layout without its incomplete pipelines: those of which
// a slot has no worker. nullopt: nothing is left, or requests are routed one by one.
std::optional<LayoutShape> CompleteShapeOf(const Layout& layout);

// "2 stages x 2 workers", "2 prefill and 4 decode pipelines of 1 stage x 1 worker".
std::string Describe(const LayoutShape& shape);

}  // namespace millrace::cluster
