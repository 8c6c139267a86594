#include "cluster/store/sqlite_tables.h"

#include <fmt/format.h>

namespace millrace::cluster {
namespace {

constexpr int64_t kFormat = 1;

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases(id INTEGER PRIMARY KEY, ttl_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entries(
  key BLOB PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL,
  lease INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_of_lease ON entries(lease) WHERE lease IS NOT NULL;
INSERT OR IGNORE INTO counters VALUES('format', 1), ('revision', 0), ('lease', 0);
)";

KeyValue ReadEntry(const SqliteStatement& row) {
  KeyValue entry{.key = row.Blob(0),
                 .value = row.Blob(1),
                 .created = Revision(row.Int(2)),
                 .modified = Revision(row.Int(3))};
  if (!row.IsNull(4)) entry.lease = LeaseId(row.Int(4));
  return entry;
}

}  // namespace

Result<SqliteTables> SqliteTables::Open(const std::string& path, int busy_timeout_ms,
                                        bool survive_power_loss) {
  MR_ASSIGN_OR_RETURN(SqliteDb db, SqliteDb::Open(path, busy_timeout_ms));
  MR_RETURN_IF_ERROR(db.Execute("PRAGMA journal_mode=WAL").WithContext(path));
  MR_RETURN_IF_ERROR(
      db.Execute(survive_power_loss ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
  MR_RETURN_IF_ERROR(db.Execute("BEGIN IMMEDIATE").WithContext(path));
  MR_RETURN_IF_ERROR(db.Execute(kSchema).WithContext(path));
  MR_RETURN_IF_ERROR(db.Execute("COMMIT").WithContext(path));
  SqliteTables tables(std::move(db));
  MR_RETURN_IF_ERROR(tables.PrepareAll());
  MR_ASSIGN_OR_RETURN(const int64_t format, tables.ReadCounter("format"));
  if (format != kFormat) {
    return DataLoss(fmt::format("{}: the store has format {}, but this program reads format {}",
                                path, format, kFormat));
  }
  return tables;
}

Status SqliteTables::PrepareAll() {
  const std::pair<SqliteStatement*, const char*> all[] = {
      {&get_, "SELECT key, value, created, modified, lease FROM entries WHERE key = ?1"},
      {&list_,
       "SELECT key, value, created, modified, lease FROM entries "
       "WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) ORDER BY key LIMIT ?3"},
      {&put_,
       "INSERT INTO entries VALUES(?1, ?2, ?3, ?3, ?4) ON CONFLICT(key) DO "
       "UPDATE SET value = ?2, modified = ?3, lease = ?4"},
      {&delete_, "DELETE FROM entries WHERE key = ?1"},
      {&keys_of_lease_, "SELECT key FROM entries WHERE lease = ?1 ORDER BY key"},
      {&add_lease_, "INSERT INTO leases VALUES(?1, ?2)"},
      {&end_lease_, "DELETE FROM leases WHERE id = ?1"},
      {&leases_, "SELECT id, ttl_ns FROM leases"},
      {&read_counter_, "SELECT value FROM counters WHERE name = ?1"},
      {&write_counter_, "UPDATE counters SET value = ?2 WHERE name = ?1"},
  };
  for (const auto& [statement, sql] : all) {
    MR_ASSIGN_OR_RETURN(*statement, db_.Prepare(sql));
  }
  return OkStatus();
}

Result<std::optional<KeyValue>> SqliteTables::Get(std::string_view key) {
  MR_ASSIGN_OR_RETURN(const bool found, get_.BindBlob(1, key).Step());
  std::optional<KeyValue> entry;
  if (found) entry = ReadEntry(get_);
  get_.Reset();
  return entry;
}

Result<Listing> SqliteTables::List(const std::string& prefix) {
  Listing listing;
  MR_ASSIGN_OR_RETURN(const int64_t revision, ReadCounter("revision"));
  listing.revision = Revision(revision);
  const std::string end = PrefixEnd(prefix);
  list_.BindBlob(1, prefix).Bind(3, static_cast<int64_t>(kStoreListKeysMax) + 1);
  if (end.empty()) {
    list_.BindNull(2);
  } else {
    list_.BindBlob(2, end);
  }
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool row, list_.Step());
    if (!row) break;
    listing.entries.push_back(ReadEntry(list_));
  }
  list_.Reset();
  if (listing.entries.size() > kStoreListKeysMax) {
    return Status(StatusCode::kTooLarge,
                  fmt::format("more than {} keys begin with {}, which is the limit of a listing",
                              kStoreListKeysMax, prefix));
  }
  return listing;
}

Result<TableChange> SqliteTables::Put(const std::string& key, std::string_view value,
                                      std::optional<LeaseId> lease, const Expectation& expectation,
                                      const std::optional<Fence>& fence) {
  SqliteTransaction transaction(db_);
  MR_RETURN_IF_ERROR(transaction.Begin());
  MR_RETURN_IF_ERROR(CheckFence(fence));
  MR_ASSIGN_OR_RETURN(const std::optional<KeyValue> before, Get(key));
  std::optional<Revision> at;
  if (before) at = before->modified;
  if (expectation.compare && at != expectation.expected) {
    return FailedPrecondition(at ? fmt::format("the key was written at revision {}", at->value())
                                 : "the key does not exist");
  }
  MR_ASSIGN_OR_RETURN(int64_t revision, ReadCounter("revision"));
  MR_RETURN_IF_ERROR(WriteCounter("revision", ++revision));
  put_.BindBlob(1, key).BindBlob(2, value).Bind(3, revision);
  lease ? put_.Bind(4, lease->value()) : put_.BindNull(4);
  MR_RETURN_IF_ERROR(put_.Run());
  MR_RETURN_IF_ERROR(transaction.Commit());
  TableChange change{.revision = Revision(revision)};
  change.events.push_back({WatchEvent::Kind::kPut,
                           {.key = key,
                            .value = std::string(value),
                            .created = before ? before->created : Revision(revision),
                            .modified = Revision(revision),
                            .lease = lease}});
  return change;
}

Result<TableChange> SqliteTables::Delete(const std::string& key,
                                         const std::optional<Fence>& fence) {
  SqliteTransaction transaction(db_);
  MR_RETURN_IF_ERROR(transaction.Begin());
  MR_RETURN_IF_ERROR(CheckFence(fence));
  MR_ASSIGN_OR_RETURN(const std::optional<KeyValue> before, Get(key));
  MR_ASSIGN_OR_RETURN(int64_t revision, ReadCounter("revision"));
  if (!before) return TableChange{.revision = Revision(revision)};
  MR_RETURN_IF_ERROR(WriteCounter("revision", ++revision));
  MR_RETURN_IF_ERROR(delete_.BindBlob(1, key).Run());
  MR_RETURN_IF_ERROR(transaction.Commit());
  TableChange change{.revision = Revision(revision)};
  change.events.push_back(
      {WatchEvent::Kind::kDelete, {.key = key, .modified = Revision(revision)}});
  return change;
}

Result<LeaseId> SqliteTables::AddLease(Duration ttl) {
  SqliteTransaction transaction(db_);
  MR_RETURN_IF_ERROR(transaction.Begin());
  MR_ASSIGN_OR_RETURN(int64_t id, ReadCounter("lease"));
  MR_RETURN_IF_ERROR(WriteCounter("lease", ++id));
  MR_RETURN_IF_ERROR(add_lease_.Bind(1, id).Bind(2, ttl.ns).Run());
  MR_RETURN_IF_ERROR(transaction.Commit());
  return LeaseId(id);
}

Result<std::vector<Lease>> SqliteTables::Leases() {
  std::vector<Lease> all;
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool row, leases_.Step());
    if (!row) break;
    all.push_back({LeaseId(leases_.Int(0)), Duration::Nanos(leases_.Int(1))});
  }
  leases_.Reset();
  return all;
}

Result<TableChange> SqliteTables::EndLease(LeaseId lease) {
  SqliteTransaction transaction(db_);
  MR_RETURN_IF_ERROR(transaction.Begin());
  std::vector<std::string> keys;
  keys_of_lease_.Bind(1, lease.value());
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool row, keys_of_lease_.Step());
    if (!row) break;
    keys.push_back(keys_of_lease_.Blob(0));
  }
  keys_of_lease_.Reset();
  MR_ASSIGN_OR_RETURN(int64_t revision, ReadCounter("revision"));
  TableChange change;
  if (!keys.empty()) MR_RETURN_IF_ERROR(WriteCounter("revision", ++revision));
  change.revision = Revision(revision);
  for (const std::string& key : keys) {
    MR_RETURN_IF_ERROR(delete_.BindBlob(1, key).Run());
    change.events.push_back({WatchEvent::Kind::kDelete, {.key = key, .modified = change.revision}});
  }
  MR_RETURN_IF_ERROR(end_lease_.Bind(1, lease.value()).Run());
  MR_RETURN_IF_ERROR(transaction.Commit());
  return change;
}

Status SqliteTables::CheckFence(const std::optional<Fence>& fence) {
  if (!fence) return OkStatus();
  MR_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry, Get(fence->key));
  if (entry && entry->created == fence->created) return OkStatus();
  return FailedPrecondition(fmt::format("write refused by its fence: term {} of {} has ended",
                                        fence->created.value(), fence->key));
}

Result<int64_t> SqliteTables::ReadCounter(const char* name) {
  MR_ASSIGN_OR_RETURN(const bool found, read_counter_.BindText(1, name).Step());
  const int64_t value = found ? read_counter_.Int(0) : 0;
  read_counter_.Reset();
  if (!found) {
    return DataLoss(fmt::format("the store's counter {} is missing; the file is damaged", name));
  }
  return value;
}

Status SqliteTables::WriteCounter(const char* name, int64_t value) {
  return write_counter_.BindText(1, name).Bind(2, value).Run();
}

}  // namespace millrace::cluster
