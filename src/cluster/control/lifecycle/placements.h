// Placements: which way through the plan each waiting request takes, and the KV that it reserves
// there. The router suggests a walk by the plan's flow; where the plan states none, or an operator
// has chosen a policy, the load of the pipelines decides. Another pipeline gets the request if it
// is predicted to be faster because it holds a longer part of the prompt in its prefix cache, or
// because it decodes and the rest of the prompt is short (conditional disaggregation). Where no
// cache has any of the prompt, the pipeline that got the last request with the same
// prompt_cache_key gets this one too, if it is hardly busier. Every
// waiting request is placed before it is added to a pipeline, and keeps its place there until it
// leaves it.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/parts/cache_hints.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/dispatch.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/routing/router.h"
#include "cluster/control/transfers/transfers.h"

namespace millrace::cluster {

struct PlacementOptions {
  // The share of a stage's KV that requests may reserve before the router looks elsewhere.
  double kv_high_water = 0.9;
  // Unset: by the plan's flow where it states one, and otherwise by predicted time.
  std::optional<DispatchOptions> dispatch;
  // Whether cached prefixes decide too, unless an operator has chosen a policy that ignores time.
  bool prefers_cached = true;
  // A decode pipeline computes a prompt while there are prefill pipelines only if at most so many
  // of its tokens are not cached: more would delay the requests that it decodes.
  int64_t short_prompt_tokens = 64;
  // A request whose class has no pipeline left may continue in another class.
  bool cross_class_replay = false;
};

class Placements {
 public:
  using Request = Requests::Request;

  // The references outlive this object.
  // `block_size`: of KV, in tokens.
  Placements(const PlacementOptions& options, int block_size, const Deployment& deployment,
             Pipelines& pipelines, Requests& requests, const Transfers& transfers,
             KvMemory& memory);

  // Stages, claims on their memory, or the layout in force have changed. Call it before requests
  // are placed. If it is another layout, waiting requests lose their places.
  void Update();

  // Whether a request of this kind waits for a pipeline that computes its prompt, and not for one
  // that decodes.
  bool NeedsPrompt(const Request& request) const;
  // The workers that may run the request: of the class that computed its tokens so far, and with a
  // protocol that has what it asks for.
  WorkerNeed WorkersFor(const Request& request) const;
  // Whether the request must wait until its class serves again.
  bool LacksClass(const Request& request) const;
  // Whether it must wait because the workers that serve are too old.
  bool LacksVersion(const Request& request) const;
  // Whether it could end if it had its workers to itself. REQUIRES: Update.
  bool FitsWhenEmpty(const Request& request);
  struct Choice {
    Walk walk;
    Pipeline* pipeline = nullptr;  // of the walk; never null
    int64_t cached_tokens = 0;     // of the prompt, in its prefix cache; 0 if that did not matter
  };
  // The walk that it should take now. nullopt: none is up and has room.
  std::optional<Choice> Choose(const Request& request, Time now);

  enum class Result : uint8_t { kPlaced, kNoPipeline, kNoRoom, kLacksWorkers };
  // Chooses a walk for a waiting request and reserves its KV there. Pipelines in `full` are not
  // tried: an older request waits for them. REQUIRES: it has no place.
  Result Place(RequestId id, std::set<PipelineId>& full, Time now);
  // The request leaves its place. Ignored if it has none.
  void Leave(RequestId id);
  // Waiting requests whose pipeline is gone, or whose route has a stage that is down, lose their
  // places.
  void DropLost();
  // A request was sent to a pipeline: the dispatcher's next turn begins.
  void Sent() { dispatcher_.Sent(); }

 private:
  // A request for which no walk had room.
  struct NoRoom {
    bool prompt = false;
    WorkerNeed workers;
    int64_t prompt_kv = 0, all_kv = 0;
  };

  const Layout& layout() const { return deployment_.layout(); }
  // Whether the layout serves requests that need such workers; asked once for all after an Update.
  bool Serves(const WorkerNeed& need);
  bool HadNoRoom(const RouteNeed& need) const;
  bool IsCurrent() const { return router_ && epoch_ == layout().plan.epoch; }
  void FollowLayout();
  template <typename Visit>
  void ForEachWaiting(const Visit& visit);
  StageRoom RoomOf(const LayoutStage& stage) const;
  void UpdateRoom(const Pipeline& pipeline);
  void CloseClassesThatCannotAnswer();
  void LowerProtocols();
  bool MayRun(const Route& route, const RouteNeed& need) const;
  RouteNeed NeedOf(const Request& request) const;
  std::vector<Pipeline*> Candidates(const RouteNeed& need, Time now);
  DispatchLoad LoadOf(const Pipeline& pipeline, const RouteNeed& need) const;
  Pipeline* ChooseByLoad(const RouteNeed& need, Time now);
  Pipeline* ChooseByFlow(const RouteNeed& need, Time now);
  bool HasRoom(const Pipeline& pipeline, int64_t kv_tokens) const;
  Duration DecodesIn(const Pipeline& pipeline, int64_t prompt_tokens, int64_t cached,
                     double assumed_tokens_per_s) const;
  Choice FastestOf(const Request& request, const RouteNeed& need, Pipeline* usual);
  Pipeline* HintedFor(const Request& request, const RouteNeed& need, const Pipeline& usual);

  const PlacementOptions options_;
  const int block_size_;
  const Deployment& deployment_;
  Pipelines& pipelines_;
  Requests& requests_;
  const Transfers& transfers_;
  KvMemory& memory_;
  Dispatcher dispatcher_;
  CacheHints hints_;                // by client and key
  std::optional<Router> router_;    // of the layout with epoch_, as rooms_
  std::vector<StageRoom> rooms_;    // by stage
  bool stages_taken_down_ = false;  // of rooms_, until the next Update
  // Since the last Update: until the next one there is only less room.
  std::vector<NoRoom> no_room_;
  std::vector<std::pair<WorkerNeed, bool>> serves_;
  int64_t epoch_ = 0;
};

}  // namespace millrace::cluster
