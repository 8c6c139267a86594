// Router: finds each request its way through a plan's stages (Helix, ASPLOS'25, section 5). At each
// stage the next is chosen by the planned flow, among the stages from which the last layer can
// still be reached through stages with KV to spare; the KV of all hops is then reserved at once.
// Requests that find no way wait in a bounded queue, oldest first. Pure: the caller hands in the
// time and takes what was decided. One thread; owned by a controller or a simulated one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "cluster/edge_scheduler.h"
#include "cluster/kv_reservation.h"
#include "core/ids.h"
#include "core/plan.h"

namespace millrace::cluster {

struct RouterOptions {
  static constexpr int64_t kQueueMax = 100'000;  // requests that may wait

  RoutingPolicy policy = RoutingPolicy::kFlow;
  double kv_high_water = 0.9;  // the share of a stage's KV that may be promised
  int64_t queue_max = kQueueMax;
  // A request that has waited so long is no longer overtaken by ones that would fit.
  Duration overtake_limit = Duration::Seconds(2);
  uint64_t seed = 1;  // for kRandom
  // For kShortestQueue: work ahead of a stage. Empty: the requests routed through it.
  std::function<double(int stage)> queue_length;
};

struct RouteRequest {
  RequestId id;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // that KV is reserved for: a quantile of what is usual, or the limit
  std::optional<Time> deadline;  // waiting longer is of no use
};

class Router {
 public:
  enum class Outcome { kRouted, kExpired };
  // What became of a request that was submitted.
  struct Decision {
    RequestId id;
    Outcome outcome = Outcome::kRouted;
    Route route;  // empty when expired
  };

  // `kv_token_layers`: by stage of the plan. Fails on a plan that routes nothing, has edges that
  // do not fit its stages, or when sizes differ.
  static Result<Router> Create(Plan plan, std::vector<int64_t> kv_token_layers,
                               RouterOptions options);

  // Routes or queues. kInvalidArgument: it would not fit on empty stages; kResourceExhausted: the
  // queue is full; kFailedPrecondition: the id is known already.
  Status Submit(const RouteRequest& request, Time now);
  // Decisions since the last call: requests routed in order, queued ones past their deadline.
  std::vector<Decision> TakeDecisions(Time now);

  // `tokens` (prompt and output so far) outgrow the reservation: it grows on all hops. False when
  // some stage is now promised more than it has: somebody must be preempted. True for requests
  // within their reservation.
  bool Grow(RequestId id, int64_t tokens);
  // The request is over (finished, cancelled, failed, rerouted) with `tokens` computed in all:
  // what it reserved is free, exactly once. False when it is not known, or no more.
  bool Release(RequestId id, int64_t tokens, Time now);

  // A stage that is gone takes no new requests until it is back, with as much KV as it has then.
  void SetStageUp(int stage, bool up, Time now);
  void SetStageKv(int stage, int64_t kv_token_layers);

  const Plan& plan() const { return plan_; }
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  const Route* RouteOf(RequestId id) const;
  const KvReservations& kv() const { return kv_; }
  // Tokens sent over each edge of the plan, by index, to compare with its flow.
  const std::vector<double>& edge_tokens() const { return edge_tokens_; }

 private:
  struct Running {
    Route route;
    std::vector<int> edges;  // of the plan, as walked
    int64_t reserved_tokens = 0, charged_tokens = 0;
  };
  struct Waiting {
    RouteRequest request;
    Time since;
  };
  // A stage's way out: an edge of the plan.
  struct Exit {
    int edge = 0;
    std::optional<int> to;  // none: done
    int layers = 0;         // that the next stage runs when entered here
  };

  Router(Plan plan, std::vector<int64_t> kv, RouterOptions options);
  Status Index();
  int Slot(const std::optional<int>& stage) const { return stage.value_or(num_stages()); }
  int num_stages() const { return static_cast<int>(plan_.stages.size()); }
  bool MarkReachable(int64_t tokens, bool on_empty_stages);
  bool EdgeOpen(const Exit& exit, int64_t tokens, bool on_empty_stages) const;
  bool TryRoute(const RouteRequest& request);
  int Choose(int slot, int64_t tokens);
  void Serve(Time now);
  void Expire(Time now);

  Plan plan_;
  RouterOptions options_;
  KvReservations kv_;
  Rng rng_;
  std::vector<std::vector<Exit>> exits_;   // by slot: a stage, or the coordinator last
  std::vector<EdgeScheduler> schedulers_;  // by slot
  std::vector<int> order_;                 // stages, those that end later first
  std::vector<bool> up_;
  std::vector<int64_t> stage_requests_;
  std::vector<bool> reachable_, open_;  // scratch of one walk
  std::unordered_map<RequestId, Running> running_;
  std::deque<Waiting> queue_;
  std::unordered_map<RequestId, Time> queued_ids_;
  std::vector<Decision> decisions_;
  std::vector<double> edge_tokens_;
};

}  // namespace millrace::cluster
