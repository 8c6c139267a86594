// SharedMemory: memory of this process that others on this host can map and read (a memfd that
// cannot shrink). DataPlane::AllocateShared creates it. A pull served from it costs a peer on this
// host no more than a copy. It is shared by its holders, among them the pulls that readers copy
// from it. When the last holder releases it, it is unmapped and the readers are notified to unmap
// it.
//
// Any thread may call it. The plane knows where the bytes are, but does not track writes to them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/status.h"

namespace millrace::net {

// Precedes the bytes and names the creator, so that a reader can check that it opened the right
// file.
struct SharedMemoryHeader {
  static constexpr uint64_t kMagic = 0x316d656d7372724d;  // "Mrrsmem1"

  uint64_t magic = kMagic;
  uint64_t number = 0;
  std::array<std::byte, 32> cookie = {};  // of the plane that created it
  friend bool operator==(const SharedMemoryHeader&, const SharedMemoryHeader&) = default;
};
inline constexpr size_t kSharedHeaderBytes = 4096;  // a page, so that the bytes begin on one

class SharedMemory {
 public:
  // Zeroed, page-aligned bytes; pages are taken when they are first written. `on_end` is called
  // before the memory is unmapped, on the thread of the last holder.
  static Result<std::shared_ptr<SharedMemory>> Create(size_t bytes,
                                                      const SharedMemoryHeader& header,
                                                      std::function<void()> on_end);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  uint64_t number() const { return number_; }  // unique within its plane; never reused
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::span<std::byte> bytes, uint64_t number,
               std::function<void()> on_end)
      : fd_(std::move(fd)), bytes_(bytes), number_(number), on_end_(std::move(on_end)) {}

  const UniqueFd fd_;
  const std::span<std::byte> bytes_;
  const uint64_t number_;
  const std::function<void()> on_end_;
};

}  // namespace millrace::net
