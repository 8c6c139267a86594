// Reading files whose content is not trusted: bounded reads and read-only maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace millrace {

// The whole of a regular file. kNotFound when it is not there, kTooLarge beyond `max_bytes`,
// kInvalidArgument for anything that is not a regular file (FIFO, device, folder).
Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Writes beside the target and renames over it: readers see the old file or the new one.
Status WriteFileAtomically(const std::string& path, std::string_view content);

// The same for a file with permissions of its own, such as 0600 for a secret: nobody else can read
// it at any moment, whatever the umask. kFailedPrecondition when it exists and may not be replaced.
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
  // Tells the kernel that [offset, offset + size) is wanted soon.
  void Prefetch(size_t offset, size_t size) const;
  // Gives the pages of [offset, offset + size) back; they are read again from the file if touched.
  void Release(size_t offset, size_t size) const;

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace millrace
