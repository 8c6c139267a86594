// Router: finds the way of each request through a plan's stages (Helix, ASPLOS'25, section 5;
// DistServe, OSDI'24, section 4.3). At each stage it chooses the next one by the planned flow.
// Candidates are the stages from which the last layer can still be reached through stages that are
// up and have room for the request's KV.
//
// The workers of a route are of one bit class (Layout::groups).
//
// A walk is one route with what it is for: a prompt, an answer, or both. A request whose prompt is
// not computed takes a walk for both, or one for its prompt and later one for its answer. Where the
// walks of one kind are missing, those of another stand in: workers that decode compute prompts,
// and workers for both decode.
//
// It keeps the flow that was sent along each edge. What is up and has room is an argument, because
// the controller knows it. Pure. Owned by the controller; used by its thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cluster/control/layout/layout.h"
#include "cluster/control/layout/route_graph.h"
#include "cluster/control/parts/bit_class.h"
#include "cluster/control/routing/edge_scheduler.h"
#include "core/plan.h"

namespace millrace::cluster {

struct Walk {
  StageRole role = StageRole::kBoth;  // what it is for; kBoth: prompt and answer
  Route route;
};

// Of a stage, at the moment.
struct StageRoom {
  bool up = false;
  int64_t token_layers = 0;      // of KV that may still be reserved
  std::optional<BitClass> bits;  // of its workers
  // That its workers speak, and also those that would decode what they have computed.
  int protocol = kProtocolVersion;
  // Its workers serve this route alone, so their scheduler may queue what has no room yet.
  bool queues = false;
};

// What a request needs. KV in tokens.
struct RouteNeed {
  bool prompt = false;                       // its prompt is not computed yet
  int64_t prompt_kv = 0;                     // for a walk with its prompt alone
  int64_t all_kv = 0;                        // for every other walk
  int64_t prompt_work = 0, answer_work = 0;  // tokens that count as flow
  WorkerNeed workers = {};                   // only stages with such workers
  // The stages that hold the KV of its prompt; null: none.
  const Route* kv_at = nullptr;
};

bool Suits(const StageRoom& room, const WorkerNeed& need);

class Router {
 public:
  explicit Router(const Layout& layout);

  // The walk that the plan's flow suggests. nullopt: none is up and has room. `rooms`: by stage.
  std::optional<Walk> Choose(const RouteNeed& need, std::span<const StageRoom> rooms);
  // Whether any walk that the request could take has room now.
  bool Fits(const RouteNeed& need, std::span<const StageRoom> rooms);
  // The walk is taken. REQUIRES: its role's graph contains the route.
  void Charge(const Walk& walk, const RouteNeed& need);
  // The request has computed that many more tokens of answer than was charged; may be negative.
  void Correct(const Walk& walk, int64_t answer_tokens);

 private:
  // Which stages count as open: those with room, those that queue too, all that are up.
  enum class Mode : uint8_t { kRoom, kQueues, kUp };
  // One kind of walk. Schedulers by stage; those of the coordinator are in `prompts_`, `answers_`.
  struct Kind {
    StageRole role;
    RouteGraph graph;
    std::vector<EdgeScheduler> schedulers;
    std::vector<bool> reachable;  // scratch space of one search: the end can be reached from here
    size_t entries_before = 0;    // its first entry's index in the scheduler of the coordinator
  };
  struct Search {
    const RouteNeed& need;
    std::span<const StageRoom> rooms;
    Mode mode;
  };

  int64_t KvOf(StageRole role, const RouteNeed& need) const;
  double WorkOf(StageRole role, const RouteNeed& need) const;
  double EntryWorkOf(StageRole role, const RouteNeed& need) const;
  bool InReach(int stage, const RouteNeed& need) const;
  bool IsOpen(const Kind& kind, const RouteGraph::Exit& exit, const Search& search) const;
  bool MarkReachable(Kind& kind, const Search& search);
  EdgeScheduler& EntriesOf(StageRole role) {
    return role == StageRole::kDecode ? answers_ : prompts_;
  }
  std::optional<Walk> TryKinds(std::span<Kind* const> kinds, const Search& search);
  Walk Follow(Kind& kind, const RouteGraph::Exit& entry, const Search& search);
  template <typename Visit>
  void ForEachEdge(const Walk& walk, const Visit& visit);
  Kind& KindOf(StageRole role);

  Plan plan_;
  Kind both_, prefill_, decode_;
  EdgeScheduler prompts_, answers_;  // the entries of prefill and both; those of decode
  std::set<std::pair<int, int>> hand_overs_;
  std::vector<bool> open_;  // scratch space of one choice
};

}  // namespace millrace::cluster
