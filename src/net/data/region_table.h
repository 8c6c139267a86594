// The memory a plane may serve without a pin, and who is serving from it. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/status.h"
#include "net/data_plane.h"

namespace millrace::net {

class RegionTable {
 public:
  RegionTable();

  RegionId Register(std::span<const std::byte> memory);
  // Waits until every pin on it is dropped.
  void Unregister(RegionId region);

  // What keeps `source` readable until dropped: its own pin, or one on the regions that hold its
  // segments. An error when neither holds them: the handler's fault. The pin may outlive the table.
  Result<std::shared_ptr<const void>> PinFor(const PullSegments& source);

 private:
  struct Region {
    std::span<const std::byte> memory;
    size_t pins = 0;
    bool closing = false;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable unpinned;
    std::map<RegionId, Region> regions;
    uint64_t made = 0;
  };
  struct Pin;

  const std::shared_ptr<State> state_;
};

}  // namespace millrace::net
