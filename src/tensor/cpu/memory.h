// HostMemory: pages from the kernel, zero and free of cost until touched, so that an unused part of
// a KV pool takes no memory. Large ones ask for huge pages: weights and caches are streamed, and a
// TLB miss per 4 KiB would slow that down. Owned by one object; movable.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace millrace::tensor {

class HostMemory {
 public:
  HostMemory() = default;
  // At least `bytes` bytes, aligned to 64. kResourceExhausted when there is no memory for it;
  // `what` names the purpose in the message.
  static Result<HostMemory> Allocate(size_t bytes, const char* what, bool huge_pages = true);
  HostMemory(HostMemory&& other) noexcept { *this = static_cast<HostMemory&&>(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives the whole pages of the range back to the kernel; they are zero when touched again. Any
  // thread, while no other uses these pages.
  void Return(size_t offset, size_t bytes);
  // Touches the pages of the range; their content stays. Any thread, while others use them.
  // kUnimplemented: this kernel (before 5.14) has no call for it. kResourceExhausted: there is no
  // memory.
  Status Populate(size_t offset, size_t bytes);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

// MemoryArena: many weights in few mappings. A separate mapping of a megabyte or two would get no
// huge pages, or would waste most of one. When a piece is gone, the kernel gets the pages back that
// it alone used; with the last piece, the mapping. Not thread-safe, but pieces may outlive the
// arena and end on any thread.
class MemoryArena {
 public:
  struct Piece {
    std::shared_ptr<const void> owner;
    void* data = nullptr;  // aligned to 64
  };
  Result<Piece> Allocate(size_t bytes, const char* what);

 private:
  std::shared_ptr<HostMemory> open_;  // the mapping that still has room
  size_t used_ = 0;                   // bytes of it
};

// a * b * ..., or the largest size_t when that overflows.
template <typename... T>
size_t SaturatingProduct(T... factors) {
  size_t product = 1;
  for (size_t factor : {static_cast<size_t>(factors)...}) {
    if (__builtin_mul_overflow(product, factor, &product)) return ~size_t{0};
  }
  return product;
}

}  // namespace millrace::tensor
