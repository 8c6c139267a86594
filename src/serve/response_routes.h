// ResponseRoutes: POST /v1/responses, and the routes of stored responses: fetch, follow, cancel,
// delete, input items. Owned by the service; any thread. The store is read on a thread of its own,
// because it may wait for the disk.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "serve/apis/responses_request.h"
#include "serve/http/worker_pool.h"
#include "serve/other_apis.h"
#include "serve/stored/background_queue.h"
#include "serve/stored/background_response.h"
#include "serve/stored/object_store.h"

namespace millrace::serve {

class ResponseRoutes {
 public:
  struct Host {
    ObjectStore& store;
    BackgroundQueue& queue;
    // Runs a call's task where it may wait for the disk, or answers the call with an error.
    std::function<void(Call call, std::function<void(Call)> task)> on_disk;
    // Runs a task of that owner where it may wait for the disk. False: there is no room for it.
    std::function<void(const std::string& owner, size_t bytes, std::function<void(bool)> task)>
        store_soon;
    StorePatiently store_patiently;
    std::function<bool()> draining;
    const Clock& clock;
  };
  ResponseRoutes(ChatRoutes routes, Host host)
      : routes_(std::move(routes)), host_(std::move(host)) {}

  void AddTo(RouteTable& table);
  // Posts the responses that the previous process left to the queue. Once, before the queue starts.
  void RunLeft();

 private:
  using Name = std::pair<std::string, std::string>;  // owner, id

  void Create(Call call);
  // `body`: the call's, parsed.
  void CreateAfter(Call call, const Json& body, const ResponsesOptions& options);
  void CreateFrom(Call call, const Json& body, const ResponsesOptions& options,
                  const OrderedJson* earlier);
  void CreateInBackground(Call call, ResponseRecord record, const OrderedJson& chat);
  // Stores a response that was computed for a client.
  void StoreEnded(const std::shared_ptr<ResponseRecord>& ended, std::function<void(bool)> stored);
  // The error of a request that cannot be computed, as far as it can be told at once.
  std::optional<ApiError> Check(const OrderedJson& chat, const net::HttpReply& client) const;
  void Run(const std::shared_ptr<BackgroundResponse>& run,
           std::function<void(BackgroundQueue::End)> end);
  bool Post(const std::shared_ptr<BackgroundResponse>& run);
  std::shared_ptr<BackgroundResponse> Running(const Name& name) const;

  void Fetch(Call call);
  void Follow(Call call, const std::string& id, uint64_t after);
  void InputItems(Call call, const std::string& id);
  void Delete(Call call);
  void Cancel(Call call);

  const ChatRoutes routes_;
  const Host host_;
  mutable Mutex mutex_;
  std::map<Name, std::shared_ptr<BackgroundResponse>> running_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::serve
