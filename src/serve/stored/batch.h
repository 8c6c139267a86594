// Batch: a batch that runs. It keeps a few of its requests in the background queue, stores each
// result as it comes, and writes the files of its results at the end. Its routes and its requests
// own it. Any thread.
//
// Clients see its state as OpenAI's batch object. A batch whose server ends goes on with the next
// one: what has a result is not asked again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/http/router.h"
#include "serve/stored/background_queue.h"
#include "serve/stored/batch_lines.h"
#include "serve/stored/object_store.h"

namespace millrace::serve {

// Of one batch; the queue bounds all together.
inline constexpr int kBatchRequestsRunningMax = 32;

struct BatchHost {
  ObjectStore& store;
  BackgroundQueue& queue;
  std::function<void(Call)> call;                           // routes a request
  std::function<void(std::function<void()>)> on_disk_soon;  // for what may wait for the disk
  StorePatiently store_patiently;
  std::function<bool()> draining;
  std::function<int64_t()> now_s;  // Unix time
};

class Batch : public std::enable_shared_from_this<Batch> {
 public:
  // `object`: the batch object. `done`: results of an earlier run. `ended` is called once.
  Batch(std::string owner, Json object, std::vector<BatchRequest> requests,
        const std::vector<ObjectStore::BatchLine>& done, const BatchHost& host,
        std::function<void()> ended);

  void Start();
  // Starts no more of its requests; those that run come to their end.
  void Cancel();
  // As of now.
  Json object() const;
  StoredObject stored() const;

 private:
  class Reply;
  using EndJob = std::function<void(BackgroundQueue::End)>;

  void Feed();
  void Run(size_t index, const EndJob& end);
  // nullopt: the request ended without an answer.
  void TakeAnswer(size_t index, const std::optional<net::HttpResponse>& answer, const EndJob& end);
  void TakeResult(size_t index, bool failed, const Json& line, const EndJob& end);
  void Stored(const StoredBatchLine& line, const Status& put);
  void Stop(const char* status) MR_REQUIRES(mutex_);
  void Finish();
  std::vector<StoredObject> ResultFiles(const std::string& status, Json& object) const;

  const std::string owner_, id_, endpoint_;
  const int64_t expires_s_;
  const std::vector<BatchRequest> requests_;
  const BatchHost host_;
  const std::function<void()> ended_;
  mutable Mutex mutex_;
  Json object_ MR_GUARDED_BY(mutex_);
  std::set<int> done_ MR_GUARDED_BY(mutex_);   // line numbers with a result
  size_t next_ MR_GUARDED_BY(mutex_) = 0;      // of requests_, to start
  int running_ MR_GUARDED_BY(mutex_) = 0;      // in the queue or further
  std::string stopped_ MR_GUARDED_BY(mutex_);  // the last status, if it is stopped early
  std::string failure_ MR_GUARDED_BY(mutex_);  // why its results cannot be stored
  bool left_ MR_GUARDED_BY(mutex_) = false;    // the server ends
  bool finishing_ MR_GUARDED_BY(mutex_) = false;
};

// The batch object of a new batch.
Json NewBatchObject(const std::string& id, const std::string& endpoint,
                    const std::string& input_file, const std::string& window, int64_t now_s,
                    int64_t expires_s, Json metadata);
Json FileObject(const std::string& id, size_t bytes, int64_t created_s, const std::string& filename,
                const std::string& purpose);

}  // namespace millrace::serve
