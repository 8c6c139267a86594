#include "serve/stored/stored_routes.h"

#include <utility>

#include "base/log.h"
#include "serve/later.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

constexpr size_t kStoreCallsWaitingMax = 1024;
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
                          .draining = host.draining,
                          .clock = host.clock}),
      batches_(
          {.store = *store_,
           .queue = host.queue,
           .call = std::move(host.call),
           .on_disk_soon = [this](std::function<void()> task) { OnDiskSoon(std::move(task)); },
           .draining = host.draining,
           .now_s = UnixSeconds},
          [this](Call call, std::function<void(Call)> task) {
            OnDisk(std::move(call), std::move(task));
          },
          routes.new_id),
      pool_(1, kStoreCallsWaitingMax) {}

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
  pool_.Post([this, task = std::move(task)] {
    task();
    registry_.Leave();
  });
}

void StoredRoutes::DropOld() {
  const int64_t now = clock_.Now().ns;
  if (dropped_old_ns_ != 0 && now - dropped_old_ns_ < kDropOldEvery.ns) return;
  dropped_old_ns_ = now;
  const Status dropped = store_->DropOld(UnixSeconds());
  if (!dropped.ok()) MR_LOG(warn, "old stored objects are not dropped: {}", dropped.message());
}

}  // namespace millrace::serve
