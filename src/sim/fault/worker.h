// Worker: a worker process of the fault lab: the production WorkerCore, stages of hashes, modelled
// compute and load times, connections. The lab delivers what arrives and calls its timers; killing
// it is destroying it. One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/kv_holdings.h"
#include "cluster/kv_rectangles.h"
#include "cluster/worker_core.h"
#include "engine/hash_stage.h"
#include "engine/row_keeping_stage.h"
#include "sim/fault/surroundings.h"

namespace millrace::sim::fault {

struct WorkerOptions {
  engine::HashModel model;
  std::string name;
  int place = 0;  // in the network
  Incarnation incarnation;
  cluster::WorkerCoreOptions core;
  int64_t memory_tokens = 4096;  // times layers, that KV may take
  Duration step_time = Duration::Millis(4);
  Duration token_time = Duration::Micros(50);
  Duration load_time = Duration::Millis(200);
};

// What a worker has refused or dropped because it was late.
struct WorkerAudit {
  uint64_t pulls_served = 0, pulls_refused = 0, pulls_failed = 0;
  uint64_t batches_failed = 0;
  uint64_t collectives = 0;
};

class Worker {
 public:
  Worker(WorkerOptions options, Surroundings& world);
  Worker(const Worker&) = delete;

  void Start();
  void Deliver(Delivery delivery);
  void OnTimer(TimerKind kind, uint64_t x);
  // The batch that runs, or the next one, takes so much longer (a device that hangs).
  void HangCompute(Duration extra) { compute_extra_ = extra; }
  void AnnounceLeaving(std::optional<Duration> in);

  Incarnation incarnation() const { return options_.incarnation; }
  int place() const { return options_.place; }
  const std::string& name() const { return options_.name; }
  const cluster::WorkerCore& core() const { return core_; }
  const WorkerAudit& audit() const { return audit_; }
  bool in_session() const { return session_.has_value(); }
  std::optional<ConnectionId> session() const { return session_; }
  bool exited() const { return exited_; }
  size_t stages() const { return stages_.size(); }
  size_t lanes_open() const;
  size_t pulls() const { return pulls_.size(); }
  size_t exposures() const { return kv_.size(); }
  const std::map<ShardId, std::shared_ptr<engine::HashStage>>& shards() const { return stages_; }

 private:
  struct Pull {
    cluster::StartPull start;
    int parts_left = 0;
    bool rows_asked = false;
    int64_t bytes = 0;
    Time started;
  };
  struct PullPart {
    TransferId transfer;
    engine::KvBox box;
    ConnectionId connection = 0;
  };
  struct PeerKey {
    Incarnation incarnation;
    Channel channel;
    friend auto operator<=>(const PeerKey&, const PeerKey&) = default;
  };

  void Dial();
  void LoseSession();
  void Settle();  // actions of the core, then the next batch
  void Do(cluster::SendUp& action);
  void Do(cluster::SendToPeer& action);
  void Do(cluster::SendRows& action);
  void Do(cluster::StartLoad& action);
  void Do(cluster::DropShard& action);
  void Do(cluster::AbortGroup& action);
  void Do(cluster::StartLane& action);
  void Do(cluster::DropLane& action);
  void Do(cluster::StartPull& action);
  void Do(cluster::Expose& action);
  void Do(cluster::Unexpose& action);
  void Do(cluster::EndSession& action);
  void StartBatch();
  void EndBatch(const Status& status, std::vector<cluster::PartOutput> outputs);
  void SendTo(const WorkerAddress& to, Channel channel, Payload payload, size_t bytes);
  void OnGone(const Delivery& delivery);
  void OnAsk(ConnectionId connection, const PullAsk& ask);
  void OnAnswer(PullAnswer& answer);
  bool AskForRows(TransferId id);
  void AskSource(TransferId id, const KvSource& source, const engine::KvBox& box);
  void EndPull(TransferId id, Status status);

  // The ranks that run this batch together, this one among them; fewer when some are not there.
  std::vector<Worker*> RanksHere() const;
  size_t RanksNeeded() const;
  void Meet();
  void BeginCompute(Duration time);
  Duration ComputeTime();
  void OnBatchTimer(TimerKind kind);
  static Status RunTogether(const std::vector<Worker*>& ranks);
  std::vector<engine::StagePart> MakeParts() const;

  const WorkerOptions options_;
  Surroundings& world_;
  cluster::WorkerCore core_;
  std::map<ShardId, LoadShard> loads_;  // begun and not dropped
  std::map<ShardId, std::shared_ptr<engine::HashStage>> stages_;
  std::map<ShardId, std::shared_ptr<engine::RowKeepingStage>> keepers_;  // around them
  std::set<ShardId> broken_;  // their collective has failed: for good
  std::optional<ConnectionId> session_, heartbeat_;
  uint64_t sessions_ = 0;
  std::map<PeerKey, ConnectionId> peers_;
  std::map<ConnectionId, PeerKey> peer_of_;

  std::optional<cluster::ReadyBatch> batch_;
  uint64_t batch_number_ = 0;
  Time batch_since_;
  bool met_ = false;  // every rank has begun this batch: it ends at batch_due_
  Time batch_due_;
  std::optional<std::vector<cluster::PartOutput>> outputs_;  // computed together with a rank's
  Duration compute_extra_;
  std::vector<cluster::WorkerAction> drops_;  // until the batch has ended

  cluster::KvHoldings kv_;  // that others may pull
  std::map<TransferId, Pull> pulls_;
  std::map<uint64_t, PullPart> pull_parts_;
  uint64_t next_part_ = 1;
  std::vector<cluster::WorkerAction> actions_;
  WorkerAudit audit_;
  bool exited_ = false;
};

}  // namespace millrace::sim::fault
