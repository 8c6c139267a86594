// BatchRoutes: /v1/files and /v1/batches, OpenAI's batch API. Files and batches are in the store;
// batches run in the background and go on after a restart. Owned by the service; any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "serve/http/router.h"
#include "serve/stored/batch.h"

namespace millrace::serve {

// Of all keys together. A batch holds its file in memory while it runs.
inline constexpr size_t kBatchesRunningMax = 64;

class BatchRoutes {
 public:
  using OnDisk = std::function<void(Call call, std::function<void(Call)> task)>;
  BatchRoutes(BatchHost host, OnDisk on_disk,
              std::function<std::string(const std::string& prefix)> new_id)
      : host_(std::move(host)), on_disk_(std::move(on_disk)), new_id_(std::move(new_id)) {}

  void AddTo(RouteTable& table);
  // Starts the batches that the previous process left. Once, before the queue starts.
  void RunLeft();

 private:
  using Name = std::pair<std::string, std::string>;  // owner, id

  void CreateFile(const Call& call);
  void ListFiles(const Call& call);
  void OneFile(const Call& call);
  void DeleteFile(const Call& call);
  void CreateBatch(const Call& call);
  void ListBatches(const Call& call);
  void OneBatch(const Call& call);
  void CancelBatch(const Call& call);

  void List(const Call& call, ObjectKind kind);
  // Runs it, unless its file cannot be used or too many run; then `object` says why.
  void Begin(const std::string& owner, Json& object);
  // The object of a batch that has ended.
  Result<Json> Stored(const std::string& owner, const std::string& id);
  std::shared_ptr<Batch> Running(const Name& name) const;
  bool IsInput(const std::string& owner, const std::string& file) const;

  const BatchHost host_;
  const OnDisk on_disk_;
  const std::function<std::string(const std::string&)> new_id_;
  mutable Mutex mutex_;
  std::map<Name, std::shared_ptr<Batch>> running_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::serve
