// What a controller remembers of KV on its way between pipelines: of requests that move, and of
// what they left in a pipeline that was lost. Values, owned by the controller and private to its
// files.
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

// What pulls of KV that was left have brought, or will: of which layers, and which layers' entering
// activations.
struct FetchedLayers {
  std::vector<bool> has_kv;
  std::set<int> activations;

  // What this and `other` both have.
  void KeepCommon(const FetchedLayers& other);
  // The layers that must compute: from the first that lacks KV to the last. Somebody must have the
  // activations that enter the first, or they begin further up, at worst with the tokens.
  LayerRange Lacking() const;
};

// KV of a request's sequences in a pipeline that runs it no more.
struct RecoverableKv {
  PipelineId pipeline;
  std::vector<sched::SequenceKv> kv;          // by sequence: there
  std::optional<LayerRange> lacking;          // layers that do not have all of it
  std::vector<BlockIndex> held;               // by a pipeline that goes on
  std::optional<FetchedLayers> fetched = {};  // by all pulls that have ended, of the last pipeline
  Time renew_at = {};                         // the lease of what is held
};

// Of a pipeline that was lost: the hops that outlived it, for its waiters.
struct SurvivingStages {
  std::vector<PipelineHop> hops;
  Time until;
};

// A request that changes pipelines with its KV.
struct Move {
  enum class Phase : uint8_t { kCopying, kPausing, kTail };
  PipelineId from, to;
  Phase phase = Phase::kCopying;
  KvHandle handle;
  std::optional<ExportKv> exported = {};  // what the source's workers were told last
  Time renew_at = {};                     // the source's leases
  int rounds = 0;
  int arrivals_due = 0;  // KvArrived calls kept back, so that it does not run at both ends
  bool complete = true;  // so far
  std::optional<Time> held_until;  // once the source only holds the KV
  int held_tokens = 0;             // of so many tokens
  std::optional<int> first_token;  // of the first pull
  int preemptions = 0;             // at the source, when the round began
  int64_t imported = 0;            // tokens, as last asked for
  int64_t resumed = 0;             // output tokens known to the destination
};

// One PullKv of KV that was left.
struct Fetch {
  LayerRange layers;
  bool activations = false;  // this rank must have those that leave them
};

// One KvPull of a scheduler, made of one PullKv per rank and hop.
struct PullJob {
  PipelineId to;
  sched::KvPull pull;
  int due = 0;
  bool complete = true;
  std::set<TransferId> transfers;
  // Of KV that was left: layers that lie together there and here, each such part may fail alone.
  std::optional<KvHandle> left = {};
  ExportKv exported = {};  // where it was left
  Time renew_at = {};
  bool doubtful = false;  // a hop that is said to be there may be gone: activations, in case
  std::map<TransferId, Fetch> fetches = {};
  FetchedLayers layers = {};
  std::map<int, int> activations_due =
      {};  // by the layer that activations enter: ranks that lack them still
};

}  // namespace millrace::cluster
