#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace millrace {
namespace {

// O_NONBLOCK, so that opening a FIFO without a writer cannot block.
Status OpenRegular(const std::string& path, int* fd, size_t* size) {
  *fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) {
    int error = errno;
    if (error == ENOENT || error == ENOTDIR) return NotFound(path + ": no such file");
    return FailedPrecondition(path + ": " + std::strerror(error));
  }
  struct stat st;
  if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(std::exchange(*fd, -1));
    return InvalidArgument(path + ": not a regular file");
  }
  *size = static_cast<size_t>(st.st_size);
  return OkStatus();
}

Status WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailedPrecondition(path + ": " + std::strerror(errno));
    content.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  int raw = -1;
  size_t size = 0;
  MR_RETURN_IF_ERROR(OpenRegular(path, &raw, &size));
  UniqueFd fd(raw);
  if (size > max_bytes) {
    return Status(StatusCode::kTooLarge,
                  fmt::format("{}: {} bytes, the limit is {}", path, size, max_bytes));
  }
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    ssize_t n = read(fd.get(), content.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return DataLoss(path + ": " + std::strerror(errno));
    if (n == 0) return DataLoss(path + ": shrank while it was being read");
    done += static_cast<size_t>(n);
  }
  return content;
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  std::string temporary = path + ".tmp";
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return FailedPrecondition(temporary + ": " + std::strerror(errno));
  MR_RETURN_IF_ERROR(WriteAll(fd.get(), temporary, content));
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return FailedPrecondition(path + ": " + std::strerror(errno));
  }
  return OkStatus();
}

Status WriteFileWithMode(const std::string& path, std::string_view content, unsigned mode,
                         ExistingFile existing) {
  std::string temporary = path + ".XXXXXX";
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));  // 0600
  if (fd.get() < 0) return FailedPrecondition(path + ": " + std::strerror(errno));
  Status status = WriteAll(fd.get(), temporary, content);
  if (status.ok() && fchmod(fd.get(), mode) != 0) {
    status = FailedPrecondition(path + ": " + std::strerror(errno));
  }
  if (status.ok() && existing == ExistingFile::kReplace &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return OkStatus();
  }
  // link() never replaces an existing file; rename() would.
  if (status.ok() &&
      (existing == ExistingFile::kReplace || link(temporary.c_str(), path.c_str()) != 0)) {
    status = FailedPrecondition(path + ": " + std::strerror(errno));
  }
  unlink(temporary.c_str());
  return status;
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  int raw = -1;
  size_t size = 0;
  MR_RETURN_IF_ERROR(OpenRegular(path, &raw, &size));
  UniqueFd fd(raw);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return FailedPrecondition(path + ": mmap: " + std::strerror(errno));
  return MappedFile(static_cast<const uint8_t*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

namespace {

// madvise needs page-aligned starts; `inward` excludes pages that are only partly covered.
void Advise(const uint8_t* data, size_t size, size_t offset, size_t length, int advice,
            bool inward) {
  if (data == nullptr || offset >= size) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t begin = offset, end = std::min(size, offset + length);
  if (inward) {
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin < end) madvise(const_cast<uint8_t*>(data) + begin, end - begin, advice);
}

}  // namespace

void MappedFile::Prefetch(size_t offset, size_t size) const {
  Advise(data_, size_, offset, size, MADV_WILLNEED, false);
}

void MappedFile::Release(size_t offset, size_t size) const {
  Advise(data_, size_, offset, size, MADV_DONTNEED, true);
}

}  // namespace millrace
