// The tables of the object store. Private to it.
#pragma once

#include <cstdint>

namespace millrace::serve {

inline constexpr int64_t kStoreFormat = 2;  // 1: without checksums

inline constexpr const char* kSchema = R"(
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

// The rows of format 1 keep no checksum, and are read without the check.
inline constexpr const char* kSecondFormat = R"(
ALTER TABLE objects ADD COLUMN head_checksum INTEGER;
ALTER TABLE objects ADD COLUMN rest_checksum INTEGER;
ALTER TABLE batch_lines ADD COLUMN checksum INTEGER;
INSERT INTO formats VALUES(2);
)";

// What an object holds. The column `bytes` says the same, but it may be damaged.
inline constexpr const char* kObjectBytes =
    "length(CAST(id AS BLOB)) + length(body) + length(content) + length(events)";

inline constexpr const char* kPutObject =
    "INSERT INTO objects(kind, owner, id, created, open, bytes, body, content, events, "
    "head_checksum, rest_checksum) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

inline constexpr const char* kGetObject =
    "SELECT kind, owner, id, created, open, body, head_checksum, content, events, "
    "rest_checksum FROM objects "
    "WHERE kind = ?1 AND owner = ?2 AND id = ?3";

}  // namespace millrace::serve
