// Worker: a worker process of the fault lab: the production WorkerCore, stages made of hashes,
// modelled compute and load times, connections. The lab delivers messages and calls its timers;
// destroying it is how a process is killed. One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/transfer/kv_exports.h"
#include "cluster/transfer/kv_pull.h"
#include "cluster/worker/worker_core.h"
#include "stage/activation_caching_stage.h"
#include "stage/testing/hash_stage.h"
#include "tests/fault/world.h"

namespace millrace::sim::fault {

struct WorkerOptions {
  int bit_class = 0;
  stage::HashModel model;  // of the class
  std::string name;
  int place = 0;  // in the network
  Incarnation incarnation;
  cluster::WorkerCoreOptions core;
  int64_t memory_tokens = 4096;  // times layers; available for KV
  bool tight_memory = false;     // a load fails while pipelines are open
  Duration step_time = Duration::Millis(4);
  Duration token_time = Duration::Micros(50);
  Duration load_time = Duration::Millis(200);
};

// Late messages that a worker refused or dropped.
struct WorkerAudit {
  uint64_t pulls_served = 0, pulls_refused = 0, pulls_failed = 0;
  uint64_t batches_failed = 0;
  uint64_t collectives = 0;
};

class Worker {
 public:
  Worker(WorkerOptions options, World& world);
  Worker(const Worker&) = delete;

  void Start();
  void Deliver(Delivery delivery);
  void OnTimer(TimerKind kind, uint64_t x);
  // The current batch, or the next one, takes this much longer (a device that hangs).
  void HangCompute(Duration extra) { compute_extra_ = extra; }
  // Its computing thread does nothing for this long. Other threads go on.
  void StandStill(Duration lasts);
  void SetNotice(std::optional<MachineNotice> notice);

  Incarnation incarnation() const { return options_.incarnation; }
  int place() const { return options_.place; }
  const std::string& name() const { return options_.name; }
  int bit_class() const { return options_.bit_class; }
  const cluster::WorkerCore& core() const { return core_; }
  const WorkerAudit& audit() const { return audit_; }
  bool in_session() const { return session_.has_value(); }
  std::optional<NetworkConnectionId> session() const { return session_; }
  bool exited() const { return exited_; }
  size_t stages() const { return stages_.size(); }
  size_t pipelines_open() const;
  size_t pulls() const { return pulls_.size(); }
  size_t exposures() const { return kv_.size(); }
  const std::map<ShardId, std::shared_ptr<stage::HashStage>>& shards() const { return stages_; }

 private:
  struct Pull {
    cluster::KvPull core;
    std::optional<Time> timer = {};  // the earliest one that is set
  };
  // An ask in progress.
  struct PullPart {
    TransferId transfer;
    uint64_t part = 0;  // of the pull
    stage::TransferItem item;
    NetworkConnectionId connection = 0;
  };
  struct PeerKey {
    Incarnation incarnation;
    Channel channel;
    friend auto operator<=>(const PeerKey&, const PeerKey&) = default;
  };

  bool still() const { return world_.now() < still_until_; }
  Heartbeat MakeHeartbeat();
  void Dial();
  void LoseSession();
  void Settle();  // performs actions of the core, then the next batch
  void Do(cluster::SendUp& action);
  void Do(cluster::StartProbe&) {}  // no controller here asks for one
  void Do(cluster::UseTokenTable&);
  void Do(cluster::SendToPeer& action);
  void Do(cluster::SendActivations& action);
  void Do(cluster::StartLoad& action);
  bool HasRoomFor(const LoadShard& load) const;
  void Do(cluster::DropShard& action);
  void Do(cluster::AbortGroup& action);
  void Do(cluster::StartPipeline& action);
  void Do(cluster::DropPipeline& action);
  void Do(cluster::StartPull& action);
  void Do(cluster::Export& action);
  void Do(cluster::Unexport& action);
  void Do(cluster::ReturnMemory& action);
  void Do(cluster::EndSession& action);
  void StartBatch();
  void EndBatch(const Status& status, std::vector<cluster::PartOutput> outputs);
  void SendTo(const WorkerAddress& to, Channel channel, Payload payload, size_t bytes);
  void OnGone(const Delivery& delivery);
  void OnAsk(NetworkConnectionId connection, const PullAsk& ask);
  void OnAnswer(PullAnswer& answer);
  void Spoil(const stage::TransferItem& item, std::vector<std::byte>& bytes) const;
  void SourceLost(NetworkConnectionId connection);
  void Advance(TransferId id);
  void EndPull(TransferId id);

  // The ranks that run this batch together, including this one; fewer if some are missing.
  std::vector<Worker*> RanksHere() const;
  size_t RanksNeeded() const;
  void Meet();
  void BeginCompute(Duration time);
  Duration ComputeTime();
  void OnBatchTimer(TimerKind kind);
  static Status RunTogether(const std::vector<Worker*>& ranks);
  std::vector<stage::StagePart> MakeParts() const;

  const WorkerOptions options_;
  World& world_;
  cluster::WorkerCore core_;
  std::map<ShardId, LoadShard> loads_;  // started and not dropped
  std::map<ShardId, std::shared_ptr<stage::HashStage>> stages_;
  // wrappers around the stages
  std::map<ShardId, std::shared_ptr<stage::ActivationCachingStage>> keepers_;
  std::set<ShardId> broken_;  // shards whose collective has failed permanently
  std::optional<NetworkConnectionId> session_, heartbeat_;
  uint64_t sessions_ = 0;
  std::shared_ptr<GrammarSource> grammars_;  // once there is a token table
  std::map<PeerKey, NetworkConnectionId> peers_;
  std::map<NetworkConnectionId, PeerKey> peer_of_;

  std::optional<cluster::ReadyBatch> batch_;
  uint64_t batch_number_ = 0;
  Time batch_since_;
  bool met_ = false;  // every rank has started this batch: it ends at batch_due_
  Time batch_due_;
  std::optional<std::vector<cluster::PartOutput>> outputs_;  // computed together with another
                                                             // rank's
  Duration compute_extra_;
  Time still_until_;           // of its computing thread
  std::optional<Time> woken_;  // when that thread got something to do, while it stands still
  std::vector<cluster::WorkerAction> drops_;  // delayed until the batch has ended

  cluster::KvExports kv_;  // KV that other workers may pull
  std::map<TransferId, Pull> pulls_;
  std::map<uint64_t, PullPart> pull_parts_;
  uint64_t next_part_ = 1;
  std::vector<cluster::WorkerAction> actions_;
  WorkerAudit audit_;
  bool exited_ = false;
};

}  // namespace millrace::sim::fault
