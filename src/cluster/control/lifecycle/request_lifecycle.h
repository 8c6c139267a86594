// RequestLifecycle: a request from its Submit to its last output. It waits until a pipeline has
// room, is sent to the scheduler there, waits again when it leaves (after its prompt, or because
// the pipeline ends), and ends with an output for its client. Waiting requests are tried by
// arrival. One that finds no room may be overtaken for a while, and one that waits for an event of
// its own keeps nobody waiting.
//
// It owns the placements and the outputs that were not taken yet. What a request is, and what was
// delivered of it, is in Requests.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/lifecycle/placements.h"
#include "cluster/control/parts/controller_counters.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"
#include "core/output.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct RequestLifecycleOptions {
  int block_size = 1;      // of KV, in tokens
  Duration waiting_limit;  // how long a request may wait for a pipeline
  // A request that has waited this long for KV is no longer overtaken by requests that would fit.
  Duration overtake_limit;
  Duration hold_limit;  // how long the KV of a prompt is kept for a puller that is silent
};

class RequestLifecycle {
 public:
  using Request = Requests::Request;

  // The references outlive this object.
  RequestLifecycle(const RequestLifecycleOptions& options, const PlacementOptions& placements,
                   Membership& members, Deployment& deployment, Pipelines& pipelines,
                   Requests& requests, Transfers& transfers, KvMemory& memory,
                   ControllerCounters& counters);

  // As of ControllerCore.
  Status Submit(sched::NewRequest request, Time now, std::string_view computed_by);
  void Abort(RequestId id, std::optional<int> index, Time now);
  void TakeOutputs(std::vector<RequestOutput>& outputs) { MoveOnto(outputs_, outputs); }
  // A step of the pipeline has ended. Returns what is wrong with its result.
  Status EndStep(Pipeline& pipeline, const StepResult& result, Time now);
  // The request has left its pipeline, and waits for another one, which gets `request`.
  void Requeue(RequestId id, sched::NewRequest request, TimeCause because, Time now);
  // Sends waiting requests to pipelines if something has changed (Requests::TryQueue).
  void Dispatch(Time now);
  // Ends those that have waited for too long.
  void Expire(Time now);
  // Ends the request if it is what ends its pipelines. REQUIRES: it waits.
  void EndAfterDeaths(RequestId id, const Status& reason, Time now);

  // Where the request could go on now. nullopt: nowhere.
  std::optional<Placements::Choice> Choose(const Request& request, Time now);
  // It was sent where Choose said.
  void Sent() { placements_.Sent(); }
  // Pipelines have closed, or stages are down.
  void DropLostPlaces() { placements_.DropLost(); }

  // Why no request can run. nullopt: they can.
  std::optional<std::string> Missing() const;
  std::string WhyItWaits(const Request& request) const;
  const Placements& placements() const { return placements_; }

 private:
  // kNotYet: the request waits for an event of its own, which does not block the requests behind
  // it.
  enum class Placed : uint8_t { kYes, kNoPipeline, kNoRoom, kNotYet, kNever };
  Placed Place(RequestId id, std::set<PipelineId>& full, Time now);
  Status AddTo(Pipeline& pipeline, RequestId id, Time now);
  // Ends a waiting request, or its sequence `index`.
  void EndWaiting(RequestId id, FinishReason reason, const Status& error, std::optional<int> index,
                  Time now);
  void HandOver(Pipeline& from, RequestId id, RequestOutput& first, Time now);
  void HandleOutputs(Pipeline& pipeline, size_t first, Time now);
  void Forget(RequestId id);

  const RequestLifecycleOptions options_;
  Membership& members_;
  Deployment& deployment_;
  Pipelines& pipelines_;
  Requests& requests_;
  Transfers& transfers_;
  ControllerCounters& counters_;
  Placements placements_;
  std::vector<RequestOutput> outputs_;
  std::vector<size_t> notable_outputs_;
};

}  // namespace millrace::cluster
