#include "serve/stored_routes.h"

#include <cstdint>
#include <utility>

#include "base/log.h"
#include "base/task_barrier.h"
#include "serve/http/limits.h"
#include "serve/later.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

// A locked store is tried again at once: each call waits a moment itself.
constexpr int kStoreTriesMax = 100;
constexpr Duration kTryWriteEvery = Duration::Seconds(5);
constexpr Duration kDropOldEvery = Duration::Seconds(3600);

std::shared_ptr<ObjectStore> OrInMemory(std::shared_ptr<ObjectStore> given) {
  if (given) return given;
  auto store = ObjectStore::Open({});
  MR_CHECK(store.ok()) << store.status().ToString();
  return std::move(*store);
}

}  // namespace

StoredRoutes::StoredRoutes(ChatRoutes routes, Host host)
    : store_(OrInMemory(std::move(host.store))),
      registry_(host.registry),
      clock_(host.clock),
      responses_(routes, {.store = *store_,
                          .queue = host.queue,
                          .on_disk =
                              [this](Call call, std::function<void(Call)> task) {
                                OnDisk(std::move(call), std::move(task));
                              },
                          .store_soon =
                              [this](const std::string& owner, size_t bytes,
                                     std::function<void(bool)> task) {
                                StoreSoon(owner, bytes, std::move(task));
                              },
                          .store_patiently = Patiently(),
                          .draining = host.draining,
                          .clock = host.clock}),
      batches_(
          {.store = *store_,
           .queue = host.queue,
           .call = std::move(host.call),
           .on_disk_soon = [this](std::function<void()> task) { OnDiskSoon(std::move(task)); },
           .store_patiently = Patiently(),
           .draining = host.draining,
           .now_s = UnixSeconds},
          [this](Call call, std::function<void(Call)> task) {
            OnDisk(std::move(call), std::move(task));
          },
          routes.new_id),
      pool_({SIZE_MAX}, kBodiesWaitingMax, kBodyBytesWaitingMax) {}

void StoredRoutes::AddTo(RouteTable& table) {
  responses_.AddTo(table);
  batches_.AddTo(table);
}

void StoredRoutes::RunLeft() {
  responses_.RunLeft();
  batches_.RunLeft();
}

void StoredRoutes::OnDisk(Call call, std::function<void(Call)> task) {
  CallLater(pool_, registry_, "calls for stored objects", std::move(call),
            [this, task = std::move(task)](Call later) {
              DropOld();
              task(std::move(later));
            });
}

void StoredRoutes::OnDiskSoon(std::function<void()> task) {
  registry_.Enter();
  pool_.PostAlways([this, task = std::move(task)] {
    const RequestRegistry::LeaveAtEnd leave(registry_);
    task();
  });
}

void StoredRoutes::StoreSoon(const std::string& owner, size_t bytes,
                             std::function<void(bool)> task) {
  const auto shared = std::make_shared<std::function<void(bool)>>(std::move(task));
  const auto run = [this, shared](bool room) {
    const RequestRegistry::LeaveAtEnd leave(registry_);
    const auto taken = std::move(*shared);  // its reply ends before the registry says so
    taken(room);
  };
  registry_.Enter();
  pool_.Post({.owner = owner,
              .bytes = bytes,
              .run = [run] { run(true); },
              .unwanted = nullptr,
              .refuse = [run] { run(false); }});
}

StorePatiently StoredRoutes::Patiently() {
  return [this](std::function<Status()> put, std::function<void(const Status&)> done) {
    Store(std::move(put), std::move(done), kStoreTriesMax);
  };
}

void StoredRoutes::Store(std::function<Status()> put, std::function<void(const Status&)> done,
                         int tries) {
  OnDiskSoon([this, put = std::move(put), done = std::move(done), tries] {
    Status status;
    if (!RunTask("storing", [&] { status = put(); })) status = Internal("an exception");
    if (status.code() == StatusCode::kUnavailable && tries > 1) return Store(put, done, tries - 1);
    done(status);
  });
}

bool StoredRoutes::Writable() {
  const int64_t now = clock_.Now().ns;
  int64_t tried = tried_ns_;
  const bool due = tried == 0 || now - tried >= kTryWriteEvery.ns;
  if (due && tried_ns_.compare_exchange_strong(tried, now)) OnDiskSoon([this] { TryWrite(); });
  return writable_;
}

void StoredRoutes::TryWrite() {
  const Status written = store_->TryWrite();
  if (const bool was = writable_.exchange(written.ok()); was == written.ok()) return;
  if (written.ok()) {
    MR_LOG(info, "objects can be stored again");
  } else {
    MR_LOG(error, "objects cannot be stored: {}", written.message());
  }
}

void StoredRoutes::DropOld() {
  const int64_t now = clock_.Now().ns;
  if (dropped_old_ns_ != 0 && now - dropped_old_ns_ < kDropOldEvery.ns) return;
  dropped_old_ns_ = now;
  const Status dropped = store_->DropOld(UnixSeconds());
  if (!dropped.ok()) MR_LOG(warn, "old stored objects are not dropped: {}", dropped.message());
}

}  // namespace millrace::serve
