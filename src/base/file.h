// Files: the owner of a descriptor; bounded reads and maps of content that is not trusted.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace millrace {

// A file descriptor, closed by its destructor. Owned by one thread at a time.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}  // what a system call returned; below zero: none
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    UniqueFd(std::move(other)).Swap(*this);
    return *this;
  }
  ~UniqueFd() {
    if (valid()) close(fd_);
  }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, kNone); }

 private:
  static constexpr int kNone = -1;
  void Swap(UniqueFd& other) { std::swap(fd_, other.fd_); }
  int fd_ = kNone;
};

// Reads a whole regular file. kNotFound when it does not exist, kTooLarge beyond `max_bytes`,
// kInvalidArgument for anything that is not a regular file (FIFO, device, folder).
Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Writes beside the target and renames over it: readers see the old file or the new one.
Status WriteFileAtomically(const std::string& path, std::string_view content);

// The same for a file with its own permissions, such as 0600 for a secret: it never has wider ones,
// whatever the umask. kFailedPrecondition when it exists and may not be replaced.
enum class ExistingFile { kKeep, kReplace };
Status WriteFileWithMode(const std::string& path, std::string_view content, unsigned mode,
                         ExistingFile existing);

// A read-only map of a regular file, unmapped by the destructor. Any thread may read.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  // Tells the kernel that [offset, offset + size) will be needed soon.
  void Prefetch(size_t offset, size_t size) const;
  // Releases the pages of [offset, offset + size); they are read from the file again if touched.
  void Release(size_t offset, size_t size) const;

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace millrace
