// Layout: a plan together with the workers assigned to it, and what each of them has loaded. This
// header also has functions of a plan alone: even splits, and the pipelines through a plan. Pure
// data and functions; owned by the controller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/route_graph.h"
#include "cluster/control/parts/bit_class.h"
#include "core/plan.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

// One rank of a stage.
struct Slot {
  std::optional<WorkerId> worker;
  BitClass bits;                    // of the worker
  int protocol = kProtocolVersion;  // the newest that the worker speaks
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
  bool shares_workers = false;  // with other routes of the plan
  // How often its ranks failed to connect to each other since a worker was last assigned.
  int meetings_failed = 0;
  // The class of its last worker, which a replacement of the same class may follow. Forgotten when
  // none has come for a while.
  std::optional<BitClass> last_bits;
  std::optional<Time> empty_since;  // unset: it has a worker

  std::optional<BitClass> bits() const;  // of its workers; nullopt: it has none
  int protocol() const;                  // that all its workers speak
  bool Up() const;                       // loaded, and accepts requests
  bool FullyAssigned() const;            // every rank has a worker
  // KV capacity beside the weights, in tokens times layers, at the rank with the least room.
  int64_t KvTokenLayers() const;
};

// A pipeline that is opened in advance, because no other route of its phase shares its stages.
struct PlannedPipeline {
  Route route;
  StageRole role = StageRole::kBoth;
};

struct Layout {
  Plan plan;
  // The worker that the plan intends for each of its nodes, by node index. May be empty.
  std::vector<std::string> node_names;
  std::vector<LayoutStage> stages;
  // The routes for prompts with their answers, for prompts alone, and for answers alone.
  RouteGraph both, prefill, decode;
  std::vector<PlannedPipeline> pipelines;  // of the phases whose routes do not branch
  // Whether the plan says how much flows along its edges. Otherwise the load of the pipelines
  // decides which gets a request.
  bool states_flow = false;
  bool automatic = false;
  std::vector<int> groups;  // by stage; of GroupsOf

  const RouteGraph& GraphOf(StageRole role) const;

  bool Up() const;             // every stage
  bool FullyAssigned() const;  // every stage
  // Why no request can be served: "Layers 4-7 are not on any worker." The sentence names the first
  // stage that is down in the route with the fewest stages down. With separate prefill and decode
  // the sentence begins with the phase that has no route; prefill alone may be missing, because
  // workers that decode stand in for it. nullopt: requests can be served.
  std::optional<std::string> Missing() const;
  // The first stage that is down although requests can be served. nullopt: every stage is up, or no
  // request can be served.
  std::optional<std::string> Degraded() const;
};

// A change of layout that ended before the layout came into force.
struct GivenUpPlan {
  int64_t epoch = 0;
  std::string reason;
};

// Whether the worker has a slot of the layout, or of the stage.
bool HasSlot(const Layout& layout, WorkerId worker);
// kInvalidArgument: the plan is for a model with another number of layers.
Status CheckLayers(const Plan& plan, int num_layers);

bool HasSlot(const LayoutStage& stage, WorkerId worker);

// What a request needs of the workers of its route.
struct WorkerNeed {
  std::optional<BitClass> bits = {};      // only workers of this class; unset: of any
  int protocol = kProtocolVersionOldest;  // that they must speak (ProtocolFor)
  friend bool operator==(const WorkerNeed&, const WorkerNeed&) = default;
};
// Whether every stage of some route is up that leads to an answer. If there is one, requests can be
// served: its workers stand in for prefill workers that are missing.
// `need`: with such workers alone.
bool CanServe(const Layout& layout, const WorkerNeed& need = {});
// Whether some route that leads to an answer has no worker that is too old for the protocol. Its
// stages may be down.
bool MaySpeak(const Layout& layout, int protocol);

// Whether the workers of the route's stages also serve other routes of the layout.
bool SharesWorkers(const Layout& layout, const Route& route);

// kInvalidArgument: an unsupported tensor-parallel degree, layers outside the model, layers that no
// stage covers, edges that do not fit the stages or their roles, or stages of one role without
// stages for the other.
Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names);

// Splits `num_layers` evenly over `stages` stages of `tensor_parallel` workers each. The first
// stages take the remainder. REQUIRES: 1 <= stages <= num_layers.
Plan EvenPlan(const std::string& model, int num_layers, int stages, int tensor_parallel);

}  // namespace millrace::cluster
