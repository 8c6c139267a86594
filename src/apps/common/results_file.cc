#include "apps/common/results_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr Duration kSyncInterval = Duration::Seconds(1);

constexpr std::string_view kLineStart = "{\"custom_id\":";

// Whether a broken tail can be ours: the start of a line, or zeros that a crash left.
bool IsTornLine(std::string_view tail) {
  return tail.front() == '\0' || tail.starts_with(kLineStart.substr(0, tail.size()));
}

Status NotAResult(int number) {
  return DataLoss(fmt::format(
      "line {} is not a result with a custom_id; choose another file, or remove this one", number));
}

Status Failed(const std::string& path, const char* what) {
  return Unavailable(fmt::format("cannot {} {}: {}", what, Printable(path), std::strerror(errno)));
}

}  // namespace

Result<ExistingResults> ScanResults(std::string_view content) {
  ExistingResults results;
  int number = 0;
  while (results.whole_bytes < content.size()) {
    ++number;
    const std::string_view rest = content.substr(results.whole_bytes);
    const size_t length = rest.find('\n');
    const bool is_last = length == std::string_view::npos || length + 1 == rest.size();
    const auto json = ParseJson(rest.substr(0, length));
    if (is_last && (!json.ok() || length == std::string_view::npos)) {
      if (!IsTornLine(rest)) return NotAResult(number);
      break;
    }
    const size_t end = results.whole_bytes + length;
    if (!json.ok() || !json->is_object() || !json->contains("custom_id") ||
        !(*json)["custom_id"].is_string()) {
      return NotAResult(number);
    }
    results.ids.insert((*json)["custom_id"].get<std::string>());
    results.whole_bytes = end + 1;
  }
  return results;
}

Result<std::unique_ptr<ResultsFile>> ResultsFile::Open(const std::string& path,
                                                       const Clock& clock) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0644));
  if (!fd.valid()) return Failed(path, "open");
  std::unique_ptr<ResultsFile> file(new ResultsFile(std::move(fd), path, clock));
  if (flock(file->fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition(
        fmt::format("{} is being written by another run; wait for it", Printable(path)));
  }
  MR_ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kResultsBytesMax));
  auto existing = ScanResults(content);
  if (!existing.ok()) return existing.status().WithContext(Printable(path));
  file->ids_ = std::move(existing->ids);
  file->repaired_bytes_ = content.size() - existing->whole_bytes;
  if (file->repaired_bytes_ > 0 &&
      ftruncate(file->fd_.get(), static_cast<off_t>(existing->whole_bytes)) != 0) {
    return Failed(path, "repair");
  }
  return file;
}

Status ResultsFile::Append(const Json& line) {
  const std::string text = DumpJson(line) + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd_.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path_, "write");
    done += static_cast<size_t>(n);
  }
  ids_.insert(line.at("custom_id").get<std::string>());
  if (clock_.Now() - synced_ >= kSyncInterval) return Sync();
  return OkStatus();
}

Status ResultsFile::Sync() {
  synced_ = clock_.Now();
  // A pipe or a terminal cannot be synced, and need not be.
  if (fdatasync(fd_.get()) != 0 && errno != EINVAL) return Failed(path_, "write");
  return OkStatus();
}

}  // namespace millrace::apps
