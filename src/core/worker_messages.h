// What a controller and its workers tell each other, as plain structs: the state machines of
// cluster speak these, wire turns them into protocol buffers, the fault lab sends them over
// modelled links. Pure data; values.
//
// Fencing. A worker process has an incarnation (random, new with every start); a controller has a
// term (grows with every election). Both travel in every message; what is stale is dropped and
// counted. A way through the stages is a lane: opened once, never repaired, never reused. A late
// message therefore names a lane that is gone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/plan.h"
#include "core/step_plan.h"

namespace millrace {

inline constexpr int kProtocolVersion = 4;

using WorkerId = StrongId<struct WorkerIdTag>;  // given at the join; unique for ever
using Incarnation = StrongId<struct IncarnationTag>;
using Term = StrongId<struct TermTag>;
// Weights of a layer range (and a share of their heads) loaded on one worker. A worker may hold
// several at once while a plan changes.
using ShardId = StrongId<struct ShardIdTag>;
using LaneId = StrongId<struct LaneIdTag>;
using TransferId = StrongId<struct TransferIdTag>;

// The r-th of n tensor-parallel workers of a stage: n in {1, 2, 4, 8}.
struct TensorRank {
  int rank = 0, size = 1;
  friend bool operator==(const TensorRank&, const TensorRank&) = default;
};

// Where others reach a worker.
struct WorkerAddress {
  WorkerId worker;
  Incarnation incarnation;
  std::string control;  // "host:port" of its gRPC server: steps forwarded from stage to stage
  std::string data;     // "host:port" of its data port: activations, KV, weights
  std::string host_id;  // equal: the same kernel, so memory can be read directly
  int64_t process_id = 0;
};

// Compared at the join; workers that differ cannot serve together.
struct WorkerIdentity {
  int protocol_version = kProtocolVersion;
  std::string model_fingerprint;  // of config and weight files
  std::string numeric_class;      // workers of one class compute the same bits
  std::string kv_layout;          // of the bytes that a pull carries
};

// ---- worker -> controller

// Weights a worker has loaded; asked for the same again it has them at once.
struct HeldShard {
  LayerRange layers;
  TensorRank rank;
};
struct Join {
  std::string name;   // chosen by whoever started it; unique in the cluster
  std::string token;  // the cluster's join token
  WorkerIdentity identity;
  WorkerAddress address;     // `worker` is not known yet
  std::string device;        // what it computes with, for people
  int64_t memory_bytes = 0;  // that weights and KV may take
  std::vector<HeldShard> held;
};
struct ShardLoaded {
  ShardId shard;
  Status status;
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token_layer = 0;  // of one token in one layer, at this rank
  int64_t kv_bytes = 0;                  // memory left for KV
};
struct ShardProgress {
  ShardId shard;
  int64_t bytes_done = 0, bytes_total = 0;
};
struct LaneOpened {
  LaneId lane;
  Status status;
};
// The last hop's answer to a step.
struct StepDone {
  LaneId lane;
  StepResult result;
};
// Something this lane needs is gone: a peer's connection, a step that could not run.
struct LaneBroken {
  LaneId lane;
  Status reason;
  std::optional<WorkerId> suspect;  // the peer, when it was one
};
struct PullDone {
  TransferId transfer;
  Status status;
  int64_t bytes = 0;  // that crossed between workers
  double seconds = 0;
  bool rows = false;  // those that left the last of its layers are kept, all that it asked for
};
struct Leaving {  // a notice: this worker will be gone in so long (SIGTERM, a spot notice)
  std::optional<Duration> in;
};
using ToController = std::variant<Join, ShardLoaded, ShardProgress, LaneOpened, StepDone,
                                  LaneBroken, PullDone, Leaving>;

// On a stream and a thread of its own.
struct Heartbeat {
  Incarnation incarnation;
  uint64_t sequence = 0;     // grows by one
  uint64_t steps_done = 0;   // batches this worker has finished
  int64_t batch_age_ms = 0;  // how long the batch being run has been running; 0: idle
  int64_t queued_steps = 0;  // that have arrived and wait
};

// ---- controller -> worker

struct Welcome {
  WorkerId worker;
  Term term;
  Duration heartbeat_every;
};
struct Refused {  // the connection is closed after it; not to be retried unless `retry`
  Status reason;
  bool retry = false;
};
struct LoadShard {
  ShardId shard;
  uint64_t group = 0;  // of the ranks that load together: unguessable, new with every attempt
  LayerRange layers;
  TensorRank rank;
  std::vector<WorkerAddress> ranks;    // of the stage, by rank; for collectives
  std::vector<WorkerAddress> sources;  // peers that hold some of it; may be empty: from disk
  std::string model_fingerprint;       // that weights from sources must have; empty: any
  int max_batched_tokens = 0;
};
struct UnloadShard {
  ShardId shard;
};
struct LaneHop {
  LayerRange layers;                 // within the shard's
  std::vector<WorkerAddress> ranks;  // the workers that run it; one without tensor parallelism
  std::vector<ShardId> shards;       // by rank
};
struct OpenLane {
  LaneId lane;
  std::vector<LaneHop> hops;
  int hop = 0;   // the receiver's place
  int rank = 0;  // and within the hop
  int block_size = 16;
  int num_blocks = 0;  // the same at every hop: one block table serves them all
  int num_host_blocks = 0;
  int max_batched_tokens = 0;
  std::vector<TokenId> eos_token_ids;
  // Layers of the hop, or the one behind them: the receiver keeps the rows that enter these
  // (engine/row_keeping_stage.h). Ascending.
  std::vector<int> keep_rows_at = {};
};
struct CloseLane {
  LaneId lane;
};
// To the first hop, and from each hop to the next before it computes (Orca section 4.2).
struct LaneStep {
  LaneId lane;
  StepPlan plan;
};
// Which steps a stage's ranks run together next. Rank 0 decides what has arrived and tells the
// others, because collectives need the same batches in the same order everywhere.
struct BatchOrder {
  ShardId shard;  // of the receiver
  struct Part {
    LaneId lane;
    StepId step;
  };
  std::vector<Part> parts;
};
// From worker to worker.
using PeerMessage = std::variant<LaneStep, BatchOrder>;

// Names KV so that others may pull it. Nobody can guess it.
struct KvHandle {
  LaneId lane;
  uint64_t generation = 0;
  std::array<uint8_t, 16> nonce = {};
  friend bool operator==(const KvHandle&, const KvHandle&) = default;
};
// Lets tokens [0, tokens) in `blocks` be pulled under `handle`, until released or for so long. Sent
// again with more tokens it extends what may be pulled. The controller keeps the blocks pinned.
struct ExposeKv {
  KvHandle handle;
  std::vector<BlockIndex> blocks;
  int tokens = 0;
  Duration lease;
};
struct ReleaseKv {
  KvHandle handle;
};
struct KvSource {
  WorkerAddress from;
  KvHandle handle;
  LayerRange layers;  // that it holds in that lane
  TensorRank rank;    // whose heads it holds
};
// The rows that left the last of the layers (engine/row_keeping_stage.h), beside their KV: not at
// all, where the puller holds them itself, or over a wire too.
enum class PulledRows : uint8_t { kNone, kLocal, kAny };
// Fetch tokens [first_token, end_token) of the receiver's layers and heads in `lane` from whoever
// has them, into `blocks` (the whole table, from token 0).
struct PullKv {
  TransferId transfer;
  LaneId lane;
  std::vector<BlockIndex> blocks;
  int first_token = 0, end_token = 0;
  std::vector<KvSource> sources;
  bool background = false;                // nobody waits for it: steps have the memory first
  std::optional<LayerRange> layers = {};  // of the lane's here: these alone
  PulledRows rows = PulledRows::kLocal;
};
struct Leave {  // finish what runs and end the process
  std::string reason;
};
using ToWorker = std::variant<Welcome, Refused, LoadShard, UnloadShard, OpenLane, CloseLane,
                              LaneStep, ExposeKv, ReleaseKv, PullKv, Leave>;

}  // namespace millrace
