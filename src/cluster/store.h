// Store: the small, consistent state of a cluster: who is a member, who leads, which plan holds.
// Keys and values with revisions, compare-and-set, leases that delete their keys when they end, and
// watches. Two stores keep this contract, shown by one suite (store_conformance_test.cc):
// sqlite_store.h, embedded in one controller, and etcd_store.h.
//
// Revisions grow by one with every change of the whole store and are never used twice, not after a
// crash either. Keys are relative to the cluster's prefix; nothing else is seen or touched.
//
// Any thread may call. Every call ends within its timeout. A call that ends with kDeadlineExceeded
// or kUnavailable may or may not have happened; one that ends with another error has not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"

namespace millrace::cluster {

using Revision = StrongId<struct RevisionTag, int64_t>;
using LeaseId = StrongId<struct LeaseIdTag, int64_t>;

inline constexpr size_t kStoreKeyBytesMax = 512;         // without the cluster's prefix
inline constexpr size_t kStoreValueBytesMax = 1u << 20;  // etcd takes 1.5 MiB per request
inline constexpr size_t kStoreListKeysMax = 65536;
inline constexpr Duration kStoreTimeout = Duration::Seconds(5);
inline constexpr Duration kLeaseTtlMax = Duration::Seconds(3600);

struct KeyValue {
  std::string key;
  std::string value;
  Revision created;   // when the key last came into being
  Revision modified;  // when it was last written
  std::optional<LeaseId> lease;
};

struct Listing {
  Revision revision;              // what `entries` shows, whole
  std::vector<KeyValue> entries;  // by key
};

// A write with a fence happens only while `key` exists and is the very one created then.
struct Fence {
  std::string key;
  Revision created;
};

struct WriteOptions {
  std::optional<LeaseId> lease;  // the key goes when the lease ends
  std::optional<Fence> fence;
  Duration timeout = kStoreTimeout;
};

struct Lease {
  LeaseId id;
  Duration ttl;  // at least what was asked for: a store may have a floor
};

struct WatchEvent {
  enum class Kind { kPut, kDelete };
  Kind kind = Kind::kPut;
  KeyValue entry;  // of a deletion: the key, and in `modified` when it went
};

// What a watch tells: first a snapshot, then changes after it in order, each exactly once. When the
// store no longer has what came after the last told change (it compacted its history while the
// connection was down, or the watcher was too slow), a new snapshot comes with kDataLoss.
struct WatchUpdate {
  Status status;
  std::optional<Listing> snapshot;  // replaces all that was known
  std::vector<WatchEvent> events;
};

// Ends the watch when destroyed, after a callback under way has returned. Not to be destroyed from
// its own callback.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  // On a thread of the store, one call at a time per watch; may call the store.
  using WatchCallback = std::function<void(const WatchUpdate&)>;

  virtual ~Store() = default;

  // nullopt: no such key.
  virtual Result<std::optional<KeyValue>> Get(std::string_view key,
                                              Duration timeout = kStoreTimeout) = 0;
  // The keys that begin with `prefix` (empty: all), as of one revision. kTooLarge beyond
  // kStoreListKeysMax.
  virtual Result<Listing> List(std::string_view prefix, Duration timeout = kStoreTimeout) = 0;

  // All writes: kInvalidArgument for a key or value beyond the limits, kNotFound for a lease that
  // has ended, kFailedPrecondition when the fence does not hold. They return the change's revision.
  virtual Result<Revision> Put(std::string_view key, std::string_view value,
                               const WriteOptions& options = {}) = 0;
  // Only where the key was last written at `expected`, or (nullopt) does not exist; else
  // kFailedPrecondition.
  virtual Result<Revision> CompareAndPut(std::string_view key, std::optional<Revision> expected,
                                         std::string_view value,
                                         const WriteOptions& options = {}) = 0;
  // Deleting what is not there is ok: the store's revision as it is.
  virtual Result<Revision> Delete(std::string_view key, const WriteOptions& options = {}) = 0;

  virtual Result<Lease> Grant(Duration ttl, Duration timeout = kStoreTimeout) = 0;
  // Starts the lease's time anew; the time it now has. kNotFound when it has ended.
  virtual Result<Duration> KeepAlive(LeaseId lease, Duration timeout = kStoreTimeout) = 0;
  // Ends it now and deletes its keys. kNotFound when it had ended.
  virtual Status Revoke(LeaseId lease, Duration timeout = kStoreTimeout) = 0;

  // At once; the snapshot comes when the store can be reached. Must be destroyed before the store.
  virtual std::unique_ptr<Watch> WatchPrefix(std::string_view prefix, WatchCallback callback) = 0;
};

// What every store refuses before it does anything.
Status CheckStoreKey(std::string_view key);
Status CheckStoreValue(std::string_view value);
Status CheckLeaseTtl(Duration ttl);
// 1 to 64 letters, digits, '-', '_' and '.'; it becomes part of every key.
Status CheckClusterName(std::string_view name);

// The first key after all that begin with `prefix`; empty: there is no end.
std::string PrefixEnd(std::string prefix);

}  // namespace millrace::cluster
