// Layout: a plan on its way to being real: which worker is to hold, or holds, each rank of each
// stage. And what follows from a plan alone: even splits, and the pipelines requests take through
// it. Pure data and functions; owned by the controller.
#pragma once

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
  bool asked = false;   // the worker was told to load
  bool loaded = false;  // and has
  ShardLoaded facts;
  int64_t bytes_done = 0, bytes_total = 0;
};

struct LayoutStage {
  StagePlan plan;
  std::vector<Slot> ranks;
  // One of its workers leaves and no other worker takes its place. Its requests move to other
  // pipelines, and no new request is sent to it.
  bool closing = false;
  int meetings_failed = 0;  // how often its ranks have not met, since a worker was assigned

  bool Up() const;             // loaded, and takes requests
  bool FullyAssigned() const;  // a worker for every rank
  // Tokens times layers whose KV fits beside the weights, at the tightest rank.
  int64_t KvTokenLayers() const;
};

// A fixed way through the stages, for plans in which nothing branches.
struct PlannedPipeline {
  Route route;
  StageRole role = StageRole::kBoth;
};

struct Layout {
  Plan plan;
  std::vector<std::string> node_names;  // by the plan's node index: the workers meant; may be empty
  std::vector<LayoutStage> stages;
  std::vector<PlannedPipeline> pipelines;  // empty: requests are routed one by one
  bool automatic = false;

  bool Up() const;  // every stage
  // Why no request can be served: "Layers 4-7 are on no worker." The sentence names the first stage
  // that is down in the pipeline with the fewest stages down. With separate prefill and decode each
  // of them needs a pipeline, and the sentence begins with the one that has none. nullopt: requests
  // can be served.
  std::optional<std::string> Missing() const;
  // The first stage that is down although requests can be served. nullopt: every stage is up, or no
  // request can be served.
  std::optional<std::string> Degraded() const;
};

// The kind of pipeline that a waiting request needs: one that computes its prompt and hands it
// over, or one that decodes. Without stages for prefill alone every request is of the second kind.
enum class Phase : uint8_t { kPrefill, kDecode };

// Whether the layout has stages for prefill alone.
bool PrefillApart(const Layout& layout);
// Whether the pipeline serves requests of that kind.
bool Serves(const Layout& layout, const PlannedPipeline& planned, Phase phase);
// Whether some fixed pipeline that serves them is complete.
bool HasPipeline(const Layout& layout, Phase phase);

// kInvalidArgument: a tensor-parallel degree that is none, layers outside the model or not covered.
Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names);

// `num_layers` over `stages` stages of `tensor_parallel` workers, as even as can be; the first ones
// take the rest. REQUIRES: 1 <= stages <= num_layers.
Plan EvenPlan(const std::string& model, int num_layers, int stages, int tensor_parallel);

// The pipelines of a plan whose stages form chains: one per role and chain. Empty when some stage
// has more than one way out, or in.
std::vector<PlannedPipeline> PlannedPipelinesOf(const Plan& plan);

}  // namespace millrace::cluster
