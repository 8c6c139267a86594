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
#include "serve/stored/stored_object.h"

namespace millrace::serve {

struct ObjectStoreOptions {
  std::string folder;  // empty: in memory
  size_t bytes_max = size_t{64} << 20;
  Duration age_max = Duration::Seconds(30.0 * 86400);
};

// The objects of one owner of which a page is listed.
inline constexpr int kObjectsListedMax = 100;

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
  // kDataLoss with a text for the client: it is damaged.
  Result<StoredObject> Get(ObjectKind kind, const std::string& owner, const std::string& id);
  Status Delete(ObjectKind kind, const std::string& owner, const std::string& id);
  // The newest first, without content and events: up to `count` that were stored before `after`
  // (empty: before now). A damaged one is left out, and the log says so.
  Result<std::vector<StoredObject>> List(ObjectKind kind, const std::string& owner,
                                         const std::string& after, int count);
  // The ones that are open, of all owners, in the order in which they were stored. A damaged one is
  // logged, closed and left out.
  Result<std::vector<StoredObject>> ListOpen(ObjectKind kind);
  // Nothing goes on with it any more, because its content makes no sense.
  Status Close(ObjectKind kind, const std::string& owner, const std::string& id);

  // The results of a batch, one per line of its file. They go with the batch. A damaged one is left
  // out, and the log says so.
  using BatchLine = StoredBatchLine;
  Status PutBatchLine(const std::string& batch, const BatchLine& line);
  Result<std::vector<BatchLine>> BatchLines(const std::string& batch);

  // Whether objects can be stored now: writes a little. For a folder only; in memory it is OK.
  Status TryWrite();

  // Drops what is older than the limit.
  Status DropOld(int64_t now_s);

 private:
  class Impl;
  explicit ObjectStore(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Runs `put` where it may wait for the disk, again and again for a while if the store is locked by
// another program, then `done`. For work without a client, whose amount is bounded.
using StorePatiently =
    std::function<void(std::function<Status()> put, std::function<void(const Status&)> done)>;

}  // namespace millrace::serve
