#include "net/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::net {
namespace {

constexpr size_t kSharedBytesMax = size_t{1} << 46;  // half of an address space

Status NoMemory(size_t bytes) {
  return ResourceExhausted(
      fmt::format("cannot allocate {} bytes of shared memory: {}", bytes, std::strerror(errno)));
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::Create(size_t bytes,
                                                           const SharedMemoryHeader& header,
                                                           std::function<void()> on_end) {
  if (bytes == 0 || bytes > kSharedBytesMax) {
    return InvalidArgument(fmt::format("{} bytes cannot be shared", bytes));
  }
  const size_t all = kSharedHeaderBytes + bytes;
  UniqueFd fd(memfd_create("millrace-pulls", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(all)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory(bytes);
  }
  void* data = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes);
  std::memcpy(data, &header, sizeof(header));
  const std::span<std::byte> place(static_cast<std::byte*>(data) + kSharedHeaderBytes, bytes);
  return std::shared_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), place, header.number, std::move(on_end)));
}

SharedMemory::~SharedMemory() {
  if (on_end_) on_end_();
  munmap(bytes_.data() - kSharedHeaderBytes, kSharedHeaderBytes + bytes_.size());
}

}  // namespace millrace::net
