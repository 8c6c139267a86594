#include "serve/stored/object_store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/folder_lock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "cluster/store/sqlite_db.h"

namespace millrace::serve {
namespace {

using cluster::SqliteDb;
using cluster::SqliteStatement;
using cluster::SqliteTransaction;

constexpr int64_t kFormat = 1;
constexpr int kBusyTimeoutMs = 2000;  // another program may be reading the file
constexpr const char* kFileName = "objects.sqlite";

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS formats(number INTEGER PRIMARY KEY);
INSERT INTO formats SELECT 1 WHERE NOT EXISTS (SELECT * FROM formats);
CREATE TABLE IF NOT EXISTS objects(
  number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, owner TEXT NOT NULL, id TEXT NOT NULL,
  created INTEGER NOT NULL, open INTEGER NOT NULL, bytes INTEGER NOT NULL,
  body BLOB NOT NULL, content BLOB NOT NULL, events BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS objects_by_id ON objects(kind, owner, id);
CREATE INDEX IF NOT EXISTS objects_by_age ON objects(created);
CREATE INDEX IF NOT EXISTS objects_open ON objects(kind, number) WHERE open = 1;
CREATE TABLE IF NOT EXISTS batch_lines(
  batch TEXT NOT NULL, number INTEGER NOT NULL, failed INTEGER NOT NULL, text BLOB NOT NULL,
  PRIMARY KEY(batch, number)) WITHOUT ROWID;
)";

size_t BytesOf(const StoredObject& object) {
  return object.id.size() + object.body.size() + object.content.size() + object.events.size();
}

const char* NameOf(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kResponse: return "response";
    case ObjectKind::kFile: return "file";
    case ObjectKind::kBatch: return "batch";
  }
  return "object";
}

Status NoSuchObject(ObjectKind kind, const std::string& id) {
  return NotFound(fmt::format(
      "No {} with the id '{}' is stored: it was deleted, dropped, never stored, or belongs to "
      "another key.",
      NameOf(kind), Printable(id, 64)));
}

}  // namespace

class ObjectStore::Impl {
 public:
  Impl(const ObjectStoreOptions& options, std::optional<FolderLock> lock, SqliteDb db)
      : options_(options), lock_(std::move(lock)), db_(std::move(db)) {}

  Status Prepare() {
    MR_RETURN_IF_ERROR(db_.Execute("PRAGMA journal_mode=WAL"));
    // A power cut may take the newest objects, but not the database.
    MR_RETURN_IF_ERROR(db_.Execute("PRAGMA synchronous=NORMAL"));
    MR_RETURN_IF_ERROR(db_.Execute(kSchema));
    MR_ASSIGN_OR_RETURN(SqliteStatement formats, db_.Prepare("SELECT max(number) FROM formats"));
    MR_ASSIGN_OR_RETURN(const bool any, formats.Step());
    const int64_t format = any ? formats.Int(0) : 0;
    formats.Reset();
    if (format != kFormat) {
      return DataLoss(fmt::format("the store has format {}, but this program reads format {}",
                                  format, kFormat));
    }
    MR_RETURN_IF_ERROR(PrepareStatements());
    MutexLock lock(mutex_);
    return CountBytes();
  }

  Status Put(const StoredObject& object) {
    MutexLock lock(mutex_);
    return InTransaction([&]() MR_REQUIRES(mutex_) { return Replace(object); });
  }

  Status PutEndedBatch(const StoredObject& batch, const std::vector<StoredObject>& files) {
    MutexLock lock(mutex_);
    return InTransaction([&]() MR_REQUIRES(mutex_) -> Status {
      MR_RETURN_IF_ERROR(Remove(batch.kind, batch.owner, batch.id).status());
      MR_RETURN_IF_ERROR(CountBytes());
      for (const StoredObject& file : files) MR_RETURN_IF_ERROR(Replace(file));
      return Replace(batch);
    });
  }

  Result<StoredObject> Get(ObjectKind kind, const std::string& owner, const std::string& id) {
    MutexLock lock(mutex_);
    get_.Bind(1, static_cast<int>(kind)).BindText(2, owner).BindText(3, id);
    MR_ASSIGN_OR_RETURN(const bool found, get_.Step());
    StoredObject object;
    if (found) object = Read(get_, true);
    get_.Reset();
    if (!found) return NoSuchObject(kind, id);
    return object;
  }

  Status Delete(ObjectKind kind, const std::string& owner, const std::string& id) {
    MutexLock lock(mutex_);
    MR_ASSIGN_OR_RETURN(const bool removed, Remove(kind, owner, id));
    return removed ? OkStatus() : NoSuchObject(kind, id);
  }

  Result<std::vector<StoredObject>> List(ObjectKind kind, const std::string& owner,
                                         const std::string& after, int count) {
    MutexLock lock(mutex_);
    list_.Bind(1, static_cast<int>(kind)).BindText(2, owner);
    if (after.empty()) {
      list_.BindNull(3);
    } else {
      list_.BindText(3, after);
    }
    list_.Bind(4, std::min(count, kObjectsListedMax));
    return ReadAll(list_, false);
  }

  Result<std::vector<StoredObject>> ListOpen(ObjectKind kind) {
    MutexLock lock(mutex_);
    list_open_.Bind(1, static_cast<int>(kind));
    return ReadAll(list_open_, true);
  }

  Status PutBatchLine(const std::string& batch, const BatchLine& line) {
    MutexLock lock(mutex_);
    const auto bytes = static_cast<int64_t>(line.text.size());
    MR_RETURN_IF_ERROR(CheckRoom("batch", bytes));
    put_line_.BindText(1, batch).Bind(2, line.number).Bind(3, line.failed ? 1 : 0);
    put_line_.BindBlob(4, line.text);
    MR_RETURN_IF_ERROR(put_line_.Run());
    kept_bytes_ += bytes;
    return OkStatus();
  }

  Result<std::vector<BatchLine>> BatchLines(const std::string& batch) {
    MutexLock lock(mutex_);
    lines_.BindText(1, batch);
    std::vector<BatchLine> found;
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool row, lines_.Step());
      if (!row) break;
      found.push_back({lines_.Int(0), lines_.Int(1) != 0, lines_.Blob(2)});
    }
    lines_.Reset();
    return found;
  }

  Status DropOld(int64_t now_s) {
    MutexLock lock(mutex_);
    drop_old_.Bind(1, now_s - static_cast<int64_t>(options_.age_max.seconds()));
    MR_RETURN_IF_ERROR(drop_old_.Run());
    MR_RETURN_IF_ERROR(drop_lines_.Run());
    return CountBytes();
  }

 private:
  Status PrepareStatements() {
    const std::pair<SqliteStatement*, const char*> all[] = {
        {&put_,
         "INSERT INTO objects(kind, owner, id, created, open, bytes, body, content, events) "
         "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"},
        {&get_,
         "SELECT kind, owner, id, created, open, body, content, events FROM objects "
         "WHERE kind = ?1 AND owner = ?2 AND id = ?3"},
        {&list_,
         "SELECT kind, owner, id, created, open, body FROM objects WHERE kind = ?1 AND owner = ?2 "
         "AND (?3 IS NULL OR number < (SELECT number FROM objects WHERE kind = ?1 AND owner = ?2 "
         "AND id = ?3)) ORDER BY number DESC LIMIT ?4"},
        {&list_open_,
         "SELECT kind, owner, id, created, open, body, content, events FROM objects "
         "WHERE kind = ?1 AND open = 1 ORDER BY number"},
        {&bytes_, "SELECT bytes FROM objects WHERE kind = ?1 AND owner = ?2 AND id = ?3"},
        {&remove_, "DELETE FROM objects WHERE kind = ?1 AND owner = ?2 AND id = ?3"},
        {&oldest_,
         "SELECT id FROM objects WHERE kind = 1 AND owner = ?1 AND open = 0 "
         "ORDER BY created, number LIMIT 1"},
        {&put_line_, "INSERT OR REPLACE INTO batch_lines VALUES(?1, ?2, ?3, ?4)"},
        {&lines_, "SELECT number, failed, text FROM batch_lines WHERE batch = ?1 ORDER BY number"},
        {&remove_lines_, "DELETE FROM batch_lines WHERE batch = ?1"},
        {&drop_old_, "DELETE FROM objects WHERE created < ?1 AND open = 0"},
        {&drop_lines_,
         "DELETE FROM batch_lines WHERE batch NOT IN (SELECT id FROM objects WHERE kind = 3)"},
        {&sums_,
         "SELECT kind, owner, sum(bytes) FROM objects GROUP BY kind, owner "
         "UNION ALL SELECT 3, '', coalesce(sum(length(text)), 0) FROM batch_lines"},
    };
    for (const auto& [statement, sql] : all) {
      MR_ASSIGN_OR_RETURN(*statement, db_.Prepare(sql));
    }
    return OkStatus();
  }

  static StoredObject Read(const SqliteStatement& row, bool whole) {
    StoredObject object{.kind = static_cast<ObjectKind>(row.Int(0)),
                        .owner = row.Blob(1),
                        .id = row.Blob(2),
                        .created_s = row.Int(3),
                        .open = row.Int(4) != 0,
                        .body = row.Blob(5)};
    if (whole) {
      object.content = row.Blob(6);
      object.events = row.Blob(7);
    }
    return object;
  }

  static Result<std::vector<StoredObject>> ReadAll(SqliteStatement& statement, bool whole) {
    std::vector<StoredObject> found;
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool row, statement.Step());
      if (!row) break;
      found.push_back(Read(statement, whole));
    }
    statement.Reset();
    return found;
  }

  Status CountBytes() MR_REQUIRES(mutex_) {
    responses_.clear();
    kept_bytes_ = response_bytes_ = 0;
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool row, sums_.Step());
      if (!row) break;
      Add(static_cast<ObjectKind>(sums_.Int(0)), sums_.Blob(1), sums_.Int(2));
    }
    sums_.Reset();
    return OkStatus();
  }

  void Add(ObjectKind kind, const std::string& owner, int64_t bytes) MR_REQUIRES(mutex_) {
    if (kind != ObjectKind::kResponse) {
      kept_bytes_ += bytes;
      return;
    }
    response_bytes_ += bytes;
    responses_[owner] += bytes;
  }

  template <typename Change>
  Status InTransaction(const Change& change) MR_REQUIRES(mutex_) {
    const Status status = [&]() MR_REQUIRES(mutex_) -> Status {
      SqliteTransaction transaction(db_);
      MR_RETURN_IF_ERROR(transaction.Begin());
      MR_RETURN_IF_ERROR(change());
      return transaction.Commit();
    }();
    if (!status.ok()) (void)CountBytes().ok();  // what was removed is there again
    return status;
  }

  Status Replace(const StoredObject& object) MR_REQUIRES(mutex_) {
    MR_RETURN_IF_ERROR(RemoveObject(object.kind, object.owner, object.id).status());
    MR_RETURN_IF_ERROR(MakeRoom(object));
    put_.Bind(1, static_cast<int>(object.kind)).BindText(2, object.owner).BindText(3, object.id);
    put_.Bind(4, object.created_s).Bind(5, object.open ? 1 : 0);
    put_.Bind(6, static_cast<int64_t>(BytesOf(object))).BindBlob(7, object.body);
    put_.BindBlob(8, object.content).BindBlob(9, object.events);
    MR_RETURN_IF_ERROR(put_.Run());
    Add(object.kind, object.owner, static_cast<int64_t>(BytesOf(object)));
    return OkStatus();
  }

  // Files and batches may take half of the store, responses what is left.
  Status CheckRoom(const char* what, int64_t bytes) MR_REQUIRES(mutex_) {
    if (kept_bytes_ + bytes <= static_cast<int64_t>(options_.bytes_max / 2)) return OkStatus();
    return ResourceExhausted(fmt::format(
        "The store has no room for a {} of {} bytes: files and batches hold {} bytes and may hold "
        "{}. Delete files that are no longer needed; the server's --store-bytes sets the limit.",
        what, bytes, kept_bytes_, options_.bytes_max / 2));
  }

  // The oldest responses make room for anything.
  Status MakeRoom(const StoredObject& object) MR_REQUIRES(mutex_) {
    const auto bytes = static_cast<int64_t>(BytesOf(object));
    const auto bytes_max = static_cast<int64_t>(options_.bytes_max);
    if (object.kind != ObjectKind::kResponse) {
      MR_RETURN_IF_ERROR(CheckRoom(NameOf(object.kind), bytes));
    }
    while (kept_bytes_ + response_bytes_ + bytes > bytes_max) {
      MR_ASSIGN_OR_RETURN(const bool dropped, DropOneResponse());
      if (!dropped) {
        return ResourceExhausted(
            fmt::format("The store has no room for a {} of {} bytes: its limit is {} bytes.",
                        NameOf(object.kind), bytes, bytes_max));
      }
    }
    return OkStatus();
  }

  // The oldest of the key that holds the most.
  Result<bool> DropOneResponse() MR_REQUIRES(mutex_) {
    std::vector<std::pair<int64_t, std::string>> owners;
    for (const auto& [owner, bytes] : responses_) owners.emplace_back(bytes, owner);
    std::ranges::sort(owners, std::greater<>());
    for (const auto& [bytes, owner] : owners) {
      oldest_.BindText(1, owner);
      MR_ASSIGN_OR_RETURN(const bool found, oldest_.Step());
      const std::string id = found ? oldest_.Blob(0) : "";
      oldest_.Reset();
      if (found) return RemoveObject(ObjectKind::kResponse, owner, id);
    }
    return false;
  }

  // With the lines of a batch.
  Result<bool> Remove(ObjectKind kind, const std::string& owner, const std::string& id)
      MR_REQUIRES(mutex_) {
    if (kind == ObjectKind::kBatch) {
      remove_lines_.BindText(1, id);
      MR_RETURN_IF_ERROR(remove_lines_.Run());
    }
    return RemoveObject(kind, owner, id);
  }

  Result<bool> RemoveObject(ObjectKind kind, const std::string& owner, const std::string& id)
      MR_REQUIRES(mutex_) {
    bytes_.Bind(1, static_cast<int>(kind)).BindText(2, owner).BindText(3, id);
    MR_ASSIGN_OR_RETURN(const bool found, bytes_.Step());
    const int64_t bytes = found ? bytes_.Int(0) : 0;
    bytes_.Reset();
    if (!found) return false;
    remove_.Bind(1, static_cast<int>(kind)).BindText(2, owner).BindText(3, id);
    MR_RETURN_IF_ERROR(remove_.Run());
    Add(kind, owner, -bytes);
    return true;
  }

  const ObjectStoreOptions options_;
  const std::optional<FolderLock> lock_;
  Mutex mutex_;
  SqliteDb db_;
  SqliteStatement put_, get_, list_, list_open_, bytes_, remove_, oldest_, put_line_, lines_,
      remove_lines_, drop_old_, drop_lines_, sums_;
  std::map<std::string, int64_t> responses_ MR_GUARDED_BY(mutex_);  // bytes by owner
  int64_t response_bytes_ MR_GUARDED_BY(mutex_) = 0;
  int64_t kept_bytes_ MR_GUARDED_BY(mutex_) = 0;  // of files and batches
};

ObjectStore::ObjectStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ObjectStore::~ObjectStore() = default;

Result<std::unique_ptr<ObjectStore>> ObjectStore::Open(const ObjectStoreOptions& options) {
  std::optional<FolderLock> lock;
  std::string path = ":memory:";
  if (!options.folder.empty()) {
    MR_ASSIGN_OR_RETURN(lock, FolderLock::Take(options.folder));
    path = options.folder + "/" + kFileName;
    // It has what users wrote: nobody else may read it.
    (void)chmod(options.folder.c_str(), S_IRWXU);
  }
  MR_ASSIGN_OR_RETURN(SqliteDb db, SqliteDb::Open(path, kBusyTimeoutMs));
  auto impl = std::make_unique<Impl>(options, std::move(lock), std::move(db));
  MR_RETURN_IF_ERROR(impl->Prepare().WithContext(path));
  return std::unique_ptr<ObjectStore>(new ObjectStore(std::move(impl)));
}

Status ObjectStore::Put(const StoredObject& object) { return impl_->Put(object); }
Status ObjectStore::PutEndedBatch(const StoredObject& batch,
                                  const std::vector<StoredObject>& files) {
  return impl_->PutEndedBatch(batch, files);
}
Result<StoredObject> ObjectStore::Get(ObjectKind kind, const std::string& owner,
                                      const std::string& id) {
  return impl_->Get(kind, owner, id);
}
Status ObjectStore::Delete(ObjectKind kind, const std::string& owner, const std::string& id) {
  return impl_->Delete(kind, owner, id);
}
Result<std::vector<StoredObject>> ObjectStore::List(ObjectKind kind, const std::string& owner,
                                                    const std::string& after, int count) {
  return impl_->List(kind, owner, after, count);
}
Result<std::vector<StoredObject>> ObjectStore::ListOpen(ObjectKind kind) {
  return impl_->ListOpen(kind);
}
Status ObjectStore::PutBatchLine(const std::string& batch, const BatchLine& line) {
  return impl_->PutBatchLine(batch, line);
}
Result<std::vector<ObjectStore::BatchLine>> ObjectStore::BatchLines(const std::string& batch) {
  return impl_->BatchLines(batch);
}
Status ObjectStore::DropOld(int64_t now_s) { return impl_->DropOld(now_s); }

}  // namespace millrace::serve
