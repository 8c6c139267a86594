#include "serve/stored/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/folder_lock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/private_file.h"
#include "base/same_file.h"
#include "cluster/store/sqlite_db.h"
#include "serve/stored/object_store_sql.h"

namespace millrace::serve {
namespace {

using cluster::SqliteDb;
using cluster::SqliteStatement;
using cluster::SqliteTransaction;

constexpr int kBusyTimeoutMs = 2000;  // another program may hold a lock of the file
constexpr int kBusyAgainTimeoutMs = 20;
constexpr const char* kFileName = "objects.sqlite";
constexpr const char* kWrongChecksum = "its checksum is wrong";

}  // namespace

class ObjectStore::Impl {
 public:
  Impl(const ObjectStoreOptions& options, std::optional<FolderLock> lock, SqliteDb db)
      : options_(options), lock_(std::move(lock)), db_(std::move(db)) {}

  Status Prepare() {
    MR_RETURN_IF_ERROR(db_.Execute("PRAGMA journal_mode=WAL"));
    // A power cut may take the newest objects, but not the database.
    MR_RETURN_IF_ERROR(db_.Execute("PRAGMA synchronous=NORMAL"));
    MR_RETURN_IF_ERROR(PrepareFormat());
    MR_RETURN_IF_ERROR(PrepareStatements());
    if (!options_.folder.empty()) file_.emplace(options_.folder + "/" + kFileName);
    MutexLock lock(mutex_);
    const Status counted = CountBytes();
    if (counted.code() != StatusCode::kDataLoss) return counted;
    MR_LOG(error,
           "a part of the store is damaged, and its objects are lost: {}; `sqlite3 {}/{} .recover` "
           "reads the others, and with the file moved away the server starts an empty store",
           counted.message(), options_.folder, kFileName);
    return OkStatus();
  }

  Status Put(const StoredObject& object) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      return InTransaction([&]() MR_REQUIRES(mutex_) { return Replace(object); });
    });
  }

  Status PutEndedBatch(const StoredObject& batch, const std::vector<StoredObject>& files) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      return InTransaction([&]() MR_REQUIRES(mutex_) -> Status {
        MR_RETURN_IF_ERROR(Remove(batch.kind, batch.owner, batch.id).status());
        MR_RETURN_IF_ERROR(CountBytes());
        for (const StoredObject& file : files) MR_RETURN_IF_ERROR(Replace(file));
        return Replace(batch);
      });
    });
  }

  Result<StoredObject> Get(ObjectKind kind, const std::string& owner, const std::string& id) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Result<StoredObject> {
      get_.Bind(1, static_cast<int>(kind)).BindText(2, owner).BindText(3, id);
      const Result<bool> found = get_.Step();
      if (found.status().code() == StatusCode::kDataLoss) {
        return Damaged(kind, id, found.status().message());
      }
      MR_RETURN_IF_ERROR(found.status());
      if (!*found) {
        get_.Reset();
        return NoSuchObject(kind, id);
      }
      ReadObject read = Read(get_, true);
      get_.Reset();
      if (read.damaged) return Damaged(kind, id, kWrongChecksum);
      return std::move(read.object);
    });
  }

  Status Delete(ObjectKind kind, const std::string& owner, const std::string& id) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      MR_ASSIGN_OR_RETURN(const bool removed, Remove(kind, owner, id));
      return removed ? OkStatus() : NoSuchObject(kind, id);
    });
  }

  Result<std::vector<StoredObject>> List(ObjectKind kind, const std::string& owner,
                                         const std::string& after, int count) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Result<std::vector<StoredObject>> {
      list_.Bind(1, static_cast<int>(kind)).BindText(2, owner);
      if (after.empty()) {
        list_.BindNull(3);
      } else {
        list_.BindText(3, after);
      }
      list_.Bind(4, std::min(count, kObjectsListedMax));
      return ReadAll(list_, false, nullptr);
    });
  }

  Result<std::vector<StoredObject>> ListOpen(ObjectKind kind) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Result<std::vector<StoredObject>> {
      list_open_.Bind(1, static_cast<int>(kind));
      std::vector<StoredObject> damaged;
      MR_ASSIGN_OR_RETURN(std::vector<StoredObject> found, ReadAll(list_open_, true, &damaged));
      for (const StoredObject& one : damaged) {
        const Status closed = CloseOne(one.kind, one.owner, one.id);
        if (!closed.ok()) MR_LOG(warn, "{} stays open: {}", one.id, closed.message());
      }
      return found;
    });
  }

  Status Close(ObjectKind kind, const std::string& owner, const std::string& id) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status { return CloseOne(kind, owner, id); });
  }

  Status PutBatchLine(const std::string& batch, const BatchLine& line) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      const auto bytes = static_cast<int64_t>(line.text.size());
      MR_RETURN_IF_ERROR(CheckRoom("batch", bytes));
      put_line_.BindText(1, batch).Bind(2, line.number).Bind(3, line.failed ? 1 : 0);
      put_line_.BindBlob(4, line.text).Bind(5, LineChecksum(batch, line));
      MR_RETURN_IF_ERROR(put_line_.Run());
      kept_bytes_ += bytes;
      return OkStatus();
    });
  }

  Result<std::vector<BatchLine>> BatchLines(const std::string& batch) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Result<std::vector<BatchLine>> {
      lines_.BindText(1, batch);
      std::vector<BatchLine> found;
      while (true) {
        MR_ASSIGN_OR_RETURN(const bool row, lines_.Step());
        if (!row) break;
        BatchLine line{lines_.Int(0), lines_.Int(1) != 0, lines_.Blob(2)};
        if (Matches(lines_, 3, LineChecksum(batch, line))) {
          found.push_back(std::move(line));
        } else {
          MR_LOG(error, "a stored result of {} is damaged, line {}: {}", batch, line.number,
                 kWrongChecksum);
        }
      }
      lines_.Reset();
      return found;
    });
  }

  Status TryWrite() {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      if (!file_) return OkStatus();
      MR_RETURN_IF_ERROR(file_->Check());
      return db_.Execute("UPDATE formats SET number = number");
    });
  }

  Status DropOld(int64_t now_s) {
    return Locked([&]() MR_REQUIRES(mutex_) -> Status {
      drop_old_.Bind(1, now_s - static_cast<int64_t>(options_.age_max.seconds()));
      MR_RETURN_IF_ERROR(drop_old_.Run());
      MR_RETURN_IF_ERROR(drop_lines_.Run());
      return CountBytes();
    });
  }

 private:
  // One call at a time. After one that waited in vain for a lock of another program, the next ones
  // hardly wait, so that their callers are not held up one after another.
  template <typename Call>
  auto Locked(const Call& call) -> decltype(call()) {
    MutexLock lock(mutex_);
    db_.SetBusyTimeout(busy_ ? kBusyAgainTimeoutMs : kBusyTimeoutMs);
    const cluster::SqliteResetOnThrow reset(Statements());  // there may be no memory for a row
    auto result = call();
    busy_ = StatusOf(result).code() == StatusCode::kUnavailable;
    return result;
  }
  std::vector<SqliteStatement*> Statements() {
    return {&put_,    &get_,      &list_,  &list_open_,    &bytes_,    &close_,      &remove_,
            &oldest_, &put_line_, &lines_, &remove_lines_, &drop_old_, &drop_lines_, &sums_};
  }
  static const Status& StatusOf(const Status& status) { return status; }
  template <typename Value>
  static const Status& StatusOf(const Result<Value>& result) {
    return result.status();
  }

  Status PrepareFormat() {
    SqliteTransaction transaction(db_);
    MR_RETURN_IF_ERROR(transaction.Begin());
    MR_RETURN_IF_ERROR(db_.Execute(kSchema));
    MR_ASSIGN_OR_RETURN(SqliteStatement formats, db_.Prepare("SELECT max(number) FROM formats"));
    MR_ASSIGN_OR_RETURN(const bool any, formats.Step());
    const int64_t format = any ? formats.Int(0) : 0;
    formats.Reset();
    if (format < 1 || format > kStoreFormat) {
      return DataLoss(fmt::format(
          "the store has format {}, but this program reads format {} and earlier ones; name "
          "another folder, or run the program that wrote it",
          format, kStoreFormat));
    }
    if (format < kStoreFormat) MR_RETURN_IF_ERROR(db_.Execute(kSecondFormat));
    return transaction.Commit();
  }

  Status PrepareStatements() {
    const std::pair<SqliteStatement*, std::string> all[] = {
        {&put_, kPutObject},
        {&get_, kGetObject},
        {&list_,
         "SELECT kind, owner, id, created, open, body, head_checksum FROM objects "
         "WHERE kind = ?1 AND owner = ?2 AND (?3 IS NULL OR number < (SELECT number FROM objects "
         "WHERE kind = ?1 AND owner = ?2 "
         "AND id = ?3)) ORDER BY number DESC LIMIT ?4"},
        {&list_open_,
         "SELECT kind, owner, id, created, open, body, head_checksum, content, events, "
         "rest_checksum FROM objects "
         "WHERE kind = ?1 AND open = 1 ORDER BY number"},
        {&bytes_, fmt::format("SELECT {} FROM objects WHERE kind = ?1 AND owner = ?2 AND id = ?3",
                              kObjectBytes)},
        {&close_, "UPDATE objects SET open = 0 WHERE kind = ?1 AND owner = ?2 AND id = ?3"},
        {&remove_, "DELETE FROM objects WHERE kind = ?1 AND owner = ?2 AND id = ?3"},
        {&oldest_,
         "SELECT id FROM objects WHERE kind = 1 AND owner = ?1 AND open = 0 "
         "ORDER BY created, number LIMIT 1"},
        {&put_line_, "INSERT OR REPLACE INTO batch_lines VALUES(?1, ?2, ?3, ?4, ?5)"},
        {&lines_,
         "SELECT number, failed, text, checksum FROM batch_lines WHERE batch = ?1 "
         "ORDER BY number"},
        {&remove_lines_, "DELETE FROM batch_lines WHERE batch = ?1"},
        {&drop_old_, "DELETE FROM objects WHERE created < ?1 AND open = 0"},
        {&drop_lines_,
         "DELETE FROM batch_lines WHERE batch NOT IN (SELECT id FROM objects WHERE kind = 3)"},
        {&sums_,
         fmt::format("SELECT kind, owner, sum({}) FROM objects GROUP BY kind, owner "
                     "UNION ALL SELECT 3, '', coalesce(sum(length(text)), 0) FROM batch_lines",
                     kObjectBytes)},
    };
    for (const auto& [statement, sql] : all) {
      MR_ASSIGN_OR_RETURN(*statement, db_.Prepare(sql));
    }
    return OkStatus();
  }

  struct ReadObject {
    StoredObject object;
    bool damaged = false;
  };

  // A row of format 1 has no checksum.
  static bool Matches(const SqliteStatement& row, int column, uint32_t checksum) {
    return row.IsNull(column) || row.Int(column) == int64_t{checksum};
  }

  static ReadObject Read(const SqliteStatement& row, bool whole) {
    ReadObject read{.object = {.kind = static_cast<ObjectKind>(row.Int(0)),
                               .owner = row.Blob(1),
                               .id = row.Blob(2),
                               .created_s = row.Int(3),
                               .open = row.Int(4) != 0,
                               .body = row.Blob(5)}};
    read.damaged = !Matches(row, 6, HeadChecksum(read.object));
    if (whole) {
      read.object.content = row.Blob(7);
      read.object.events = row.Blob(8);
      read.damaged = read.damaged || !Matches(row, 9, RestChecksum(read.object));
    }
    return read;
  }

  // Damaged ones are logged, and added to `damaged` unless it is null.
  static Result<std::vector<StoredObject>> ReadAll(SqliteStatement& statement, bool whole,
                                                   std::vector<StoredObject>* damaged) {
    std::vector<StoredObject> found;
    while (true) {
      const Result<bool> row = statement.Step();
      if (row.status().code() == StatusCode::kDataLoss) {
        MR_LOG(error, "stored objects cannot be listed: {}", row.status().message());
        return DataLoss("A part of the store is damaged: its objects cannot be listed.");
      }
      MR_RETURN_IF_ERROR(row.status());
      if (!*row) break;
      ReadObject read = Read(statement, whole);
      if (!read.damaged) {
        found.push_back(std::move(read.object));
        continue;
      }
      (void)Damaged(read.object.kind, read.object.id, kWrongChecksum);
      if (damaged != nullptr) damaged->push_back(std::move(read.object));
    }
    statement.Reset();
    return found;
  }

  Status CloseOne(ObjectKind kind, const std::string& owner, const std::string& id)
      MR_REQUIRES(mutex_) {
    close_.Bind(1, static_cast<int>(kind)).BindText(2, owner).BindText(3, id);
    return close_.Run();
  }

  // In error, the numbers stay.
  Status CountBytes() MR_REQUIRES(mutex_) {
    struct Sum {
      ObjectKind kind;
      std::string owner;
      int64_t bytes;
    };
    std::vector<Sum> sums;
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool row, sums_.Step());
      if (!row) break;
      sums.push_back({static_cast<ObjectKind>(sums_.Int(0)), sums_.Blob(1), sums_.Int(2)});
    }
    sums_.Reset();
    responses_.clear();
    kept_bytes_ = response_bytes_ = 0;
    for (const Sum& sum : sums) Add(sum.kind, sum.owner, sum.bytes);
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
    bool begun = false;
    const Status status = [&]() MR_REQUIRES(mutex_) -> Status {
      SqliteTransaction transaction(db_);
      MR_RETURN_IF_ERROR(transaction.Begin());
      begun = true;
      MR_RETURN_IF_ERROR(change());
      return transaction.Commit();
    }();
    if (!status.ok() && begun) (void)CountBytes().ok();  // what was removed is there again
    return status;
  }

  Status Replace(const StoredObject& object) MR_REQUIRES(mutex_) {
    MR_RETURN_IF_ERROR(RemoveObject(object.kind, object.owner, object.id).status());
    MR_RETURN_IF_ERROR(MakeRoom(object));
    put_.Bind(1, static_cast<int>(object.kind)).BindText(2, object.owner).BindText(3, object.id);
    put_.Bind(4, object.created_s).Bind(5, object.open ? 1 : 0);
    put_.Bind(6, static_cast<int64_t>(BytesOf(object))).BindBlob(7, object.body);
    put_.BindBlob(8, object.content).BindBlob(9, object.events);
    put_.Bind(10, HeadChecksum(object)).Bind(11, RestChecksum(object));
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
  std::optional<SameFile> file_;  // once it is prepared; in memory there is none
  const std::optional<FolderLock> lock_;
  Mutex mutex_;
  bool busy_ MR_GUARDED_BY(mutex_) = false;  // as of the call before
  SqliteDb db_;
  SqliteStatement put_, get_, list_, list_open_, bytes_, close_, remove_, oldest_, put_line_,
      lines_, remove_lines_, drop_old_, drop_lines_, sums_;
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
    MR_RETURN_IF_ERROR(MakePrivateFolder(options.folder));
    MR_ASSIGN_OR_RETURN(lock, FolderLock::Take(options.folder));
    path = options.folder + "/" + kFileName;
  }
  MR_ASSIGN_OR_RETURN(SqliteDb db, SqliteDb::Open(path, kBusyTimeoutMs));
  auto impl = std::make_unique<Impl>(options, std::move(lock), std::move(db));
  if (const Status ready = impl->Prepare(); !ready.ok()) {
    const char* cure = ready.code() == StatusCode::kDataLoss
                           ? "; with the file moved away, the server starts an empty store"
                           : "";
    return Status(ready.code(), fmt::format("{}: {}{}", path, ready.message(), cure));
  }
  return std::unique_ptr<ObjectStore>(new ObjectStore(std::move(impl)));
}

Status ObjectStore::TryWrite() { return impl_->TryWrite(); }
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
Status ObjectStore::Close(ObjectKind kind, const std::string& owner, const std::string& id) {
  return impl_->Close(kind, owner, id);
}
Status ObjectStore::PutBatchLine(const std::string& batch, const BatchLine& line) {
  return impl_->PutBatchLine(batch, line);
}
Result<std::vector<ObjectStore::BatchLine>> ObjectStore::BatchLines(const std::string& batch) {
  return impl_->BatchLines(batch);
}
Status ObjectStore::DropOld(int64_t now_s) { return impl_->DropOld(now_s); }

}  // namespace millrace::serve
