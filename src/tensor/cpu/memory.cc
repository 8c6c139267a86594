#include "tensor/cpu/memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace millrace::tensor {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
// Kernels may read (never write) up to one vector past the end.
constexpr size_t kSlackBytes = 128;
constexpr size_t kArenaBytes = size_t{64} << 20;

}  // namespace

Result<HostMemory> HostMemory::Allocate(size_t bytes, const char* what, bool huge_pages) {
  auto refuse = [&] {
    return ResourceExhausted(
        fmt::format("no memory for {} ({} bytes); use a smaller one or free memory", what, bytes));
  };
  if (bytes > std::numeric_limits<size_t>::max() / 2) return refuse();
  const bool huge = huge_pages && bytes >= 2 * kHugePageBytes;
  const size_t alignment = huge ? kHugePageBytes : kPageBytes;
  const size_t mapped =
      (bytes + kSlackBytes + (huge ? alignment : 0) + kPageBytes - 1) & ~(kPageBytes - 1);
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return refuse();
  HostMemory memory;
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = mapped;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  memory.data_ = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
  memory.bytes_ = bytes;
  // A hint: if the kernel declines it, the memory still works.
  if (huge) madvise(memory.data_, bytes, MADV_HUGEPAGE);
  if (!huge_pages) madvise(mapping, mapped, MADV_NOHUGEPAGE);
  return memory;
}

void HostMemory::Return(size_t offset, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data_) + offset;
  const uintptr_t begin = (address + kPageBytes - 1) & ~(kPageBytes - 1);
  const uintptr_t end = (address + bytes) & ~(kPageBytes - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Status HostMemory::Populate(size_t offset, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data_) + offset;
  const uintptr_t begin = address & ~(kPageBytes - 1);
  const uintptr_t end = (address + bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  for (;;) {
    if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) {
      return OkStatus();
    }
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return Unimplemented("the kernel is older than 5.14");
    return ResourceExhausted(fmt::format("{} bytes: {}", bytes, std::strerror(errno)));
  }
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

Result<MemoryArena::Piece> MemoryArena::Allocate(size_t bytes, const char* what) {
  // A piece that would fill most of a mapping gets its own.
  if (bytes > kArenaBytes / 4) {
    MR_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Allocate(bytes, what));
    auto owner = std::make_shared<const HostMemory>(std::move(memory));
    return Piece{owner, owner->data()};
  }
  if (open_ == nullptr || bytes > kArenaBytes - used_) {
    MR_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Allocate(kArenaBytes, what));
    open_ = std::make_shared<HostMemory>(std::move(memory));
    used_ = 0;
  }
  void* const data = static_cast<char*>(open_->data()) + used_;
  const auto give_back = [mapping = open_, offset = used_, bytes](const void*) {
    mapping->Return(offset, bytes);
  };
  used_ += (bytes + 63) / 64 * 64;
  return Piece{std::shared_ptr<const void>(data, give_back), data};
}

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

}  // namespace millrace::tensor
