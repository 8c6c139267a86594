// LocalWatches: the watches of a store that lives in this process. The store owns it and publishes
// each change under its own lock. Every watch has a thread that runs its callback. Any thread may
// call it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cluster/store/store.h"

namespace millrace::cluster {

// A watcher that falls this many changes behind gets a new snapshot instead.
inline constexpr size_t kWatchBacklogMax = 16384;
inline constexpr size_t kWatchesMax = 256;

class LocalWatches {
 public:
  using List = std::function<Result<Listing>(const std::string& prefix)>;

  // `list` is called on the watches' threads, never under Publish.
  explicit LocalWatches(List list) : list_(std::move(list)) {}
  ~LocalWatches();

  std::unique_ptr<Watch> Add(std::string prefix, Store::WatchCallback callback);
  // Call it in the order of the revisions.
  void Publish(const std::vector<WatchEvent>& events);

 private:
  class LocalWatch;
  void Remove(LocalWatch* watch);

  const List list_;
  Mutex mutex_;
  std::vector<LocalWatch*> watches_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
