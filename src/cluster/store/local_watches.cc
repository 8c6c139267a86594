#include "cluster/store/local_watches.h"

#include <algorithm>
#include <thread>

namespace millrace::cluster {
namespace {

constexpr auto kListRetry = std::chrono::milliseconds(50);

}  // namespace

class LocalWatches::LocalWatch : public Watch {
 public:
  LocalWatch(LocalWatches& all, std::string prefix, Store::WatchCallback callback)
      : all_(all), prefix_(std::move(prefix)), callback_(std::move(callback)) {}

  ~LocalWatch() override {
    all_.Remove(this);
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  void Publish(const std::vector<WatchEvent>& events) {
    MutexLock lock(mutex_);
    for (const WatchEvent& event : events) {
      if (!event.entry.key.starts_with(prefix_)) continue;
      if (pending_.size() >= kWatchBacklogMax) {
        pending_.clear();
        overflowed_ = true;
      }
      pending_.push_back(event);
    }
    changed_.notify_all();
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      if (!listed_ || overflowed_) {
        DeliverSnapshot(lock);
      } else if (!pending_.empty()) {
        WatchUpdate update;
        update.events.swap(pending_);
        lock.unlock();
        callback_(update);
        lock.lock();
      } else {
        changed_.wait(lock);
      }
    }
  }

  // Events published from here on are queued. Those that the snapshot includes are removed from the
  // queue afterwards.
  void DeliverSnapshot(MutexLock& lock) MR_REQUIRES(mutex_) {
    const bool lost = overflowed_;
    overflowed_ = false;
    mutex_.unlock();
    Result<Listing> listing = all_.list_(prefix_);
    if (!listing.ok()) {
      mutex_.lock();
      overflowed_ = overflowed_ || lost;
      changed_.wait_for(lock, kListRetry, [this]() MR_REQUIRES(mutex_) { return stopping_; });
      return;
    }
    WatchUpdate update;
    if (lost) update.status = DataLoss("the watch fell behind; this is a new snapshot");
    const Revision seen = listing->revision;
    update.snapshot = std::move(*listing);
    callback_(update);
    mutex_.lock();
    listed_ = true;
    std::erase_if(pending_, [seen](const WatchEvent& e) { return e.entry.modified <= seen; });
  }

  LocalWatches& all_;
  const std::string prefix_;
  const Store::WatchCallback callback_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<WatchEvent> pending_ MR_GUARDED_BY(mutex_);
  bool overflowed_ MR_GUARDED_BY(mutex_) = false;
  bool listed_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

LocalWatches::~LocalWatches() { MR_CHECK(watches_.empty()) << "a watch outlives its store"; }

std::unique_ptr<Watch> LocalWatches::Add(std::string prefix, Store::WatchCallback callback) {
  auto watch = std::make_unique<LocalWatch>(*this, std::move(prefix), std::move(callback));
  {
    MutexLock lock(mutex_);
    MR_CHECK(watches_.size() < kWatchesMax)
        << "too many watches: only the program itself makes them";
    watches_.push_back(watch.get());
  }
  watch->Start();
  return watch;
}

void LocalWatches::Publish(const std::vector<WatchEvent>& events) {
  MutexLock lock(mutex_);
  for (LocalWatch* watch : watches_) watch->Publish(events);
}

void LocalWatches::Remove(LocalWatch* watch) {
  MutexLock lock(mutex_);
  std::erase(watches_, watch);
}

}  // namespace millrace::cluster
