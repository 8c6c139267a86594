// Router: finds a route for each request through a plan's stages (Helix, ASPLOS'25, section 5). At
// each stage it chooses the next one by the planned flow. Candidates are the stages from which the
// last layer can still be reached through stages with free KV. The KV of all hops is then reserved
// at once. Requests without a route wait in a bounded queue, oldest first. Pure: the caller passes
// the time and takes the decisions. Owned by a controller or a simulated one, and used by its
// thread only.
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
#include "cluster/control/edge_scheduler.h"
#include "cluster/control/kv_reservation.h"
#include "core/ids.h"
#include "core/plan.h"

namespace millrace::cluster {

struct RouterOptions {
  static constexpr int64_t kQueueMax = 100'000;  // requests that may wait

  RoutingPolicy policy = RoutingPolicy::kFlow;
  double kv_high_water = 0.9;  // the share of a stage's KV that may be reserved
  int64_t queue_max = kQueueMax;
  // A request that has waited this long is no longer overtaken by requests that would fit.
  Duration overtake_limit = Duration::Seconds(2);
  uint64_t seed = 1;  // for kRandom
  // For kShortestQueue: the work queued at a stage. Empty: the number of requests routed through
  // it.
  std::function<double(int stage)> queue_length;
};

struct RouteRequest {
  RequestId id;
  int64_t prompt_tokens = 0;
  // Output that KV is reserved for: a quantile of usual outputs, or the limit.
  int64_t output_tokens = 0;
  // The KV to reserve, which differs from the tokens where it consists of whole blocks. Unset: the
  // prompt and the output.
  std::optional<int64_t> kv_tokens;
  std::optional<Time> deadline;  // the request does not wait longer than this
};

class Router {
 public:
  enum class Outcome { kRouted, kExpired };
  // The decision about a submitted request.
  struct Decision {
    RequestId id;
    Outcome outcome = Outcome::kRouted;
    Route route;  // empty when expired
  };

  // `kv_token_layers`: by stage of the plan. Fails if no route covers the model, if edges do not
  // fit the stages, or if the sizes differ.
  static Result<Router> Create(Plan plan, std::vector<int64_t> kv_token_layers,
                               RouterOptions options);

  // Routes or queues the request. kInvalidArgument: it would not fit on empty stages.
  // kResourceExhausted: the queue is full. kFailedPrecondition: the id is already in use.
  Status Submit(const RouteRequest& request, Time now);
  // Decisions since the last call: requests routed in order, queued ones past their deadline.
  std::vector<Decision> TakeDecisions(Time now);

  // Grows the reservation on all hops if `tokens` (prompt and output so far) exceed it. False: some
  // stage has now reserved more KV than it has, so a request must be preempted. True if `tokens`
  // are within the reservation.
  bool Grow(RequestId id, int64_t tokens);
  // The request has ended (finished, cancelled, failed or rerouted) with `tokens` computed in
  // total: frees its reservation exactly once. False if the request is unknown or already released.
  bool Release(RequestId id, int64_t tokens, Time now);

  // A stage that is down takes no new requests until it is up again. SetStageKv sets the KV that it
  // then has.
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
  // An edge of the plan that leaves a stage.
  struct Exit {
    int edge = 0;
    std::optional<int> to;  // nullopt: the route ends
    int layers = 0;         // how many layers the next stage runs when entered by this edge
  };

  Router(Plan plan, std::vector<int64_t> kv, RouterOptions options);
  Status Index();
  int Slot(const std::optional<int>& stage) const { return stage.value_or(num_stages()); }
  int num_stages() const { return static_cast<int>(plan_.stages.size()); }
  bool MarkReachable(int64_t kv_tokens, bool on_empty_stages);
  bool EdgeOpen(const Exit& exit, int64_t kv_tokens, bool on_empty_stages) const;
  bool TryRoute(const RouteRequest& request);
  int Choose(int slot, int64_t kv_tokens, int64_t tokens);
  void Serve(Time now);
  void Expire(Time now);

  Plan plan_;
  RouterOptions options_;
  KvReservations kv_;
  Rng rng_;
  std::vector<std::vector<Exit>> exits_;   // by slot: the stages, and then the coordinator
  std::vector<EdgeScheduler> schedulers_;  // by slot
  std::vector<int> order_;                 // stages by their last layer, the highest first
  std::vector<bool> up_;
  std::vector<int64_t> stage_requests_;
  std::vector<bool> reachable_, open_;  // scratch space of one search
  std::unordered_map<RequestId, Running> running_;
  std::deque<Waiting> queue_;
  std::unordered_map<RequestId, Time> queued_ids_;
  std::vector<Decision> decisions_;
  std::vector<double> edge_tokens_;
};

}  // namespace millrace::cluster
