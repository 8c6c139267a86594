// SqliteTables: the tables of the embedded store in one SQLite file: entries with revisions, and
// leases without their remaining time. Every change is one transaction. Keys include the cluster's
// prefix. Owned by the store; one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/store/sqlite_db.h"
#include "cluster/store/store.h"

namespace millrace::cluster {

struct TableChange {
  Revision revision;
  std::vector<WatchEvent> events;
};

struct Expectation {
  bool compare = false;
  std::optional<Revision> expected;  // nullopt: the key must not exist
};

class SqliteTables {
 public:
  static Result<SqliteTables> Open(const std::string& path, int busy_timeout_ms,
                                   bool survive_power_loss);

  Result<std::optional<KeyValue>> Get(std::string_view key);
  Result<Listing> List(const std::string& prefix);
  Result<TableChange> Put(const std::string& key, std::string_view value,
                          std::optional<LeaseId> lease, const Expectation& expectation,
                          const std::optional<Fence>& fence);
  Result<TableChange> Delete(const std::string& key, const std::optional<Fence>& fence);

  Result<LeaseId> AddLease(Duration ttl);
  Result<std::vector<Lease>> Leases();
  // Deletes the lease and its keys, in one revision.
  Result<TableChange> EndLease(LeaseId lease);

 private:
  explicit SqliteTables(SqliteDb db) : db_(std::move(db)) {}
  Status PrepareAll();
  Status CheckFence(const std::optional<Fence>& fence);
  Result<int64_t> ReadCounter(const char* name);
  Status WriteCounter(const char* name, int64_t value);

  SqliteDb db_;
  SqliteStatement get_, list_, put_, delete_, keys_of_lease_, add_lease_, end_lease_, leases_;
  SqliteStatement read_counter_, write_counter_;
};

}  // namespace millrace::cluster
