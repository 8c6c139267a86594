// KvExchange: a worker's side of KV transfers. It serves the KV that the controller has exported,
// and runs the pulls that the controller orders. The controller owns the blocks and keeps them
// pinned; the exchange only reads and writes them. KvExports tracks what may be read, KvPull runs a
// pull.
//
// A pull names a pipeline, an unguessable handle and an item of at most kPullChunkBytes. KV that is
// not exported, no longer exported or not exported that far is not served. Pulls run outside the
// path of steps, in order, on two threads: one for pulls that a request waits for, and one for
// background pulls. KV that the worker itself holds is copied. Other workers are reached through a
// link: a data plane (kv_plane.h) or, within a process, the other exchange.
//
// Owned by the worker; any thread may call it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/transfer/kv_exports.h"
#include "cluster/transfer/kv_pull.h"
#include "cluster/transfer/pull_buffers.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

class PullAnswers;

struct KvExchangeCounters {
  KvExportsCounters exports;
  uint64_t exposed = 0;  // current exports
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // unknown, released, expired, out of range
  uint64_t pulled = 0, pulled_bytes = 0, failed = 0;
  uint64_t copied_bytes = 0;  // copied on this worker; not in pulled_bytes
};

// How an exchange reaches those of other workers.
struct KvLink {
  KvReader self;
  // Asks the source for an item. `done` is called once, on any thread, with the number of bytes
  // written to `to`, which lives until then.
  std::function<void(const KvSource& source, const stage::TransferItem& item,
                     std::span<std::byte> to, std::function<void(Status, uint64_t)> done)>
      ask;
};

class KvExchange {
 public:
  explicit KvExchange(const Clock& clock, const KvPullLimits& limits = {})
      : clock_(clock), limits_(limits), buffers_(limits.chunk_bytes, limits.in_flight + 1) {}
  void Use(KvLink link) { link_ = std::move(link); }  // call before any pull

  void Export(LayerRange layers, std::shared_ptr<stage::Stage> stage, const ExportKv& kv);
  void Release(const KvHandle& handle);
  void PipelineClosed(PipelineId pipeline);

  // Reads an exported item for another worker into room for as many bytes. Fails if the owner takes
  // the KV back meanwhile. kNotFound: as KvExports::BeginPull.
  using RoomFor = std::function<std::span<std::byte>(size_t bytes)>;
  Status Serve(const KvHandle& handle, const stage::TransferItem& item, const RoomFor& room);

  // Pulls into the blocks of `pull`; `done` is called once, on one of the exchange's threads.
  void Pull(LayerRange layers, std::shared_ptr<stage::Stage> stage, const PullKv& pull,
            std::function<void(PullDone)> done);

  KvExchangeCounters counters();

 private:
  Status Read(const KvHandle& handle, const stage::TransferItem& item, const RoomFor& room);
  PullDone Run(KvPull pull);
  void Ask(const KvAsk& ask, const std::shared_ptr<PullAnswers>& answers);

  const Clock& clock_;
  const KvPullLimits limits_;
  KvLink link_;
  Mutex mutex_;
  KvExports exports_ MR_GUARDED_BY(mutex_);
  KvExchangeCounters counters_ MR_GUARDED_BY(mutex_);
  PullBuffers buffers_;  // as many as are in flight on both threads
  Mailbox puller_, background_puller_;
};

}  // namespace millrace::cluster
