#include "cluster/store/sqlite_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>

#include "base/folder_lock.h"
#include "base/mutex.h"
#include "base/private_file.h"
#include "cluster/store/local_watches.h"
#include "cluster/store/sqlite_tables.h"
#include "cluster/store/timed_mutex.h"

namespace millrace::cluster {
namespace {

constexpr int kBusyTimeoutMs = 2000;  // another program may be reading the file
constexpr Duration kExpiryRetry = Duration::Millis(100);

class SqliteStore : public Store {
 public:
  SqliteStore(FolderLock lock, SqliteTables tables, std::string prefix, const Clock& clock)
      : folder_lock_(std::move(lock)),
        tables_(std::move(tables)),
        prefix_(std::move(prefix)),
        clock_(clock),
        watches_([this](const std::string& prefix) { return List(prefix, kStoreTimeout); }) {}

  // Loads the leases that were alive when the store was last open, and starts to expire leases.
  Status Begin() {
    const TimedMutexLock lock(mutex_);
    MR_ASSIGN_OR_RETURN(const auto leases, tables_.Leases());
    for (const Lease& lease : leases) {
      leases_[lease.id] = {lease.ttl, clock_.Now() + lease.ttl};
    }
    expiry_ = std::thread([this] { ExpireLeases(); });
    return OkStatus();
  }

  ~SqliteStore() override {
    {
      const TimedMutexLock lock(mutex_);
      stopping_ = true;
    }
    leases_changed_.notify_all();
    if (expiry_.joinable()) expiry_.join();
  }

  Result<std::optional<KeyValue>> Get(std::string_view key, Duration timeout) override {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    return Locked(timeout, [&]() MR_REQUIRES(mutex_) -> Result<std::optional<KeyValue>> {
      MR_ASSIGN_OR_RETURN(std::optional<KeyValue> entry, tables_.Get(Full(key)));
      if (entry) entry->key.erase(0, prefix_.size());
      return entry;
    });
  }

  Result<Listing> List(std::string_view prefix, Duration timeout) override {
    return Locked(timeout, [&]() MR_REQUIRES(mutex_) -> Result<Listing> {
      MR_ASSIGN_OR_RETURN(Listing listing, tables_.List(Full(prefix)));
      for (KeyValue& entry : listing.entries) entry.key.erase(0, prefix_.size());
      return listing;
    });
  }

  Result<Revision> Put(std::string_view key, std::string_view value,
                       const WriteOptions& options) override {
    return PutIf(key, {}, value, options);
  }

  Result<Revision> CompareAndPut(std::string_view key, std::optional<Revision> expected,
                                 std::string_view value, const WriteOptions& options) override {
    return PutIf(key, {.compare = true, .expected = expected}, value, options);
  }

  Result<Revision> Delete(std::string_view key, const WriteOptions& options) override {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    return Locked(options.timeout, [&]() MR_REQUIRES(mutex_) -> Result<Revision> {
      return Publish(tables_.Delete(Full(key), FullFence(options.fence)));
    });
  }

  Result<Lease> Grant(Duration ttl, Duration timeout) override {
    MR_RETURN_IF_ERROR(CheckLeaseTtl(ttl));
    return Locked(timeout, [&]() MR_REQUIRES(mutex_) -> Result<Lease> {
      MR_ASSIGN_OR_RETURN(const LeaseId id, tables_.AddLease(ttl));
      leases_[id] = {ttl, clock_.Now() + ttl};
      leases_changed_.notify_all();
      return Lease{id, ttl};
    });
  }

  Result<Duration> KeepAlive(LeaseId lease, Duration timeout) override {
    return Locked(timeout, [&]() MR_REQUIRES(mutex_) -> Result<Duration> {
      const auto found = leases_.find(lease);
      if (found == leases_.end()) return NoLease(lease);
      found->second.ends = clock_.Now() + found->second.ttl;
      return found->second.ttl;
    });
  }

  Status Revoke(LeaseId lease, Duration timeout) override {
    return Locked(timeout, [&]() MR_REQUIRES(mutex_) -> Status {
      if (!leases_.contains(lease)) return NoLease(lease);
      return End(lease);
    });
  }

  std::unique_ptr<Watch> WatchPrefix(std::string_view prefix, WatchCallback callback) override {
    return watches_.Add(std::string(prefix), std::move(callback));
  }

 private:
  struct LiveLease {
    Duration ttl;
    Time ends;
  };

  static Status NoLease(LeaseId lease) {
    return NotFound(fmt::format("lease {} has ended", lease.value()));
  }

  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }
  std::optional<Fence> FullFence(const std::optional<Fence>& fence) const {
    if (!fence) return std::nullopt;
    return Fence{Full(fence->key), fence->created};
  }

  // Runs `work` with the lock held, after ending the leases that are due.
  template <typename Work>
  auto Locked(Duration timeout, Work work) -> decltype(work()) {
    if (!mutex_.try_lock_for(std::chrono::nanoseconds(timeout.ns))) {
      return Status(StatusCode::kDeadlineExceeded,
                    "the store was busy for the whole time limit of the call");
    }
    const TimedMutexLock lock(mutex_, std::adopt_lock);
    MR_RETURN_IF_ERROR(EndDueLeases());
    return work();
  }

  Result<Revision> PutIf(std::string_view key, const Expectation& expectation,
                         std::string_view value, const WriteOptions& options) {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    MR_RETURN_IF_ERROR(CheckStoreValue(value));
    return Locked(options.timeout, [&]() MR_REQUIRES(mutex_) -> Result<Revision> {
      if (options.lease && !leases_.contains(*options.lease)) return NoLease(*options.lease);
      return Publish(
          tables_.Put(Full(key), value, options.lease, expectation, FullFence(options.fence)));
    });
  }

  // Runs under the lock, so that watchers see the changes in order.
  Result<Revision> Publish(Result<TableChange> change) MR_REQUIRES(mutex_) {
    if (!change.ok()) return change.status();
    std::erase_if(change->events,
                  [this](const WatchEvent& e) { return !e.entry.key.starts_with(prefix_); });
    for (WatchEvent& event : change->events) event.entry.key.erase(0, prefix_.size());
    if (!change->events.empty()) watches_.Publish(change->events);
    return change->revision;
  }

  Status End(LeaseId lease) MR_REQUIRES(mutex_) {
    MR_RETURN_IF_ERROR(Publish(tables_.EndLease(lease)).status());
    leases_.erase(lease);
    return OkStatus();
  }

  Status EndDueLeases() MR_REQUIRES(mutex_) {
    const Time now = clock_.Now();
    for (auto it = leases_.begin(); it != leases_.end();) {
      const auto [id, lease] = *it++;
      if (lease.ends <= now) MR_RETURN_IF_ERROR(End(id));
    }
    return OkStatus();
  }

  void ExpireLeases() {
    TimedMutexLock lock(mutex_);
    while (!stopping_) {
      Status ended = EndDueLeases();
      Duration wait = ended.ok() ? Duration::Seconds(3600) : kExpiryRetry;
      for (const auto& [id, lease] : leases_) {
        if (ended.ok()) wait = std::min(wait, lease.ends - clock_.Now());
      }
      leases_changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(wait.ns, 0)));
    }
  }

  const FolderLock folder_lock_;
  TimedMutex mutex_;
  std::condition_variable_any leases_changed_;
  SqliteTables tables_ MR_GUARDED_BY(mutex_);
  std::map<LeaseId, LiveLease> leases_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  const std::string prefix_;
  const Clock& clock_;
  LocalWatches watches_;
  std::thread expiry_;
};

}  // namespace

Result<std::unique_ptr<Store>> OpenSqliteStore(const SqliteStoreOptions& options,
                                               const Clock& clock) {
  MR_RETURN_IF_ERROR(CheckClusterName(options.cluster));
  MR_RETURN_IF_ERROR(MakePrivateFolder(options.folder));
  MR_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(options.folder));
  MR_ASSIGN_OR_RETURN(SqliteTables tables,
                      SqliteTables::Open(options.folder + "/store.sqlite", kBusyTimeoutMs,
                                         options.survive_power_loss));
  auto store = std::make_unique<SqliteStore>(std::move(lock), std::move(tables),
                                             "/millrace/" + options.cluster + "/", clock);
  MR_RETURN_IF_ERROR(store->Begin());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace millrace::cluster
