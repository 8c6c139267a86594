#include "cluster/journal/journal_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace millrace::cluster {
namespace {

constexpr std::string_view kBegin = "segment-";
constexpr std::string_view kEnd = ".journal";
constexpr size_t kDigits = 20;
constexpr std::string_view kHalfWrittenBegin = "snapshot";
constexpr std::string_view kHalfWrittenEnd = ".new";
constexpr const char* kNewestFile = "/newest";
constexpr size_t kNewestBytesMax = 32;

}  // namespace

std::string JournalSegmentPath(const std::string& folder, uint64_t number) {
  return fmt::format("{}/{}{:0{}}{}", folder, kBegin, number, kDigits, kEnd);
}

std::string JournalHalfWrittenPath(const std::string& folder, uint64_t term) {
  return fmt::format("{}/{}-{}{}", folder, kHalfWrittenBegin, term, kHalfWrittenEnd);
}

void RemoveHalfWritten(const std::string& folder) {
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kHalfWrittenBegin) || !name.ends_with(kHalfWrittenEnd)) continue;
    std::filesystem::remove(it->path(), ignored);
  }
}

Result<std::map<uint64_t, std::string>> JournalSegments(const std::string& folder) {
  std::map<uint64_t, std::string> segments;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    uint64_t number = 0;
    if (name.size() != kBegin.size() + kDigits + kEnd.size() || !name.starts_with(kBegin) ||
        !name.ends_with(kEnd)) {
      continue;
    }
    const char* digits = name.data() + kBegin.size();
    const auto parsed = std::from_chars(digits, digits + kDigits, number);
    if (parsed.ec != std::errc() || parsed.ptr != digits + kDigits) continue;
    segments[number] = it->path().string();
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Unavailable(fmt::format("cannot read folder {}: {}", folder, error.message()));
  }
  return segments;
}

std::optional<uint64_t> NewestSegment(const std::string& folder) {
  const auto text = ReadFile(folder + kNewestFile, kNewestBytesMax);
  if (!text.ok()) return std::nullopt;
  uint64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, number);
  const bool whole = read.ec == std::errc() && read.ptr + 1 == end && *read.ptr == '\n';
  return whole ? std::optional(number) : std::nullopt;
}

void WriteNewestSegment(const std::string& folder, uint64_t number) {
  const Status written = WriteFileAtomically(folder + kNewestFile, fmt::format("{}\n", number));
  if (!written.ok()) MR_LOG(warn, "the journal's newest segment: {}", written.message());
}

Result<JournalFile> JournalFile::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  JournalFile file(fd, path);
  if (fd < 0 && errno == EEXIST) return FailedPrecondition(fmt::format("{} already exists", path));
  if (fd < 0) return file.Error("create");
  return file;
}

Status JournalFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error("write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status JournalFile::Sync() { return ::fdatasync(fd_.get()) == 0 ? OkStatus() : Error("sync"); }

Status JournalFile::Error(const char* what) const {
  return Unavailable(fmt::format("cannot {} {}: {}", what, path_, std::strerror(errno)));
}

Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && ::fsync(fd.get()) == 0) return OkStatus();
  return Unavailable(fmt::format("cannot sync folder {}: {}", folder, std::strerror(errno)));
}

Status MoveFile(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return OkStatus();
  return Unavailable(fmt::format("cannot rename {} to {}: {}", from, to, std::strerror(errno)));
}

Status MoveToNew(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return OkStatus();
  }
  if (errno == EEXIST) return FailedPrecondition(fmt::format("{} already exists", to));
  if (errno != EINVAL && errno != ENOSYS) {
    return Unavailable(fmt::format("cannot rename {} to {}: {}", from, to, std::strerror(errno)));
  }
  // The file system does not support RENAME_NOREPLACE.
  if (::access(to.c_str(), F_OK) == 0) {
    return FailedPrecondition(fmt::format("{} already exists", to));
  }
  return MoveFile(from, to);
}

}  // namespace millrace::cluster
