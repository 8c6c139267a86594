// StoredRoutes: what outlives a call: the store, the routes of responses, files and batches, and
// the thread on which they read and write it, because that may wait for the disk. Owned by the
// service; any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "serve/http/body_pool.h"
#include "serve/http/router.h"
#include "serve/observe/request_registry.h"
#include "serve/other_apis.h"
#include "serve/response_routes.h"
#include "serve/stored/background_queue.h"
#include "serve/stored/batch_routes.h"
#include "serve/stored/object_store.h"

namespace millrace::serve {

class StoredRoutes {
 public:
  struct Host {
    std::shared_ptr<ObjectStore> store;  // null: one in memory
    BackgroundQueue& queue;
    RequestRegistry& registry;
    std::function<void(Call)> call;  // calls the route of a request that the service makes itself
    std::function<bool()> draining;
    const Clock& clock;
  };
  StoredRoutes(ChatRoutes routes, Host host);

  // The table's handlers refer to this.
  void AddTo(RouteTable& table);
  // Whether objects could be stored when that was last tried; tries again soon. For /ready.
  bool Writable();
  // Posts what the previous process left to the queue. Once, before the queue starts.
  void RunLeft();

 private:
  void OnDisk(Call call, std::function<void(Call)> task);
  void OnDiskSoon(std::function<void()> task);
  // For what is stored while a client waits: the task gets false if there is no room for it.
  void StoreSoon(const std::string& owner, size_t bytes, std::function<void(bool)> task);
  StorePatiently Patiently();
  void Store(std::function<Status()> put, std::function<void(const Status&)> done, int tries);
  void DropOld();
  void TryWrite();

  const std::shared_ptr<ObjectStore> store_;
  RequestRegistry& registry_;
  const Clock& clock_;
  std::atomic<int64_t> dropped_old_ns_ = 0;  // when, by the clock
  std::atomic<int64_t> tried_ns_ = 0;        // when TryWrite was posted last
  std::atomic<bool> writable_ = true;
  ResponseRoutes responses_;
  BatchRoutes batches_;
  BodyPool pool_;  // last: joined first
};

}  // namespace millrace::serve
