// Pipelines: the pipelines of a cluster, from the order to open one until it is closed. Each is a
// route that is open on its workers, with one scheduler, one block table per request for all hops,
// and as many steps in flight as it has hops. A pipeline is opened once and never repaired.
//
// It forms the steps of the pipelines that were touched, those that share groups of ranks in turns,
// and opens a lost route again after a back-off. How many blocks each may hold is for KvMemory to
// say.
//
// Owned by the controller, which decides which requests are in which pipeline and when one closes.
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/edge_flows.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"
#include "cluster/control/parts/step_watch.h"
#include "cluster/control/pipelines/pipeline_requests.h"
#include "cluster/control/pipelines/pipeline_turns.h"
#include "core/output.h"
#include "core/worker_messages.h"
#include "sched/prefill_meter.h"
#include "sched/scheduler.h"
#include "sched/step_budget.h"
#include "sched/step_timer.h"

namespace millrace::cluster {

struct Pipeline {
  PipelineId id;
  Route route;  // in stages of the layout in force; of an earlier one if it is retiring
  StageRole role = StageRole::kBoth;
  BitClass bits;                    // of all its workers
  int protocol = kProtocolVersion;  // that all its workers speak
  std::vector<PipelineHop> hops;
  std::vector<std::vector<WorkerId>> workers;  // by hop and rank
  std::unique_ptr<sched::Scheduler> scheduler;
  sched::StepTimer timer;
  StepWatch watch;
  std::optional<Time> overdue_since;  // when its oldest step was first found overdue
  Time opened_at;                     // OpenPipeline was sent
  sched::PrefillMeter prefill;
  std::optional<sched::StepBudget> budget;  // if its steps keep a TPOT limit
  double token_s = 0;                       // from token to token of a request; 0: not measured
  std::set<WorkerId> to_open;               // workers that have not answered OpenPipeline
  std::optional<Time> tested_at;            // its test step was sent, and has not come back
  bool open = false;                        // requests may run in it
  bool shares = false;                      // its workers also serve other routes of the plan
  bool retiring = false;                    // takes no more requests: replaced, or a worker drains
  PipelineRequests requests;
  std::vector<sched::KvPull> pulls;   // asked for by the scheduler, not started
  std::vector<std::string> names;     // of rank 0 of each hop
  std::vector<EdgeFlows::Key> edges;  // where its flow is counted

  bool Uses(WorkerId worker) const;
};

struct PipelinesOptions {
  // For every pipeline. The layout sets the number of stages. `num_blocks` is an upper limit; 0
  // means as many as fit.
  sched::SchedulerOptions scheduler;
  int num_layers = 0;
  // Steps that decode should take no longer: they have fewer tokens of prompts beside them.
  std::optional<Duration> tpot_limit;
  // Receives every line of every pipeline's step log. Empty: no step log.
  std::function<void(std::string_view)> step_log;
  StepWatchLimits steps = {};
};

// A request that could run and makes no progress.
struct StalledRequest {
  sched::RequestInfo info;
  std::vector<std::string> workers;  // of rank 0 of each hop, if a step is with them
};

class Pipelines {
 public:
  // The references outlive this object.
  Pipelines(PipelinesOptions options, const Membership& members, IdSource& ids, Outbox& outbox,
            KvMemory& memory);

  // Null: there is none.
  Pipeline* Find(PipelineId id);
  // REQUIRES: it is not closed.
  Pipeline& at(PipelineId id) { return pipelines_.at(id); }
  const Pipeline& at(PipelineId id) const { return pipelines_.at(id); }
  bool contains(PipelineId id) const { return pipelines_.contains(id); }
  std::map<PipelineId, Pipeline>& all() { return pipelines_; }
  const std::map<PipelineId, Pipeline>& all() const { return pipelines_; }
  std::vector<PipelineId> Using(WorkerId worker) const;
  std::vector<PipelineId> Using(const std::vector<ShardId>& stage) const;

  // The pipeline of the route, which is opened if its stages are up. Null: they are not, or it was
  // lost a short time ago.
  Pipeline* FindOrOpen(const Layout& layout, const Route& route, StageRole role, Time now);
  // The worker has opened it. Once all have, a test step passes all its hops, and when that comes
  // back the pipeline is open. A step must not arrive earlier. Older workers know no test steps.
  // False: nothing waits for this answer.
  bool Opened(Pipeline& pipeline, WorkerId worker, Time now);
  bool Tested(Pipeline& pipeline);
  // Another layout is in force: a pipeline continues unchanged if the layout has its route with the
  // same shards, shared with others or not as before, and retires otherwise.
  void RetireUnplanned(const Layout& layout);
  // The worker has said what its steps take: prefill batches prompts up to the number of tokens
  // that saturates its pipelines' workers (DistServe section 3.1, L_m).
  void FollowProfile(WorkerId worker);
  // Those through stages that are closing retire.
  void RetireClosing(const Layout& layout);
  // It is lost: its route is not opened again for a while, which doubles with every loss until a
  // step of the route has ended.
  void BackOff(const Pipeline& pipeline, const Status& reason, Time now);
  // Why requests cannot run now although all stages are up. nullopt: every role has a pipeline that
  // is open, or a stage is not up.
  struct Closed {
    std::string why;
    bool breaks = false;  // its pipelines break again and again
  };
  std::optional<Closed> WhyClosed(const Layout& layout) const;
  // The request has left it, and so has its reservation of KV memory.
  void Remove(Pipeline& pipeline, RequestId request);
  // The hops in `kept` stay open at their workers. REQUIRES: no request is in it any more, and
  // KvMemory knows the hops (Survive).
  void Close(PipelineId id, const std::vector<PipelineHop>& kept);

  // Something changed since its last step was formed.
  void Touch(PipelineId id) { dirty_.insert(id); }
  void TouchAll();
  // A step has ended. Appends its outputs; the status is that of Scheduler::Commit.
  Status Commit(Pipeline& pipeline, const StepResult& result, Time now,
                std::vector<RequestOutput>& outputs);
  // A worker that holds up its pipeline, and lives.
  struct Holder {
    WorkerId worker;
    Status reason;
  };
  // The workers that hold a step that is overdue, or have not opened a pipeline, by what their
  // heartbeats say. Those in a batch are left to Membership::Lost.
  std::vector<Holder> Holders(Time now);
  // Forms the steps that can run now. Calls `formed` after each pipeline that was touched; it may
  // touch and close pipelines. Returns the pipelines that can do nothing, because others hold the
  // memory that they need.
  [[nodiscard]] std::set<PipelineId> FormSteps(Time now,
                                               const std::function<void(Pipeline&)>& formed);

  // The KV of a prompt has gone from a worker to another one for its answer.
  void HandedOver(const std::string& from, const std::string& to, const EdgeFlows::Flow& flow) {
    flows_.Add({from, to, EdgePhase::kHandOver}, flow);
  }
  EdgeFlows::Table Flows() const;  // so far
  // What had flowed when the layout in force came into force.
  const EdgeFlows::Table& FlowsBeforeLayout() const { return flows_before_layout_; }
  uint64_t opened() const { return opened_; }  // so far
  sched::SchedulerStats Stats() const;         // summed over all, with counters of closed ones
  std::optional<StalledRequest> Stalled(Time now) const;  // of any of them (watchdog)
  // How many tokens of prompts the pipeline computes per second: as measured, or, until then,
  // as the last pipeline was. nullopt: none was measured.
  std::optional<double> PrefillTokensPerS(const Pipeline& pipeline) const;

  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  struct Retry {
    Time at;  // not before
    Duration back_off;
    int losses = 0;  // in a row
    Status reason;   // of the last one
  };

  // Orders roles and routes, those of keys and those that are looked for.
  struct RouteOrder {
    using Key = std::pair<StageRole, Route>;
    using View = std::pair<StageRole, const Route*>;
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const {
      return Less(a.first, a.second, b.first, b.second);
    }
    bool operator()(const Key& a, const View& b) const {
      return Less(a.first, a.second, b.first, *b.second);
    }
    bool operator()(const View& a, const Key& b) const {
      return Less(a.first, *a.second, b.first, b.second);
    }
    static bool Less(StageRole role_a, const Route& a, StageRole role_b, const Route& b);
  };

  void Index();
  Pipeline* Open(const Layout& layout, const Route& route, StageRole role, Time now);
  void SendOpen(const Pipeline& pipeline, const Layout& layout, int num_blocks);
  void LimitPrompts(Pipeline& pipeline);
  void Retire(Pipeline& pipeline);
  std::optional<WorkerId> HolderOfStep(const Pipeline& pipeline, Time since, Time now) const;
  std::vector<int> CacheActivationsAt(const Layout& layout, LayerRange hop, StageRole role) const;
  void Form(Pipeline& pipeline, Time now);

  const PipelinesOptions options_;
  const Membership& members_;
  IdSource& ids_;
  Outbox& outbox_;
  KvMemory& memory_;
  std::map<PipelineId, Pipeline> pipelines_;
  std::map<RouteOrder::Key, PipelineId, RouteOrder> by_route_;  // those that do not retire
  std::set<PipelineId> dirty_;            // something changed since their last step was formed
  PipelineTurns turns_;                   // of pipelines that must not run at the same time
  std::set<PipelineId> ask_again_;        // pipelines whose turn it may be now
  std::map<std::string, Retry> retries_;  // by the shards and layers of the hops
  uint64_t opened_ = 0;
  EdgeFlows flows_;
  EdgeFlows::Table flows_before_layout_;
  sched::SchedulerStats closed_;                     // counters of closed pipelines
  std::optional<double> last_prefill_tokens_per_s_;  // of the last step of any that was measured
};

}  // namespace millrace::cluster
