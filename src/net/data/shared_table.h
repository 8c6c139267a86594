// The owner's side of shared memory: the memory that this plane has allocated, and the location of
// bytes in it. Owned by the plane; the memory may outlive it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "net/data/direct_read.h"
#include "net/data/hello.h"
#include "net/shared_memory.h"

namespace millrace::net {

struct SharedPlaces {
  std::vector<SharedSegment> segments;
  std::vector<std::shared_ptr<const SharedMemory>> holders;  // of the memory that contains them
};

class SharedTable {
 public:
  SharedTable() : state_(std::make_shared<State>()) {}

  // Until Close, `on_gone` is called with the number of each memory that was released by all its
  // holders, on any thread and under a lock.
  void Open(const Nonce& cookie, std::function<void(uint64_t number)> on_gone);
  void Close();

  Result<std::shared_ptr<SharedMemory>> Allocate(size_t bytes);
  // Locates the segments, if all of them are in shared memory.
  std::optional<SharedPlaces> Find(std::span<const std::span<const std::byte>> segments) const;

 private:
  struct State {
    Mutex mutex;
    Nonce cookie MR_GUARDED_BY(mutex) = {};
    std::function<void(uint64_t)> on_gone MR_GUARDED_BY(mutex);
    uint64_t made MR_GUARDED_BY(mutex) = 0;
    // By start address.
    std::map<const std::byte*, std::weak_ptr<const SharedMemory>> memory MR_GUARDED_BY(mutex);
  };

  const std::shared_ptr<State> state_;
};

}  // namespace millrace::net
