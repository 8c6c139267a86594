// Layout: a plan together with the workers assigned to it, and what each of them has loaded. This
// header also has functions of a plan alone: even splits, and the pipelines through a plan. Pure
// data and functions; owned by the controller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

// One rank of a stage.
struct Slot {
  std::optional<WorkerId> worker;
  ShardId shard;
  bool asked = false;   // the worker was told to load the shard
  bool loaded = false;  // the worker has loaded it
  ShardLoaded facts;
  int64_t bytes_done = 0, bytes_total = 0;
};

struct LayoutStage {
  StagePlan plan;
  std::vector<Slot> ranks;
  // One of its workers is leaving and no other worker takes its place. Its requests move to other
  // pipelines, and no new request is sent to it.
  bool closing = false;
  // How often its ranks failed to connect to each other since a worker was last assigned.
  int meetings_failed = 0;

  bool Up() const;             // loaded, and accepts requests
  bool FullyAssigned() const;  // every rank has a worker
  // KV capacity beside the weights, in tokens times layers, at the rank with the least room.
  int64_t KvTokenLayers() const;
};

// A fixed route through the stages, for plans without branches.
struct PlannedPipeline {
  Route route;
  StageRole role = StageRole::kBoth;
};

// How the replicas of a plan share its requests: a route for each request by the plan's flow, or a
// pipeline for each replica and a dispatcher.
enum class ReplicaShare : uint8_t { kFlow, kDispatch };

struct Layout {
  Plan plan;
  // The worker that the plan intends for each of its nodes, by node index. May be empty.
  std::vector<std::string> node_names;
  ReplicaShare replicas = ReplicaShare::kFlow;
  std::vector<LayoutStage> stages;
  std::vector<PlannedPipeline> pipelines;  // empty: each request is routed on its own
  bool automatic = false;

  bool Up() const;             // every stage
  bool FullyAssigned() const;  // every stage
  // Why no request can be served: "Layers 4-7 are not on any worker." The sentence names the first
  // stage that is down in the pipeline with the fewest stages down. With separate prefill and
  // decode each of them needs a pipeline, and the sentence begins with the one that has none.
  // nullopt: requests can be served.
  std::optional<std::string> Missing() const;
  // The first stage that is down although requests can be served. nullopt: every stage is up, or no
  // request can be served.
  std::optional<std::string> Degraded() const;
};

// The kind of pipeline that a waiting request needs: one that computes its prompt and hands it
// over, or one that decodes. Without prefill-only stages every request needs the second kind.
enum class Phase : uint8_t { kPrefill, kDecode };

// A change of layout that ended before the layout came into force.
struct GivenUpPlan {
  int64_t epoch = 0;
  std::string reason;
};

// Whether the worker has a slot of the layout, or of the stage.
bool HasSlot(const Layout& layout, WorkerId worker);
bool HasSlot(const LayoutStage& stage, WorkerId worker);

bool SameRoute(const Route& a, const Route& b);

// Whether the layout has prefill-only stages.
bool PrefillApart(const Layout& layout);
// Whether the pipeline serves requests in that phase.
bool Serves(const Layout& layout, const PlannedPipeline& planned, Phase phase);
// Whether every stage of some pipeline that serves the phase is up. If each request is routed on
// its own: of some route.
bool HasPipeline(const Layout& layout, Phase phase);

// Whether other routes of the plan lead through a stage of this one.
bool SharesStages(const Plan& plan, const Route& route);

// kInvalidArgument: an unsupported tensor-parallel degree, layers outside the model, layers that no
// stage covers, or stages of one role without stages for the other.
Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names,
                          ReplicaShare replicas = ReplicaShare::kFlow);

// Splits `num_layers` evenly over `stages` stages of `tensor_parallel` workers each. The first
// stages take the remainder. REQUIRES: 1 <= stages <= num_layers.
Plan EvenPlan(const std::string& model, int num_layers, int stages, int tensor_parallel);

// The pipelines of a plan whose stages form chains: one per role and chain. Empty if each request
// is routed by the plan's flow: a stage has more than one successor or predecessor, or there are
// several chains for both roles and `replicas` is kFlow.
std::vector<PlannedPipeline> PlannedPipelinesOf(const Plan& plan,
                                                ReplicaShare replicas = ReplicaShare::kFlow);

}  // namespace millrace::cluster
