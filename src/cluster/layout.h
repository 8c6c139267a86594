// Layout: a plan on its way to being real: which worker is to hold, or holds, each rank of each
// stage. And what follows from a plan alone: even splits, and the ways requests take through it.
// Pure data and functions; owned by the controller.
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

  bool Up() const;
  bool Staffed() const;  // a worker for every rank
  // Tokens times layers whose KV fits beside the weights, at the tightest rank.
  int64_t KvTokenLayers() const;
};

// A fixed way through the stages, for plans in which nothing branches.
struct Way {
  Route route;
  StageRole role = StageRole::kBoth;
};

struct Layout {
  Plan plan;
  std::vector<std::string> node_names;  // by the plan's node index: the workers meant; may be empty
  std::vector<LayoutStage> stages;
  std::vector<Way> ways;  // empty: requests are routed one by one
  bool automatic = false;

  bool Up() const;
  // "Layers 4-7 are on no worker." nullopt: every stage is up.
  std::optional<std::string> Missing() const;
};

// kInvalidArgument: a tensor-parallel degree that is none, layers outside the model or not covered.
Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names);

// `num_layers` over `stages` stages of `tensor_parallel` workers, as even as can be; the first ones
// take the rest. REQUIRES: 1 <= stages <= num_layers.
Plan EvenPlan(const std::string& model, int num_layers, int stages, int tensor_parallel);

// The ways of a plan whose stages form chains: one per role and chain. Empty when some stage has
// more than one way out, or in.
std::vector<Way> WaysOf(const Plan& plan);

}  // namespace millrace::cluster
