// PipelineCloser: how pipelines end. One that retires is emptied and then closed: its running
// requests move to others with their KV (departure.h), and waiting ones leave. One that is lost is
// closed at once; its surviving workers keep their KV until its requests have fetched it. One gives
// way if an older one can do nothing without its memory. The requests go back to the queue with the
// tokens they have.
//
// Events leave a mark (LookAgain), and Retire acts.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <set>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/lifecycle/request_lifecycle.h"
#include "cluster/control/parts/blame_ledger.h"
#include "cluster/control/parts/controller_counters.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"

namespace millrace::cluster {

class PipelineCloser {
 public:
  // The references outlive this object. `hold_limit`: how long KV is kept for a puller that is
  // silent.
  PipelineCloser(Duration hold_limit, const Membership& members, Deployment& deployment,
                 Pipelines& pipelines, Requests& requests, Transfers& transfers, KvMemory& memory,
                 RequestLifecycle& lifecycle, ControllerCounters& counters);

  // Retiring pipelines may have emptied, or their requests may find others.
  void LookAgain() { due_ = true; }
  bool due() const { return due_; }
  // Empties and closes retiring pipelines, if they are due.
  void Retire(Time now);

  // The pipeline is lost. `failed`: the hop whose collective has failed.
  void Lose(PipelineId id, const Status& reason, const PipelineLoss& loss, Time now,
            const PipelineHop* failed = nullptr);
  // Loses all pipelines through the stage. Its ranks keep their weights and form a new group.
  void RemakeCollective(const PipelineHop& hop, const Status& reason, Time now);
  // These pipelines can do nothing, because others hold the memory that they need.
  void MakeRoom(const std::set<PipelineId>& starved, Time now);

 private:
  // Whether a request that cannot move stays, or leaves and waits.
  enum class IfStuck : uint8_t { kLeave, kStay };
  void TakeOut(Pipeline& pipeline, RequestId id, IfStuck if_stuck, Time now);
  bool EvictFor(PipelineId starved, Time now);
  void Close(PipelineId id, Time now);
  const Layout& layout() const { return deployment_.layout(); }

  const Duration hold_limit_;
  const Membership& members_;
  Deployment& deployment_;
  Pipelines& pipelines_;
  Requests& requests_;
  Transfers& transfers_;
  KvMemory& memory_;
  RequestLifecycle& lifecycle_;
  ControllerCounters& counters_;
  bool due_ = false;
};

}  // namespace millrace::cluster
