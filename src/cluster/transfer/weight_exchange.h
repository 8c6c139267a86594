// WeightExchange: copies weights from worker to worker, with the same pulls as KV. A worker without
// a model's files copies what its layers need from workers that have them, and serves its copy to
// others.
//
// A pull names a range of one of the files in a list (pull_messages.h) and the digest of their
// layout. So it can read nothing but weights, and only those of the same files. Each part is
// requested from the first working source that has it. The cluster's token and certificates decide
// who may pull.
//
// Sources are untrusted. Configuration, headers and digests (model/weight_digests.h) must match the
// fingerprint of the wanted model, and every chunk must match its digest before it is written. A
// source with different bytes is disabled until it restarts.
//
// The copy lies in a folder of the worker's own. It is made again in every run of the worker and
// removed with the exchange. The worker process and its loader share it. Any thread may
// call Serve. The other functions belong to the loading thread; call Offer and Use before it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/folder_lock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/transfer/pull_messages.h"
#include "core/worker_messages.h"
#include "model/weight_digests.h"
#include "model/weight_store.h"
#include "net/data/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kWeightSourcesMax = 16;     // tried for one load
inline constexpr size_t kDisabledSourcesMax = 256;  // remembered; the oldest is forgotten

struct WeightCounters {
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // requests for other files or missing ranges
  uint64_t pulled_bytes = 0;
  uint64_t sources_failed = 0;
  uint64_t sources_disabled = 0;  // those of them that were disabled
};

class WeightExchange {
 public:
  // `copies`: the folder of the copy. If another process has it, "-2" and so on is appended.
  WeightExchange(std::string copies, const Clock& clock)
      : copies_(std::move(copies)), clock_(clock) {}
  ~WeightExchange();
  void Use(net::DataPlane* plane) { plane_ = plane; }

  // Serves weights that this worker has in full.
  Status Offer(std::shared_ptr<model::WeightStore> store,
               std::shared_ptr<const model::WeightDigests> digests);

  // Called with numbers of bytes; false: the load is no longer wanted.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  // Returns a folder that contains what this load reads beside the weights that are `here`. Front
  // layers are fetched first. kUnavailable: no source could serve them; the message has the
  // reasons. kCancelled: `progress` returned false. kResourceExhausted, kFailedPrecondition: the
  // copy cannot be stored.
  Result<std::string> Fetch(const LoadShard& load, const Progress& progress,
                            const model::LoadedWeights& here = {});
  // The fingerprint of the model whose weights were fetched; empty before the first fetch.
  std::string fetched_fingerprint() const;

  Result<net::PullSource> Serve(const WeightRequest& request);

  WeightCounters counters() const;

 private:
  struct Held {
    std::shared_ptr<model::WeightStore> store;
    std::shared_ptr<const model::WeightDigests> digests;
    std::string layout;
  };
  struct Source {
    net::PeerAddress address;
    WeightList list;
    Status failed;
  };
  // The unit that has a digest.
  struct Chunk {
    model::WeightRange range;
    size_t number = 0;  // its index in the digests
  };
  // A range of the copy that one pull fetches, and the chunks that it consists of.
  struct Part {
    model::WeightRange range;
    std::span<const Chunk> chunks = {};  // none: a part of the heads, which are checked as a whole
  };
  Result<net::PullSource> ServeAny(const WeightRequest& asked) const;
  std::string Wanted(const LoadShard& load) const;
  Status AskForLists(std::vector<Source>& sources, std::string wanted, const Progress& progress);
  Status TakeFolder();
  Status BeginCopy(std::vector<Source>& sources, const Progress& progress);
  Status CopyHeads(Source& source, const Progress& progress);
  Result<std::vector<std::byte>> PullDigests(Source& source, size_t bytes,
                                             const Progress& progress);
  std::vector<Part> PartsOf(const std::vector<model::WeightRange>& ranges) const;
  bool MatchesDigests(const Part& part, std::span<const std::byte> bytes) const;
  Status PullInto(std::span<Source> sources, const std::vector<Part>& parts,
                  const Progress& progress);
  Status FetchLayers(const LoadShard& load, std::vector<Source>& sources, const Progress& progress,
                     const model::LoadedWeights& here);
  Status CheckSpace(int64_t bytes) const;
  void Fail(Source& source, const Status& why);
  // Disables the source until it restarts. Returns an error for a copy that depends on it.
  Status Disable(Source& source, const Status& why);

  const std::string copies_;
  const Clock& clock_;
  net::DataPlane* plane_ = nullptr;
  std::optional<FolderLock> lock_;  // of the copy's folder
  std::string copy_folder_;
  // The members up to mutex_ belong to the loading thread.
  Held copy_;                               // has digests once they match the fingerprint
  std::vector<Chunk> chunks_;               // by file and position
  std::vector<net::PeerAddress> disabled_;  // sources that served wrong bytes

  mutable Mutex mutex_;
  std::vector<Held> held_ MR_GUARDED_BY(mutex_);  // weights that others may pull
  WeightCounters counters_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
