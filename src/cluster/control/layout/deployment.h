// Deployment: which worker holds which layers. It keeps the layout in force, the next one while
// that is being loaded, and what the workers have loaded, and brings the workers to what is wanted.
//
// Events and operators' calls only record facts and wishes. Reconcile acts on them: it fills free
// slots, orders loads, puts the next layout in force once it is up, and lets drained workers go.
//
// A change of layout is one numbered transaction (SpotServe section 4). First the missing weights
// of the next layout are loaded beside the old ones, then requests move over, then unused weights
// are dropped. The old layout is unchanged until the next one is completely loaded; only if it has
// lost all its pipelines, one complete pipeline of the next layout is enough. If the next one
// cannot be loaded, it is given up.
//
// All workers of a pipeline are of one bit class. A stage that has lost its worker waits for one of
// that class for a while; then another class may take the whole pipeline.
//
// An automatic layout follows the number of usable workers. A layout from a plan keeps its stages.
// If one of its workers drains and another one is free, the same plan is applied again without the
// draining worker. Otherwise its stages close, if the other pipelines can serve alone.
//
// Owned by the controller, which sends requests where the stages are up. It knows no request and no
// pipeline. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/layout/layout_shape.h"
#include "cluster/control/layout/shard_loads.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"

namespace millrace::cluster {

struct DeploymentOptions {
  // A change of layout is given up after the ranks of a stage have failed to connect this many
  // times.
  static constexpr int kMeetingsMax = 3;

  std::string model;  // the model's name
  int num_layers = 0;
  LayoutShape shape;    // of an automatic layout; smaller while there are fewer workers
  bool elastic = true;  // an automatic layout follows the number of workers
  // How long an automatic layout waits for more workers, or for a lost one to return, before it
  // changes. If nothing can serve any more it waits no longer than loads have taken, and at least
  // `replace_least`.
  Duration replace_limit = Duration::Seconds(2);
  Duration replace_least = Duration::Seconds(0.4);
};

class Deployment {
 public:
  // What pipelines use. Reconcile neither unloads it nor lets these workers go.
  struct InUse {
    std::set<ShardId> shards;
    std::set<WorkerId> running;  // workers of pipelines that run
    std::set<WorkerId> keeping;  // workers that keep KV of lost pipelines
  };
  struct Changes {
    bool switched = false;  // another layout is in force
    bool stages = false;    // stages may have come up, gone down or begun to close
  };

  // The references outlive this object. It sets `draining` and `unusable` of members.
  Deployment(DeploymentOptions options, ShardLoadOptions loads, Membership& members, IdSource& ids,
             Outbox& outbox);

  // Begins a change to this layout, which replaces one that is being loaded. While nothing is
  // loaded, the layout is in force at once. REQUIRES: MakeLayout has checked it.
  void Begin(Layout layout);
  // Transfers the duties of a worker to others; it leaves when no pipeline uses it any more.
  // kFailedPrecondition: the others could not serve without it, so nothing was changed.
  // REQUIRES: the worker is a member.
  Status Drain(WorkerId worker);

  // A draining worker stays after all. A change of layout that was begun to do without it is given
  // up, and its stages accept requests again; if others have its duties already, it is free for new
  // ones. A worker that was let go joins again. REQUIRES: the worker is a member.
  void Stay(WorkerId worker);

  // Workers of this class will probably join again: after a restart of the controller, requests
  // wait for them.
  void Expect(BitClass bits);
  void WorkerJoined();
  // REQUIRES: the worker is no member any more.
  void WorkerLost(WorkerId worker);
  enum class LoadResult : uint8_t {
    kStale,  // nothing waits for this shard
    kTaken,
    kWorkerLost  // no source has the weights: the caller must end the worker's session, because in
                 // its next one the worker gets the sources known by then
  };
  LoadResult ShardLoaded(WorkerId from, const millrace::ShardLoaded& message);
  void ShardProgress(const millrace::ShardProgress& message);
  // The collective of the shard's stage has failed permanently: its ranks form their group again.
  void ResetGroup(ShardId of_rank);
  // Time has passed, or pipelines have closed.
  void Check() { due_ = true; }

  bool told_to_leave(WorkerId worker) const { return released_.contains(worker); }
  // Whether Reconcile has something to do.
  bool due() const { return due_; }
  Changes Reconcile(const InUse& in_use, Time now);

  const Layout& layout() const { return layout_; }  // in force
  bool changing() const { return next_.has_value(); }
  // The worker that was asked to load the shard. nullopt: it or the shard is gone.
  std::optional<WorkerId> HolderOf(ShardId shard) const { return loads_.HolderOf(shard); }
  // The worker was asked to load the shard, and neither it nor the shard is gone.
  bool HasShard(ShardId shard) const { return loads_.Has(shard); }
  int64_t newest_epoch() const { return epoch_; }  // of the newest layout that was begun
  // The last change of layout, if it was given up.
  const std::optional<GivenUpPlan>& given_up() const { return given_up_; }
  uint64_t applied() const { return applied_; }  // layouts that came into force
  uint64_t given_up_count() const { return given_up_count_; }

  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  // Since when the number of usable workers calls for another layout, and that number.
  struct Mismatch {
    Time since;
    int usable = 0;
  };

  std::vector<Layout*> Layouts();
  static LayoutStage* FindStage(Layout& layout, ShardId of_rank);
  void Mark();
  LoadResult LoadFailed(Membership::Worker& worker, const millrace::ShardLoaded& message);
  bool RetryConnecting(const millrace::ShardLoaded& message);
  void GiveUp(std::string reason);
  static void ShareKv(Layout& layout, WorkerId worker);
  enum class Slots : uint8_t { kAll, kNotLoaded };
  void Unassign(Layout& layout, WorkerId worker, Slots which = Slots::kAll);
  bool IsAutomatic() const;
  bool HasDraining(const LayoutStage& stage) const;
  Status Relieve(const Membership::Worker& worker);
  bool CloseStagesOf(WorkerId worker);

  bool CanRefill(const Layout& layout) const;

  // The steps of Reconcile.
  void DrainLeaving();
  void GiveUpNext();
  void DropNext(std::string reason);
  void FollowClasses(Time now);
  void ForgetClasses(Time now);
  void FollowWorkers(Time now);
  Duration ReplaceAfter() const;
  void MeasureLoads(Time now);
  void FreeClosedStages(const InUse& in_use);
  void RestoreNamedWorkers();
  void AssignWorkers();
  void CloseUnlessReplaced();
  std::set<WorkerId> DrainingInService() const;
  void SwitchIfUp();
  void UnloadUnused(const InUse& in_use);
  void ReleaseIdleWorkers(const InUse& in_use);

  const DeploymentOptions options_;
  Membership& members_;
  Outbox& outbox_;
  ShardLoads loads_;

  Layout layout_;
  std::optional<Layout> next_;          // being loaded; replaces layout_ once it is up
  bool next_relieves_ = false;          // next_ was begun because workers drain
  std::optional<std::string> give_up_;  // why next_ must be given up
  std::optional<Mismatch> mismatch_;
  std::map<ShardId, Time> loading_;  // since when
  Duration longest_load_;            // of all shards so far
  bool has_served_ = false;          // a layout has been complete
  std::optional<Time> stuck_since_;  // another class could fill a layout that lacks workers
  bool follows_classes_ = true;      // false: that was given up for the present workers
  bool follows_ = true;              // false: a layout for the present workers was given up
  bool restores_ = false;            // a worker has joined that may get its place back from another
  std::optional<GivenUpPlan> given_up_;
  int64_t epoch_ = 0;
  uint64_t applied_ = 0, given_up_count_ = 0;
  std::set<WorkerId> released_;  // members that were told to leave
  bool due_ = false;
  Changes changes_;  // since the last Reconcile
};

}  // namespace millrace::cluster
