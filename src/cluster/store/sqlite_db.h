// SqliteDb, SqliteStatement, SqliteTransaction: SQLite with Status results and RAII. They own their
// SQLite handles and know no table. One thread at a time.
#pragma once

#include <sqlite3.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::cluster {

class SqliteDb;

// A prepared statement that is used many times: bind (indexes from 1), step, read columns (from 0),
// reset.
class SqliteStatement {
 public:
  SqliteStatement& Bind(int index, int64_t value);
  SqliteStatement& BindBlob(int index, std::string_view value);  // must stay valid until Reset
  SqliteStatement& BindText(int index, std::string_view value);  // likewise
  SqliteStatement& BindNull(int index);
  // True: a row is ready.
  Result<bool> Step();
  // Steps once and resets, for statements without rows.
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

// Resets the statements if an exception destroys it, so that none stays half run.
class SqliteResetOnThrow {
 public:
  explicit SqliteResetOnThrow(std::vector<SqliteStatement*> statements)
      : statements_(std::move(statements)), exceptions_(std::uncaught_exceptions()) {}
  SqliteResetOnThrow(const SqliteResetOnThrow&) = delete;
  SqliteResetOnThrow& operator=(const SqliteResetOnThrow&) = delete;
  ~SqliteResetOnThrow() {
    if (std::uncaught_exceptions() == exceptions_) return;
    for (SqliteStatement* statement : statements_) statement->Reset();
  }

 private:
  const std::vector<SqliteStatement*> statements_;
  const int exceptions_;
};

class SqliteDb {
 public:
  // Only the owner may read the files of the database: prompts and tokens are in them. ":memory:":
  // there are none.
  static Result<SqliteDb> Open(const std::string& path, int busy_timeout_ms);

  // How long a call waits for a lock of another program.
  void SetBusyTimeout(int busy_timeout_ms);

  Status Execute(const char* sql);
  Result<SqliteStatement> Prepare(std::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  std::unique_ptr<sqlite3, Close> db_;
};

// A transaction from Begin (BEGIN IMMEDIATE) to Commit. The destructor rolls back if Commit was not
// reached.
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
