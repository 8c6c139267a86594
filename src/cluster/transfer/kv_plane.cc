#include "cluster/transfer/kv_plane.h"

#include <utility>

#include "cluster/transfer/pull_window.h"

namespace millrace::cluster {

void KvPlane::Use(net::DataPlane* plane) {
  plane_ = plane;
  exchange_.Use(
      {.self = {Incarnation(plane->self().incarnation), plane->self().host_id},
       .ask = [plane](const KvSource& source, const stage::TransferItem& item,
                      std::span<std::byte> to, std::function<void(Status, uint64_t)> done) {
         plane->Pull(DataAddress(source.from), Encode(KvRequest{source.handle, item}), to,
                     kPullPartLimit, std::move(done));
       }});
}

Result<net::PullSource> KvPlane::Serve(const KvRequest& request) {
  PullBuffer buffer;
  MR_RETURN_IF_ERROR(exchange_.Serve(request.handle, request.item, [&](size_t size) {
    buffer = staging_.Take(*plane_, size);
    return buffer.bytes;
  }));
  return net::PullSource(net::PullSegments{{buffer.bytes}, buffer.pin});
}

}  // namespace millrace::cluster
