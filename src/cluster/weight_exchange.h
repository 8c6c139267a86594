// WeightExchange: weights from worker to worker, by the same pulls as KV: a worker that lacks a
// model's files copies what its layers need from workers that have them, and passes on what it has.
//
// A pull names a range of one of the files in a list (weight_messages.h), and the digest of how
// they are laid out; so it can reach nothing but weights, and only those of the same files. Each
// part is asked of the first source that lives and has it. Who may ask at all is for the cluster's
// token and certificates to say.
//
// No source is believed. Configuration, headers and digests (model/weight_digests.h) must add up to
// the fingerprint of the model that is wanted, and every chunk must have its digest before it is
// written. A source whose bytes are others is asked nothing more as long as it lives.
//
// Copies lie in a folder of the worker's own, are made anew in every life and removed with it.
// Serve: any thread. The rest: the loading thread; Offer and Use before it runs.
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
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/folder_lock.h"
#include "cluster/weight_messages.h"
#include "core/worker_messages.h"
#include "model/weight_digests.h"
#include "model/weight_store.h"
#include "net/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kWeightSourcesMax = 16;        // tried for one load
inline constexpr size_t kWeightSourcesAsideMax = 256;  // remembered; the oldest is forgotten

struct WeightCounters {
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // other files, beyond them, not here, garbage
  uint64_t pulled_bytes = 0;
  uint64_t sources_failed = 0;
  uint64_t sources_untrue = 0;  // of these: with bytes that are not those of the model
};

class WeightExchange {
 public:
  // `copies`: where they lie, and those of other processes beside them.
  WeightExchange(std::string copies, const Clock& clock)
      : copies_(std::move(copies)), clock_(clock) {}
  ~WeightExchange();
  void Use(net::DataPlane* plane) { plane_ = plane; }

  // Weights that are here whole.
  Status Offer(std::shared_ptr<model::WeightStore> store,
               std::shared_ptr<const model::WeightDigests> digests);

  // False is not wanted any more. Bytes.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  // A folder that has what the load reads. kUnavailable: no source could give it, with the reasons.
  // kCancelled: not wanted. kResourceExhausted, kFailedPrecondition: the copy cannot be kept.
  Result<std::string> Fetch(const LoadShard& load, const Progress& progress);
  // Of the model whose weights have been fetched; empty before.
  std::string fetched_fingerprint() const;

  static bool IsRequest(std::span<const std::byte> request);
  // For net::DataPlaneEvents::on_pull.
  Result<net::PullSource> Serve(std::span<const std::byte> request);

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
  // Of a file, by where it begins.
  struct Chunk {
    model::WeightRange range;
    size_t number = 0;  // in the digests
  };
  // A range of the copy that is pulled at once, and the chunks that it is made of.
  struct Part {
    model::WeightRange range;
    std::span<const Chunk> chunks = {};  // none: what is checked when all of it is there
  };
  Result<net::PullSource> ServeAny(std::span<const std::byte> request) const;
  std::string Wanted(const LoadShard& load) const;
  Status AskForLists(std::vector<Source>& sources, std::string wanted, const Progress& progress);
  Status TakeFolder();
  Status BeginCopy(std::vector<Source>& sources, const Progress& progress);
  Status CopyHeads(Source& source, const Progress& progress);
  Result<std::vector<std::byte>> PullDigests(Source& source, size_t bytes,
                                             const Progress& progress);
  std::vector<Part> PartsOf(const std::vector<model::WeightRange>& ranges) const;
  bool IsTrue(const Part& part, std::span<const std::byte> bytes) const;
  Status PullInto(std::span<Source> sources, const std::vector<Part>& parts,
                  const Progress& progress);
  Status FetchLayers(const LoadShard& load, std::vector<Source>& sources, const Progress& progress);
  Status CheckSpace(int64_t bytes) const;
  void Fail(Source& source, const Status& why);
  // Says why, for what has to end with it.
  Status PutAside(Source& source, const Status& why);

  const std::string copies_;
  const Clock& clock_;
  net::DataPlane* plane_ = nullptr;
  std::optional<FolderLock> lock_;  // of the copy's folder
  std::string copy_folder_;
  Held copy_;                            // the loading thread's, as what follows; with digests
  std::vector<Chunk> chunks_;            // once these add up to the fingerprint
  std::vector<net::PeerAddress> aside_;  // sources that gave other bytes

  mutable Mutex mutex_;
  std::vector<Held> held_ MR_GUARDED_BY(mutex_);  // that others may have
  WeightCounters counters_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
