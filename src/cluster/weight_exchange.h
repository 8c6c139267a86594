// WeightExchange: weights from worker to worker, by the same pulls as KV: a worker that lacks a
// model's files copies what its layers need from workers that have them, and passes on what it has.
//
// A pull names a range of one of the files in a list (model/weight_store.h), and the digest of how
// they are laid out; so it can reach nothing but weights, and only those of the same files. Each
// part is asked of the first source that lives and has it. The data plane verifies each chunk's
// checksum; who may ask at all is for the cluster's token and certificates to say.
//
// Copies lie in a folder of the worker's own, are made anew in every life and removed with it.
// Serve: any thread. The rest: the loading thread; Offer and Use before it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/folder_lock.h"
#include "core/worker_messages.h"
#include "model/weight_store.h"
#include "net/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kWeightPartBytes = size_t{1} << 20;
inline constexpr size_t kWeightListBytesMax = size_t{2} << 20;
inline constexpr size_t kWeightSourcesMax = 16;  // tried for one load

struct WeightCounters {
  uint64_t served = 0, served_bytes = 0;
  uint64_t refused = 0;  // other files, beyond them, not here, garbage
  uint64_t pulled_bytes = 0;
  uint64_t sources_failed = 0;
};

class WeightExchange {
 public:
  // `copies`: where they lie, and those of other processes beside them.
  WeightExchange(std::string copies, const Clock& clock)
      : copies_(std::move(copies)), clock_(clock) {}
  ~WeightExchange();
  void Use(net::DataPlane* plane) { plane_ = plane; }

  // Weights that are here whole.
  Status Offer(std::shared_ptr<model::WeightStore> store, const std::string& fingerprint);

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
    std::string fingerprint, layout;
  };
  struct Source {
    net::PeerAddress address;
    Status failed;
  };
  Result<net::PullSource> ServeAny(std::span<const std::byte> request) const;
  Status AskForLists(std::vector<Source>& sources, const Progress& progress);
  Status TakeList(std::span<const std::byte> text);
  Status MakeCopy(std::vector<model::WeightFile> files);
  Status FetchHeads(std::vector<Source>& sources, const Progress& progress);
  Status FetchRanges(std::vector<Source>& sources, std::vector<model::WeightRange> ranges,
                     const Progress& progress);
  Status FetchLayers(const LoadShard& load, std::vector<Source>& sources, const Progress& progress);
  void Fail(Source& source, const Status& why);

  const std::string copies_;
  const Clock& clock_;
  net::DataPlane* plane_ = nullptr;
  std::optional<FolderLock> lock_;  // of the copy's folder
  std::string copy_folder_;
  Held copy_;           // the loading thread's
  bool heads_ = false;  // of the copy are here, and what the list promised

  mutable std::mutex mutex_;
  std::vector<Held> held_;  // that others may have; guarded by mutex_, as below
  WeightCounters counters_;
};

}  // namespace millrace::cluster
