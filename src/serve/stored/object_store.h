// ObjectStore: what clients leave with the server and fetch later: responses, files, batches. It is
// one SQLite database, in a folder that this process owns, or in memory. Every object belongs to
// the API key that made it; another key does not find it.
//
// It is bounded. When it is full, responses make room, the oldest of the key that holds the most
// first; files are refused. Objects that are older than the limit are dropped. Owned by the
// service; any thread, one at a time inside.
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

namespace millrace::serve {

struct ObjectStoreOptions {
  std::string folder;  // empty: in memory
  size_t bytes_max = size_t{64} << 20;
  Duration age_max = Duration::Seconds(30.0 * 86400);
};

// The objects of one owner of which a page is listed.
inline constexpr int kObjectsListedMax = 100;

enum class ObjectKind : int { kResponse = 1, kFile = 2, kBatch = 3 };

struct StoredObject {
  ObjectKind kind = ObjectKind::kResponse;
  std::string owner;  // Call::owner
  std::string id;
  int64_t created_s = 0;  // Unix time
  bool open = false;      // the server still works on it; it is not dropped
  std::string body;       // JSON text: the object as its owner sees it
  std::string content;    // a file's bytes; of others, what the server needs to go on
  std::string events;     // the stream of a response, for clients that fetch it again
};

class ObjectStore {
 public:
  // Creates the folder and the database if there are none. kFailedPrecondition: another process
  // has the folder. kDataLoss: the file is no store of this format.
  static Result<std::unique_ptr<ObjectStore>> Open(const ObjectStoreOptions& options);
  ~ObjectStore();

  // Inserts or replaces. kResourceExhausted if there is no room for it.
  Status Put(const StoredObject& object);
  // Stores the batch, which has ended, and the files of its results in place of its lines: all of
  // it or nothing.
  Status PutEndedBatch(const StoredObject& batch, const std::vector<StoredObject>& files);
  // kNotFound with a text for the client: the object is of another owner, dropped or never was.
  Result<StoredObject> Get(ObjectKind kind, const std::string& owner, const std::string& id);
  Status Delete(ObjectKind kind, const std::string& owner, const std::string& id);
  // The newest first, without content and events: up to `count` that were stored before `after`
  // (empty: before now).
  Result<std::vector<StoredObject>> List(ObjectKind kind, const std::string& owner,
                                         const std::string& after, int count);
  // The ones that are open, of all owners, in the order in which they were stored.
  Result<std::vector<StoredObject>> ListOpen(ObjectKind kind);

  // The results of a batch, one per line of its file. They go with the batch.
  struct BatchLine {
    int64_t number = 0;
    bool failed = false;
    std::string text;  // a line of the output file, or of the error file
  };
  Status PutBatchLine(const std::string& batch, const BatchLine& line);
  Result<std::vector<BatchLine>> BatchLines(const std::string& batch);

  // Drops what is older than the limit.
  Status DropOld(int64_t now_s);

 private:
  class Impl;
  explicit ObjectStore(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::serve
