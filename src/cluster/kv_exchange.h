// KvExchange: a worker's side of KV transfers: serves what the controller has exposed, pulls what
// it orders, over the data plane. The controller owns the blocks and keeps them pinned; here they
// are read and written only, and KvExports keeps the account of who may read.
//
// A pull names a pipeline, a handle that nobody can guess and a box of at most kPullChunkBytes; the
// data plane verifies each chunk's checksum. What is not exposed, not any more, or not so far, is
// not served. Pulls are carried out off the path of steps, in order, on two threads: one for those
// that a request stands still for, one for those in the background.
//
// What a worker holds itself it copies.
//
// Any thread may call it. Owned by the worker process; the data plane is handed in after creation
// because it serves pulls through this.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/kv_exports.h"
#include "cluster/kv_rectangles.h"
#include "cluster/kv_request.h"
#include "cluster/mailbox.h"
#include "cluster/staging_pool.h"
#include "core/worker_messages.h"
#include "engine/stage.h"
#include "net/data_plane.h"

namespace millrace::cluster {

struct KvExchangeCounters {
  KvExportsCounters exports;
  uint64_t exposed = 0;  // now
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // unknown, released, expired, out of range, garbage
  uint64_t pulled = 0, pulled_bytes = 0, failed = 0;
  uint64_t copied_bytes = 0;  // pulled from itself, beside pulled_bytes: no wire
};

class KvExchange {
 public:
  explicit KvExchange(const Clock& clock) : clock_(clock) {}
  void Use(net::DataPlane* plane) { plane_ = plane; }  // before any pull, either way

  void Export(LayerRange layers, std::shared_ptr<engine::Stage> stage, const ExportKv& kv);
  void Release(const KvHandle& handle);
  void PipelineClosed(PipelineId pipeline);

  // For net::DataPlaneEvents::on_pull.
  Result<net::PullSource> Serve(std::span<const std::byte> request);

  // Pulls into the blocks of `pull`; `done` is called once, on one of the exchange's threads.
  void Pull(LayerRange layers, std::shared_ptr<engine::Stage> stage, const PullKv& pull,
            std::function<void(PullDone)> done);

  KvExchangeCounters counters();

 private:
  using RoomFor = std::function<std::span<std::byte>(size_t bytes)>;
  Status Read(const KvHandle& handle, const engine::KvBox& box, const RoomFor& room);
  Result<net::PullSource> ServeBox(const KvHandle& handle, const engine::KvBox& box);
  bool IsHere(const KvSource& source) const;
  Result<std::vector<KvPiece>> PiecesFor(LayerRange layers, const engine::Stage& stage,
                                         const PullKv& pull) const;
  Status PullPieces(engine::Stage& stage, const PullKv& pull, const std::vector<KvPiece>& pieces,
                    int64_t& bytes);
  Status CopyHere(engine::Stage& stage, const PullKv& pull, const KvPiece& piece);
  void PullRows(LayerRange layers, engine::Stage& stage, const PullKv& pull, int64_t& bytes);
  bool MayComeYet(const Status& status, Time patience) const;

  const Clock& clock_;
  net::DataPlane* plane_ = nullptr;
  mutable Mutex mutex_;
  KvExports exports_ MR_GUARDED_BY(mutex_);
  KvExchangeCounters counters_ MR_GUARDED_BY(mutex_);
  StagingPool staging_{kPullChunkBytes};
  Mailbox puller_, background_puller_;
};

}  // namespace millrace::cluster
