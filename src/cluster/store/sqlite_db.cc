#include "cluster/store/sqlite_db.h"

#include <fmt/format.h>

#include "base/private_file.h"

namespace millrace::cluster {
namespace {

constexpr std::string_view kInMemory = ":memory:";

Status SqliteError(sqlite3* db, int code) {
  std::string message =
      fmt::format("SQLite: {} (code {})", db ? sqlite3_errmsg(db) : "out of memory",
                  db ? sqlite3_extended_errcode(db) : code);
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return DataLoss(std::move(message));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY: return Unavailable(std::move(message));
    default: return Internal(std::move(message));
  }
}

}  // namespace

SqliteStatement& SqliteStatement::Bind(int index, int64_t value) {
  MR_CHECK(sqlite3_bind_int64(statement_.get(), index, value) == SQLITE_OK);
  return *this;
}

SqliteStatement& SqliteStatement::BindBlob(int index, std::string_view value) {
  // A null pointer would bind NULL, not the empty value.
  MR_CHECK(sqlite3_bind_blob64(statement_.get(), index, value.empty() ? "" : value.data(),
                               value.size(), SQLITE_STATIC) == SQLITE_OK);
  return *this;
}

SqliteStatement& SqliteStatement::BindText(int index, std::string_view value) {
  MR_CHECK(sqlite3_bind_text(statement_.get(), index, value.data(), static_cast<int>(value.size()),
                             SQLITE_STATIC) == SQLITE_OK);
  return *this;
}

SqliteStatement& SqliteStatement::BindNull(int index) {
  MR_CHECK(sqlite3_bind_null(statement_.get(), index) == SQLITE_OK);
  return *this;
}

Result<bool> SqliteStatement::Step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  Status status = SqliteError(sqlite3_db_handle(statement_.get()), code);
  Reset();
  return status;
}

Status SqliteStatement::Run() {
  Result<bool> row = Step();
  if (!row.ok()) return row.status();
  Reset();
  return OkStatus();
}

int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string SqliteStatement::Blob(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data ? std::string(static_cast<const char*>(data), static_cast<size_t>(size)) : "";
}

bool SqliteStatement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

void SqliteStatement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

Result<SqliteDb> SqliteDb::Open(const std::string& path, int busy_timeout_ms) {
  if (path != kInMemory) {  // SQLite gives the others the mode of the first
    MakePrivateFile(path);
    for (const char* end : {"-wal", "-shm", "-journal"}) {
      MakePrivateFile(path + end, MissingFile::kLeave);
    }
  }
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  SqliteDb db;
  db.db_.reset(raw);
  if (code != SQLITE_OK) return SqliteError(raw, code).WithContext(path);
  sqlite3_busy_timeout(raw, busy_timeout_ms);
  return db;
}

void SqliteDb::SetBusyTimeout(int busy_timeout_ms) {
  sqlite3_busy_timeout(db_.get(), busy_timeout_ms);
}

Status SqliteDb::Execute(const char* sql) {
  const int code = sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? OkStatus() : SqliteError(db_.get(), code);
}

Result<SqliteStatement> SqliteDb::Prepare(std::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(db_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (code != SQLITE_OK) return SqliteError(db_.get(), code);
  SqliteStatement statement;
  statement.statement_.reset(raw);
  return statement;
}

SqliteTransaction::~SqliteTransaction() {
  if (open_) (void)db_.Execute("ROLLBACK").ok();
}

Status SqliteTransaction::Begin() {
  MR_RETURN_IF_ERROR(db_.Execute("BEGIN IMMEDIATE"));
  open_ = true;
  return OkStatus();
}

Status SqliteTransaction::Commit() {
  MR_RETURN_IF_ERROR(db_.Execute("COMMIT"));
  open_ = false;
  return OkStatus();
}

}  // namespace millrace::cluster
