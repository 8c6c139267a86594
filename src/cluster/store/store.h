// Store: the small, consistent state of a cluster: its members, its leader and its plan. It has
// keys and values with revisions, compare-and-set, leases that delete their keys when they end, and
// watches. Two stores implement this contract and pass one suite (store_conformance_test.cc):
// sqlite_store.h, embedded in one controller, and etcd_store.h.
//
// Revisions grow by one with every change of the whole store and are never used twice, even after a
// crash. Keys are relative to the cluster's prefix; keys outside it are neither seen nor changed.
//
// Any thread may call it. Every call ends within its timeout. A call that ends with
// kDeadlineExceeded or kUnavailable may have taken effect; one that ends with another error has
// not.
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
  Revision created;   // of the write that created the key
  Revision modified;  // of its last write
  std::optional<LeaseId> lease;
};

struct Listing {
  Revision revision;              // `entries` are the complete state as of this revision
  std::vector<KeyValue> entries;  // by key
};

// A write with a fence succeeds only while `key` exists and was created at revision `created`.
struct Fence {
  std::string key;
  Revision created;
};

struct WriteOptions {
  std::optional<LeaseId> lease;  // the key is deleted when the lease ends
  std::optional<Fence> fence;
  Duration timeout = kStoreTimeout;
};

struct Lease {
  LeaseId id;
  Duration ttl;  // at least the requested time: a store may have a minimum
};

struct WatchEvent {
  enum class Kind { kPut, kDelete };
  Kind kind = Kind::kPut;
  KeyValue entry;  // for a deletion: only the key, and `modified` as the revision of the deletion
};

// An update of a watch. A watch delivers a snapshot first, then the changes after it in order, each
// exactly once. If the store no longer has the changes after the last delivered one (it compacted
// its history while the connection was down, or the watcher was too slow), the watch delivers a new
// snapshot with kDataLoss.
struct WatchUpdate {
  Status status;
  std::optional<Listing> snapshot;  // replaces everything delivered before
  std::vector<WatchEvent> events;
};

// A running watch. Destroying it ends the watch, and waits for a running callback to return. It
// must not be destroyed from its own callback.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  // Runs on a thread of the store, one call at a time per watch. It may call the store.
  using WatchCallback = std::function<void(const WatchUpdate&)>;

  virtual ~Store() = default;

  // nullopt: the key does not exist.
  virtual Result<std::optional<KeyValue>> Get(std::string_view key,
                                              Duration timeout = kStoreTimeout) = 0;
  // The keys that begin with `prefix` (empty: all keys), as of one revision. kTooLarge: more than
  // kStoreListKeysMax keys.
  virtual Result<Listing> List(std::string_view prefix, Duration timeout = kStoreTimeout) = 0;

  // Writes return the revision of the change. kInvalidArgument: a key or value beyond the limits.
  // kNotFound: the lease has ended. kFailedPrecondition: the fence does not hold.
  virtual Result<Revision> Put(std::string_view key, std::string_view value,
                               const WriteOptions& options = {}) = 0;
  // Writes only if the key was last written at `expected`, or (nullopt) does not exist.
  // kFailedPrecondition: neither is the case.
  virtual Result<Revision> CompareAndPut(std::string_view key, std::optional<Revision> expected,
                                         std::string_view value,
                                         const WriteOptions& options = {}) = 0;
  // Deleting a key that does not exist succeeds and returns the store's current revision.
  virtual Result<Revision> Delete(std::string_view key, const WriteOptions& options = {}) = 0;

  virtual Result<Lease> Grant(Duration ttl, Duration timeout = kStoreTimeout) = 0;
  // Restarts the lease's time and returns the time it now has. kNotFound: the lease has ended.
  virtual Result<Duration> KeepAlive(LeaseId lease, Duration timeout = kStoreTimeout) = 0;
  // Ends the lease now and deletes its keys. kNotFound: the lease had already ended.
  virtual Status Revoke(LeaseId lease, Duration timeout = kStoreTimeout) = 0;

  // Returns at once; the snapshot comes when the store can be reached. The watch must be destroyed
  // before the store.
  virtual std::unique_ptr<Watch> WatchPrefix(std::string_view prefix, WatchCallback callback) = 0;
};

// Checks of arguments that every store makes before it does anything.
Status CheckStoreKey(std::string_view key);
Status CheckStoreValue(std::string_view value);
Status CheckLeaseTtl(Duration ttl);
// A cluster's name has 1 to 64 letters, digits, '-', '_' and '.'. It becomes part of every key.
Status CheckClusterName(std::string_view name);

// The first key after all keys that begin with `prefix`; empty: no key comes after them.
std::string PrefixEnd(std::string prefix);

}  // namespace millrace::cluster
