// KvPulls: the pulls that carry KV from one pipeline to another. Every transfer of KV uses them: a
// hand-over, a round of a migration, and the recovery of what a lost pipeline has left.
//
// One KvPull of a scheduler becomes one PullKv per rank of each destination hop. If every layer has
// its KV, a hop pulls from all hops that hold its layers at once. Otherwise it pulls from each of
// them separately, because each may fail alone, and the layers behind a gap need the activations
// that enter them. The export that the pulls read lasts until the last of them has ended.
//
// Owned by the controller, which tells schedulers what has arrived. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/control/parts/outbox.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

// What pulls have fetched or will fetch: the layers that have KV, and the layers whose entering
// activations are cached.
struct FetchedLayers {
  std::vector<bool> has_kv;
  std::set<int> activations;

  bool HasAllKv() const;
  // Keeps only what `other` has too.
  void KeepCommon(const FetchedLayers& other);
  // The layers to compute: from the first to the last that lacks KV. The activations that enter the
  // first of them must be available. Otherwise the range begins earlier, at worst with layer 0.
  LayerRange Lacking() const;
};

struct KvPullsOptions {
  int num_layers = 0;
  Duration lease;       // of an export, unless it is renewed
  uint64_t secret = 0;  // random; for the nonces of KV handles
};

class KvPulls {
 public:
  // KV of one sequence.
  struct Source {
    PipelineId pipeline;
    std::vector<PipelineHop> hops;      // the hops that may still be readable
    std::optional<LayerRange> lacking;  // layers that do not have all of the KV
    std::vector<BlockIndex> blocks;
    int tokens = 0;
  };
  struct How {
    bool background = false;
    // How to pull the activations that leave a destination hop.
    PulledActivations activations = PulledActivations::kAny;
    // A hop of the source may be gone: pulls all activations, and from each hop separately.
    bool doubtful = false;
  };
  // What one rank of the destination has pulled.
  struct Arrived {
    LayerRange layers;
    int64_t bytes = 0;
    double seconds = 0;
  };
  struct Ended {
    PipelineId from, to;
    sched::KvPull pull;
    FetchedLayers layers;
    bool at_once = false;  // each hop pulled from all hops of the source at once
    std::vector<Arrived> arrived;
  };

  // `ids` and `outbox` outlive this object.
  KvPulls(KvPullsOptions options, IdSource& ids, Outbox& outbox)
      : options_(options), ids_(ids), outbox_(outbox) {}

  // Exports the source's KV and pulls it into the pipeline `to`, which has these hops. False: no
  // hop of the source has KV of these layers, so nothing was begun.
  bool Start(const Source& source, PipelineId to, const std::vector<PipelineHop>& hops,
             const sched::KvPull& pull, How how);
  // The worker that was told to pull. nullopt: nobody is.
  std::optional<WorkerId> PullerOf(TransferId transfer) const;
  // One PullKv has ended. Returns the pull it belongs to if it was the last one of it. REQUIRES:
  // it has a puller.
  std::optional<Ended> Done(const PullDone& done);

  bool idle() const { return pulls_.empty(); }
  bool Reads(RequestId id, PipelineId from) const;
  // Renews the exports that the request's pulls read.
  void Renew(RequestId id, PipelineId from);
  // Ends them early: the KV is not needed, or no longer intact. The pulls still end with Done.
  void Release(RequestId id, PipelineId from);
  // The pipeline is closed: its pulls do not end with Done.
  void DropInto(PipelineId to);

 private:
  struct Part {
    WorkerId puller;
    LayerRange layers;
    bool activations = false;  // this rank needs the activations that leave the layers
  };
  struct Pull {
    PipelineId to;
    sched::KvPull pull;
    std::vector<PipelineHop> source;
    ExportKv exported;
    How how;
    bool at_once = false;
    bool released = false;
    std::map<TransferId, Part> due;
    FetchedLayers layers;
    std::vector<Arrived> arrived;
    // By the layer that activations enter: how many ranks still lack them.
    std::map<int, int> activations_due;

    bool Reads(RequestId id, PipelineId from) const {
      return !released && pull.id == id && exported.handle.pipeline == from;
    }
  };
  KvHandle NewHandle(PipelineId pipeline);
  void SendParts(uint64_t id, Pull& pull, const PipelineHop& hop, LayerRange layers,
                 const std::vector<KvSource>& sources);
  PulledActivations ActivationsOf(const Pull& pull, int layer, bool leave_hop) const;
  void Export(const Pull& pull);
  void Release(Pull& pull);

  const KvPullsOptions options_;
  IdSource& ids_;
  Outbox& outbox_;
  std::map<uint64_t, Pull> pulls_;
  std::unordered_map<TransferId, uint64_t> transfers_;
};

}  // namespace millrace::cluster
