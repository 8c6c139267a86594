// KvExchange: a worker's side of KV transfers over the data plane. It serves the KV that the
// controller has exported, and pulls the KV that the controller orders. The controller owns the
// blocks and keeps them pinned; the exchange only reads and writes them. KvExports tracks what may
// be read.
//
// A pull names a pipeline, an unguessable handle and a box of at most kPullChunkBytes. The data
// plane verifies each chunk's checksum. KV that is not exported, no longer exported or not exported
// that far is not served. Pulls run outside the path of steps, in order, on two threads: one for
// pulls that a request waits for, and one for background pulls. KV that the worker itself holds is
// copied.
//
// Owned by the worker process; any thread may call it. The data plane is set after creation,
// because it serves pulls through this object.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/transfer/kv_exports.h"
#include "cluster/transfer/kv_rectangles.h"
#include "cluster/transfer/pull_messages.h"
#include "cluster/transfer/staging_pool.h"
#include "core/worker_messages.h"
#include "net/data_plane.h"
#include "stage/stage.h"

namespace millrace::cluster {

struct KvExchangeCounters {
  KvExportsCounters exports;
  uint64_t exposed = 0;  // current exports
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // unknown, released, expired, out of range
  uint64_t pulled = 0, pulled_bytes = 0, failed = 0;
  uint64_t copied_bytes = 0;  // copied on this worker; not in pulled_bytes
};

class KvExchange {
 public:
  explicit KvExchange(const Clock& clock) : clock_(clock) {}
  void Use(net::DataPlane* plane) { plane_ = plane; }  // call before any pull or serve

  void Export(LayerRange layers, std::shared_ptr<stage::Stage> stage, const ExportKv& kv);
  void Release(const KvHandle& handle);
  void PipelineClosed(PipelineId pipeline);

  Result<net::PullSource> Serve(const KvRequest& request);

  // Pulls into the blocks of `pull`; `done` is called once, on one of the exchange's threads.
  void Pull(LayerRange layers, std::shared_ptr<stage::Stage> stage, const PullKv& pull,
            std::function<void(PullDone)> done);

  KvExchangeCounters counters();

 private:
  using RoomFor = std::function<std::span<std::byte>(size_t bytes)>;
  Status Read(const KvHandle& handle, const stage::KvBox& box, const RoomFor& room);
  Result<net::PullSource> ServeBox(const KvHandle& handle, const stage::KvBox& box);
  bool IsLocal(const KvSource& source) const;
  Result<std::vector<KvPiece>> PiecesFor(LayerRange layers, const stage::Stage& stage,
                                         const PullKv& pull) const;
  Status PullPieces(stage::Stage& stage, const PullKv& pull, const std::vector<KvPiece>& pieces,
                    int64_t& bytes);
  Status CopyLocal(stage::Stage& stage, const PullKv& pull, const KvPiece& piece);
  void PullActivations(LayerRange layers, stage::Stage& stage, const PullKv& pull, int64_t& bytes);
  bool MayBeExportedSoon(const Status& status, Time deadline) const;

  const Clock& clock_;
  net::DataPlane* plane_ = nullptr;
  mutable Mutex mutex_;
  KvExports exports_ MR_GUARDED_BY(mutex_);
  KvExchangeCounters counters_ MR_GUARDED_BY(mutex_);
  StagingPool staging_{kPullChunkBytes};
  Mailbox puller_, background_puller_;
};

}  // namespace millrace::cluster
