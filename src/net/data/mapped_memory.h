// The reader's side of shared memory. It maps each memory that a peer on this host shares
// (net/shared_memory.h) once, and unmaps it when the peer releases it or is lost.
//
// The peer is untrusted: the file must be kernel memory (never a pipe or a device), carry the
// peer's cookie, be sealed so that it cannot shrink while mapped, and contain the range to be read.
// Owned by a link; one thread. A Mapping may be kept longer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "net/data/hello.h"

namespace millrace::net {

// Read-only, unmapped by the destructor.
class Mapping {
 public:
  Mapping(const std::byte* data, size_t size) : data_(data), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const;  // without the header

 private:
  const std::byte* const data_;
  const size_t size_;  // of the whole file
};

class MappedMemory {
 public:
  // Per peer. The least recently used mapping is replaced.
  static constexpr size_t kMappingsMax = 16;

  MappedMemory(int64_t process_id, const Nonce& cookie)
      : process_id_(process_id), cookie_(cookie) {}

  // kUnavailable: it cannot be opened here, or is not the peer's. Other errors are the peer's
  // fault.
  Result<std::shared_ptr<const Mapping>> Get(uint64_t number, uint64_t descriptor);
  void Drop(uint64_t number);
  size_t size() const { return mappings_.size(); }

 private:
  Result<std::shared_ptr<const Mapping>> Map(uint64_t number, uint64_t descriptor) const;

  const int64_t process_id_;
  const Nonce cookie_;
  // most recently used first
  std::list<std::pair<uint64_t, std::shared_ptr<const Mapping>>> mappings_;
};

}  // namespace millrace::net
