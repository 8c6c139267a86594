// The owner's side of shared memory: what this plane has made, and where bytes lie in it. Owned by
// the plane; the memory may outlive it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "net/data/direct_read.h"
#include "net/data/hello.h"
#include "net/shared_memory.h"

namespace millrace::net {

struct SharedPlaces {
  std::vector<SharedSegment> segments;
  std::vector<std::shared_ptr<const SharedMemory>> holders;  // of the memory they lie in
};

class SharedTable {
 public:
  SharedTable() : state_(std::make_shared<State>()) {}

  // `on_gone` is told the number of memory that nobody holds any more, on any thread and under a
  // lock, until Close.
  void Open(const Nonce& cookie, std::function<void(uint64_t number)> on_gone);
  void Close();

  Result<std::shared_ptr<SharedMemory>> Allocate(size_t bytes);
  // Where the segments lie, when all of them lie in shared memory.
  std::optional<SharedPlaces> Find(std::span<const std::span<const std::byte>> segments) const;

 private:
  struct State {
    std::mutex mutex;
    Nonce cookie = {};
    std::function<void(uint64_t)> on_gone;
    uint64_t made = 0;
    std::map<const std::byte*, std::weak_ptr<const SharedMemory>> memory;  // by its begin
  };

  const std::shared_ptr<State> state_;
};

}  // namespace millrace::net
