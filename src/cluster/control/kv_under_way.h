// What the controller records of KV in transit between pipelines: migrations (Move), recoverable KV
// of lost pipelines, and the pulls of both. Plain values, owned by the controller and private to
// its files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

// What pulls of recoverable KV have fetched or will fetch: the layers that have KV, and the layers
// whose entering activations are cached.
struct FetchedLayers {
  std::vector<bool> has_kv;
  std::set<int> activations;

  // Keeps only what `other` has too.
  void KeepCommon(const FetchedLayers& other);
  // The layers to compute: from the first to the last that lacks KV. The activations that enter the
  // first of them must be available. Otherwise the range begins earlier, at worst with layer 0.
  LayerRange Lacking() const;
};

// KV of a request's sequences in a pipeline that no longer runs it.
struct RecoverableKv {
  PipelineId pipeline;
  std::vector<sched::SequenceKv> kv;          // by sequence, in that pipeline
  std::optional<LayerRange> lacking;          // layers that do not have all of the KV
  std::vector<BlockIndex> held;               // blocks held by a pipeline that is still open
  std::optional<FetchedLayers> fetched = {};  // by all ended pulls into the last pipeline
  Time renew_at = {};                         // the lease of the held blocks
};

// The hops of a lost pipeline that survived it, kept for its waiters.
struct SurvivingStages {
  std::vector<PipelineHop> hops;
  Time until;
};

// A migration: a request that changes pipelines with its KV.
struct Move {
  enum class Phase : uint8_t { kCopying, kPausing, kTail };
  PipelineId from, to;
  Phase phase = Phase::kCopying;
  KvHandle handle;
  std::optional<ExportKv> exported = {};  // the last message to the source's workers
  Time renew_at = {};                     // the source's leases
  int rounds = 0;
  bool complete = true;            // all KV so far has arrived intact
  std::optional<Time> held_until;  // once the source only holds the KV
  int held_tokens = 0;             // tokens in the held KV
  std::optional<int> first_token;  // of the first pull
  int preemptions = 0;             // at the source, when the round began
  int64_t imported = 0;            // tokens that the destination was last asked to import
  int64_t resumed = 0;             // output tokens known to the destination
};

// One PullKv of recoverable KV.
struct Fetch {
  LayerRange layers;
  bool activations = false;  // this rank needs the activations that leave the layers
};

// One KvPull of a scheduler. It consists of one PullKv per rank and hop.
struct PullJob {
  PipelineId to;
  sched::KvPull pull;
  int due = 0;
  bool complete = true;
  std::set<TransferId> transfers;
  // For recoverable KV. Each PullKv is for layers that one hop holds on both sides, and may fail
  // alone.
  std::optional<KvHandle> left = {};
  ExportKv exported = {};  // by the surviving hops
  Time renew_at = {};
  bool doubtful = false;  // a listed hop may be gone, so pull activations too
  std::map<TransferId, Fetch> fetches = {};
  FetchedLayers layers = {};
  // By the layer that activations enter: how many ranks still lack them.
  std::map<int, int> activations_due = {};
};

}  // namespace millrace::cluster
