// The messages between a controller and its workers, as plain structs: the state machines of
// cluster exchange these, wire converts them to protocol buffers, the fault lab sends them over
// modelled links. Pure data; values.
//
// Fencing. A worker process has an incarnation (random, new with every start); a controller has a
// term (grows with every election). Both travel in every message; stale messages are dropped and
// counted. A pipeline is opened once, never repaired and never reused. A late message therefore
// names a pipeline that no longer exists.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/notice.h"
#include "core/output_grammar.h"
#include "core/plan.h"
#include "core/protocol_range.h"
#include "core/step_plan.h"

namespace millrace {

using WorkerId = StrongId<struct WorkerIdTag>;  // assigned at the join; never reused
using Incarnation = StrongId<struct IncarnationTag>;
using Term = StrongId<struct TermTag>;
// Weights of a layer range (and a share of their heads) loaded on one worker. A worker may hold
// several while a plan changes.
using ShardId = StrongId<struct ShardIdTag>;
using PipelineId = StrongId<struct PipelineIdTag>;
using TransferId = StrongId<struct TransferIdTag>;
using ProbeId = StrongId<struct ProbeIdTag>;

// The r-th of n tensor-parallel workers of a stage: n in {1, 2, 4, 8}.
struct TensorRank {
  int rank = 0, size = 1;
  friend bool operator==(const TensorRank&, const TensorRank&) = default;
};

// Addresses at which peers reach a worker.
struct WorkerAddress {
  WorkerId worker;
  Incarnation incarnation;
  std::string control;  // "host:port" of its gRPC server: steps forwarded from stage to stage
  std::string data;     // "host:port" of its data port: activations, KV, weights
  std::string host_id;  // equal: same kernel, so memory can be read directly
  int64_t process_id = 0;
};

// Compared at the join: protocol and model must match those of the cluster. Workers of another
// numeric class serve in pipelines of their own (docs/decisions/0021-bit-classes.md).
struct WorkerIdentity {
  ProtocolRange protocol;
  std::string model_fingerprint;  // of config and weight files
  std::string numeric_class;      // workers of one class compute the same bits
  std::string kv_layout;          // of the bytes that a pull carries; one per numeric class
};

// ---- worker -> controller

// Weights that a worker has loaded. If the controller assigns the same again, they are ready at
// once.
struct HeldShard {
  LayerRange layers;
  TensorRank rank;
};
// What a worker says of its machine beside its device and memory, for plans and for display. A
// worker of an earlier version says nothing.
struct MachineFacts {
  std::optional<int> cores;  // that it computes with
  std::string zone;          // machines of one zone are near each other; empty: not known
  std::optional<double> price_usd_per_hour;  // unset: not known, which is not zero
  bool spot = false;                         // may be taken away at short notice
  friend bool operator==(const MachineFacts&, const MachineFacts&) = default;
};
struct Join {
  std::string name;   // chosen by the operator who started it; unique in the cluster
  std::string token;  // the cluster's join token
  WorkerIdentity identity;
  WorkerAddress address;     // `worker` is not yet assigned
  std::string device;        // what it computes with, for display
  int64_t memory_bytes = 0;  // available for weights and KV
  std::vector<HeldShard> held;
  MachineFacts machine;
  std::string token_table;  // the digest of the one that it has; empty: none
};
struct ShardLoaded {
  ShardId shard;
  Status status;
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token_layer = 0;  // of one token in one layer, at this rank
  int64_t kv_bytes = 0;                  // memory left for KV
  // Of weight_bytes: what the worker had already, and what it got from other workers. The rest came
  // from its disk.
  int64_t kept_bytes = 0, peer_bytes = 0;
};
struct ShardProgress {
  ShardId shard;
  int64_t bytes_done = 0, bytes_total = 0;
};
struct PipelineOpened {
  PipelineId pipeline;
  Status status;
};
// The last hop's reply to a step.
struct StepDone {
  PipelineId pipeline;
  StepResult result;
};
// Something this pipeline needs is gone: a peer's connection, or a step that could not run.
struct PipelineBroken {
  PipelineId pipeline;
  Status reason;
  std::optional<WorkerId> suspect;  // set if a peer is the likely cause
};
struct PullDone {
  TransferId transfer;
  Status status;
  int64_t bytes = 0;  // transferred between workers
  double seconds = 0;
  bool activations = false;  // all the requested activations of its last layer are cached
};
struct Leaving {  // a hard notice: this worker will be gone after this time
  std::optional<Duration> in;
  NoticeOrigin origin;
};
// A soft notice. Only for controllers that speak kProtocolNotices, as Staying.
struct MayLeave {
  std::optional<Duration> in;
  NoticeOrigin origin;
};
struct Staying {};  // what this worker has said with Leaving or MayLeave no longer holds
// The step times of this worker with the cluster's model, as the text of a profile
// (docs/formats/profile.md). Only for controllers that speak kProtocolProfiles.
struct WorkerProfile {
  std::string text;
};
// What a ProbeLink measured, as it was measured: the controller checks the numbers.
struct LinkProbed {
  ProbeId probe;
  Status status;
  double latency_s = 0;  // one way: half of the shortest round trip
  double bytes_per_s = 0;
  int64_t bytes = 0;  // transferred for it
};
using ToController =
    std::variant<Join, ShardLoaded, ShardProgress, PipelineOpened, StepDone, PipelineBroken,
                 PullDone, Leaving, WorkerProfile, LinkProbed, MayLeave, Staying>;

// Sent on its own stream and thread.
struct Heartbeat {
  Incarnation incarnation;
  uint64_t sequence = 0;     // grows by one
  uint64_t steps_done = 0;   // batches this worker has finished
  int64_t batch_age_ms = 0;  // how long the current batch has been running; 0: idle
  int64_t queued_steps = 0;  // steps received but not started
  // How long the computing thread has not taken up what there is to do; 0: it has, or there is
  // nothing. A worker of an earlier version says 0 and false.
  int64_t still_ms = 0;
  bool waits_for_ranks = false;  // the current batch waits for other ranks of its stage
};

// Bytes of no meaning, on a stream of their own, by which a worker measures its links with the
// controller: the controller answers each message with one of `answer_bytes` bytes.
struct Echo {
  uint32_t bytes = 0;         // that it carries
  uint32_t answer_bytes = 0;  // 0 in an answer
};

// ---- controller -> worker

struct Welcome {
  WorkerId worker;
  Term term;
  Duration heartbeat_every;
  ProtocolRange protocol = {};  // the controller's
  // Identifies the store in which the term was won: terms of two stores cannot be compared. "": it
  // has none. nullopt: a controller of an earlier version does not say.
  std::optional<std::string> store = {};
};
struct Refused {  // the connection is closed after it; retry only if `retry`
  Status reason;
  bool retry = false;
};
struct LoadShard {
  ShardId shard;
  uint64_t group = 0;  // identifies the ranks that load together: unguessable, new with every
                       // attempt
  LayerRange layers;
  TensorRank rank;
  std::vector<WorkerAddress> ranks;    // of the stage, by rank; for collectives
  std::vector<WorkerAddress> sources;  // peers that hold part of it; may be empty: load from disk
  std::string model_fingerprint;       // required of weights from sources; empty: any
  int max_batched_tokens = 0;
  int max_model_len = 0;  // tokens of the longest sequence; 0: of an earlier version, not known
};
struct UnloadShard {
  ShardId shard;
};
struct PipelineHop {
  LayerRange layers;                 // within the shard's
  std::vector<WorkerAddress> ranks;  // the workers of the stage; one without tensor parallelism
  std::vector<ShardId> shards;       // by rank
};
struct OpenPipeline {
  PipelineId pipeline;
  std::vector<PipelineHop> hops;
  int hop = 0;   // the receiver's index
  int rank = 0;  // its rank within the hop
  int block_size = 16;
  int num_blocks = 0;  // the same at every hop, because one block table serves all hops
  int num_host_blocks = 0;
  int max_batched_tokens = 0;
  std::vector<TokenId> eos_token_ids;
  // Layers of the hop, or the first layer after it: the receiver caches the activations that enter
  // these (stage/activation_caching_stage.h). Ascending.
  std::vector<int> cache_activations_at = {};
  // Other pipelines hold blocks on the same workers all the time, so the memory of blocks that are
  // returned is wanted back in small pieces.
  bool shares_memory = false;
};
struct ClosePipeline {
  PipelineId pipeline;
};
// Sent to the first hop, and by each hop to the next before it computes (Orca section 4.2).
struct PipelineStep {
  PipelineId pipeline;
  std::shared_ptr<const StepPlan> plan;  // never null; shared by all that hold it in this process
  // The step may use blocks again that were returned before: it runs after this many ReturnBlocks.
  uint64_t returns = 0;
};
// The pipeline no longer holds these blocks: their content is not needed, and their memory is
// wanted elsewhere. No step that was sent before and has not ended uses them.
struct ReturnBlocks {
  PipelineId pipeline;
  uint64_t number = 0;  // of this message: 1 for the pipeline's first
  std::vector<BlockIndex> blocks;
};
// The steps that a stage's ranks run together next. Rank 0 decides which have arrived and sends
// this to the others, because collectives need the same batches in the same order everywhere.
struct BatchOrder {
  ShardId shard;  // the receiver's
  struct Part {
    PipelineId pipeline;
    StepId step;
  };
  std::vector<Part> parts;
};
// From worker to worker.
using PeerMessage = std::variant<PipelineStep, BatchOrder>;

// Identifies KV that other workers may pull. Unguessable.
struct KvHandle {
  PipelineId pipeline;
  uint64_t generation = 0;
  std::array<uint8_t, 16> nonce = {};
  friend bool operator==(const KvHandle&, const KvHandle&) = default;
};
// Lets other workers pull tokens [0, tokens) in `blocks` under `handle`, until it is released or
// the lease ends. Sending it again with more tokens extends what may be pulled. The controller
// keeps the blocks pinned.
struct ExportKv {
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
  LayerRange layers;  // held in that pipeline
  TensorRank rank;    // identifies the heads held
};
// Which cached activations of the last of the layers (stage/activation_caching_stage.h) the puller
// wants beside their KV: none, only what it holds itself, or also over the network.
enum class PulledActivations : uint8_t { kNone, kLocal, kAny };
// Fetch tokens [first_token, end_token) of the receiver's layers and heads in `pipeline` from the
// workers that hold them, into `blocks` (the whole table, from token 0).
struct PullKv {
  TransferId transfer;
  PipelineId pipeline;
  std::vector<BlockIndex> blocks;
  int first_token = 0, end_token = 0;
  std::vector<KvSource> sources;
  bool background = false;                // not urgent: steps have priority for memory bandwidth
  std::optional<LayerRange> layers = {};  // a subset of the pipeline's layers here; unset: all
  PulledActivations activations = PulledActivations::kLocal;
};
enum class ProbedLink : uint8_t { kFromWorker, kFromController, kToController };
// Measure this link of the receiver (-> LinkProbed). Only for workers that speak
// kProtocolProfiles, and never while requests run.
struct ProbeLink {
  ProbeId probe;
  ProbedLink link = ProbedLink::kFromWorker;
  WorkerAddress from = {};  // the worker of kFromWorker
};
struct Leave {  // finish the running work and end the process
  std::string reason;
  bool on_notice = false;  // because the worker announced that it leaves, and for no other reason
};
// TokenTable (output_grammar.h) follows Welcome if the worker has another one. Only for workers
// that speak kProtocolGrammars.
using ToWorker = std::variant<Welcome, Refused, LoadShard, UnloadShard, OpenPipeline, ClosePipeline,
                              PipelineStep, ExportKv, ReleaseKv, PullKv, Leave, ReturnBlocks,
                              ProbeLink, TokenTable>;

}  // namespace millrace
