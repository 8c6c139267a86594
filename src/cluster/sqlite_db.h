// SqliteDb, SqliteStatement: SQLite with statuses and owners. Knows no table. One thread at a time.
#pragma once

#include <sqlite3.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::cluster {

class SqliteDb;

// A prepared statement, used again and again: bind from 1, step, read columns from 0, reset.
class SqliteStatement {
 public:
  SqliteStatement& Bind(int index, int64_t value);
  SqliteStatement& BindBlob(int index, std::string_view value);  // must outlive the steps
  SqliteStatement& BindText(int index, std::string_view value);  // as BindBlob
  SqliteStatement& BindNull(int index);
  // True: there is a row.
  Result<bool> Step();
  // Steps once, where no row is wanted, and resets.
  Status Run();
  int64_t Int(int column) const;
  std::string Blob(int column) const;
  bool IsNull(int column) const;
  void Reset();

 private:
  friend class SqliteDb;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class SqliteDb {
 public:
  static Result<SqliteDb> Open(const std::string& path, int busy_timeout_ms);

  Status Execute(const char* sql);
  Result<SqliteStatement> Prepare(std::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  std::unique_ptr<sqlite3, Close> db_;
};

// BEGIN IMMEDIATE until Commit; rolled back when that is never reached.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDb& db) : db_(db) {}
  ~SqliteTransaction();
  Status Begin();
  Status Commit();

 private:
  SqliteDb& db_;
  bool open_ = false;
};

}  // namespace millrace::cluster
