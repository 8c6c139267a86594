// The memory that a plane may serve without a pin, and its current users. Owned by the plane. Any
// thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "base/status.h"
#include "net/data/data_plane.h"

namespace millrace::net {

class RegionTable {
 public:
  RegionTable();

  RegionId Register(std::span<const std::byte> memory);
  // Waits until every pin on it is dropped.
  void Unregister(RegionId region);

  // Keeps `source` readable until dropped: its own pin, or one on the regions that contain its
  // segments. An error, the handler's fault, when neither does. The pin may outlive the table.
  Result<std::shared_ptr<const void>> PinFor(const PullSegments& source);

 private:
  struct Region {
    std::span<const std::byte> memory;
    size_t pins = 0;
    bool closing = false;
  };
  struct State {
    Mutex mutex;
    CondVar unpinned;
    std::map<RegionId, Region> regions MR_GUARDED_BY(mutex);
    uint64_t made MR_GUARDED_BY(mutex) = 0;
  };
  struct Pin;

  const std::shared_ptr<State> state_;
};

}  // namespace millrace::net
