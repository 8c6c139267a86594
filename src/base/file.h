// Reading files whose content is not trusted: bounded reads and read-only maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace millrace {

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
