#include "net/data/mapped_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "net/shared_memory.h"

namespace millrace::net {
namespace {

Status CannotMap(int64_t process_id, const char* why) {
  return Unavailable(fmt::format("cannot map memory of process {}: {}", process_id, why));
}

// Checks the name first and opens it only when it is a file in the kernel's memory: opening
// anything else might block or have side effects. `path` names a descriptor of the peer.
Result<UniqueFd> OpenMemoryFile(int64_t process_id, const std::string& path) {
  const UniqueFd named(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct statfs file_system;
  struct stat file;
  if (named.get() < 0 || fstatfs(named.get(), &file_system) != 0 ||
      fstat(named.get(), &file) != 0) {
    return CannotMap(process_id, std::strerror(errno));
  }
  if (file_system.f_type != TMPFS_MAGIC || !S_ISREG(file.st_mode)) {
    return CannotMap(process_id, "it is not a file in memory");
  }
  UniqueFd fd(open(fmt::format("/proc/self/fd/{}", named.get()).c_str(),
                   O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) return CannotMap(process_id, std::strerror(errno));
  return fd;
}

}  // namespace

Mapping::~Mapping() { munmap(const_cast<std::byte*>(data_), size_); }

std::span<const std::byte> Mapping::bytes() const {
  return {data_ + kSharedHeaderBytes, size_ - kSharedHeaderBytes};
}

Result<std::shared_ptr<const Mapping>> MappedMemory::Get(uint64_t number, uint64_t descriptor) {
  const auto it = std::ranges::find(mappings_, number, [](const auto& m) { return m.first; });
  if (it != mappings_.end()) {
    mappings_.splice(mappings_.begin(), mappings_, it);
    return it->second;
  }
  MR_ASSIGN_OR_RETURN(auto mapping, Map(number, descriptor));
  mappings_.emplace_front(number, mapping);
  if (mappings_.size() > kMappingsMax) mappings_.pop_back();
  return mapping;
}

void MappedMemory::Drop(uint64_t number) {
  std::erase_if(mappings_, [number](const auto& m) { return m.first == number; });
}

Result<std::shared_ptr<const Mapping>> MappedMemory::Map(uint64_t number,
                                                         uint64_t descriptor) const {
  MR_ASSIGN_OR_RETURN(
      const UniqueFd fd,
      OpenMemoryFile(process_id_, fmt::format("/proc/{}/fd/{}", process_id_, descriptor)));
  SharedMemoryHeader header;
  if (pread(fd.get(), &header, sizeof(header), 0) != sizeof(header) ||
      header.magic != SharedMemoryHeader::kMagic || header.cookie != cookie_) {
    return CannotMap(process_id_, "it does not have the peer's cookie");
  }
  if (header.number != number) {
    return InvalidArgument(
        fmt::format("the owner named shared memory {}, but the file is {}", number, header.number));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("the owner shares memory that it could shrink");
  }
  struct stat file;  // after checking the seals: from now on it can only grow
  if (fstat(fd.get(), &file) != 0) return CannotMap(process_id_, std::strerror(errno));
  const auto size = static_cast<size_t>(file.st_size);
  if (size <= kSharedHeaderBytes) return InvalidArgument("the owner shares empty memory");
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return CannotMap(process_id_, std::strerror(errno));
  return std::make_shared<const Mapping>(static_cast<const std::byte*>(data), size);
}

}  // namespace millrace::net
