#include "ops/hub/blob_download.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "ops/hub/file_lock.h"
#include "ops/hub/partial_blob.h"

namespace millrace::ops {
namespace {

// Nearer to the end of the file than ever before, so that a call counts as none that failed. Bytes
// that were there already and come again are no progress.
constexpr int64_t kProgressBytes = 1 << 20;
constexpr auto kLockPoll = std::chrono::milliseconds(200);
constexpr Duration kOtherIdleLimit = Duration::Seconds(600);
constexpr int kWhole = 200, kNoSuchRange = 416;

std::optional<int64_t> SizeOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return info.st_size;
}

// Waits for the process that has the lock, as long as what it downloads grows.
class OtherProcess {
 public:
  OtherProcess(const BlobSource& source, std::string partial,
               const std::function<void(int64_t)>& on_bytes)
      : source_(source), partial_(std::move(partial)), on_bytes_(on_bytes) {}

  Status Wait() {
    const Time now = clock_.Now();
    const int64_t bytes = SizeOf(partial_).value_or(0);
    if (!since_) MR_LOG(info, "{}: another process downloads it", source_.what);
    if (!since_ || bytes != bytes_) since_ = now;
    bytes_ = bytes;
    on_bytes_(bytes);
    if (now - *since_ > kOtherIdleLimit) {
      return Unavailable(
          fmt::format("{}: another process has locked it and got nothing for {}: stop that process",
                      source_.what, FormatDuration(kOtherIdleLimit.seconds())));
    }
    std::this_thread::sleep_for(kLockPoll);
    return OkStatus();
  }

 private:
  const BlobSource& source_;
  const std::string partial_;
  const std::function<void(int64_t)>& on_bytes_;
  const SteadyClock clock_;
  std::optional<Time> since_;
  int64_t bytes_ = 0;
};

// Fits the head of an answer to what is there of the file.
Status TakeHead(const HubHead& head, const BlobSource& source, const HubBlob& blob,
                PartialBlob& partial) {
  const bool other = !head.etag.empty() && head.etag != blob.etag;
  if (partial.bytes() > 0 && head.status == kWhole) {  // the server ignores Range
    MR_RETURN_IF_ERROR(partial.StartAnew());
  } else if (partial.bytes() > 0 && (other || head.begin != partial.bytes())) {
    MR_RETURN_IF_ERROR(partial.StartAnew());
    return Unavailable(
        fmt::format("{}: the server has another file than the one begun", source.what));
  }
  if (head.body_bytes && *head.body_bytes != blob.bytes - partial.bytes()) {
    return DataLoss(
        fmt::format("{}: the server sends {} bytes, and {} are missing by the hub's list",
                    source.what, *head.body_bytes, blob.bytes - partial.bytes()));
  }
  return OkStatus();
}

// One call for the rest of the file.
HubResult CallForRest(HubClient& client, const BlobSource& source, const HubBlob& blob,
                      PartialBlob& partial, const std::function<void(int64_t)>& on_bytes) {
  HubCall call{.path = source.path, .what = source.what, .offset = partial.bytes()};
  call.on_head = [&](const HubHead& head) { return TakeHead(head, source, blob, partial); };
  call.on_data = [&](std::string_view part) {
    const Status status = partial.Append(part);
    on_bytes(partial.bytes());
    return status.ok() ? status : status.WithContext(source.what);
  };
  HubResult result = client.Call(call);
  if (result.http_status == kNoSuchRange) {
    result.status = partial.StartAnew();
    if (result.status.ok()) {
      result.status = Unavailable(source.what + ": the server has less of it than is here");
    }
  }
  if (result.status.ok() && partial.bytes() < blob.bytes) {
    result.status = Unavailable(fmt::format("{}: the answer ended after {} of {} bytes",
                                            source.what, partial.bytes(), blob.bytes));
  }
  return result;
}

}  // namespace

bool HasBlob(const std::string& file, const HubBlob& blob) { return SizeOf(file) == blob.bytes; }

int64_t BytesHere(const std::string& file, const HubBlob& blob) {
  if (HasBlob(file, blob)) return blob.bytes;
  const int64_t partial = SizeOf(PartialPath(file)).value_or(0);
  return partial <= blob.bytes ? partial : 0;
}

Status DownloadBlob(HubClient& client, const BlobSource& source, const HubBlob& blob,
                    const BlobPlace& place, const RetryPolicy& policy,
                    const std::function<void(int64_t)>& on_bytes) {
  if (HasBlob(place.file, blob)) return OkStatus();
  OtherProcess other(source, PartialPath(place.file), on_bytes);
  MR_ASSIGN_OR_RETURN(const FileLock lock,
                      FileLock::Take(place.lock, [&] { return other.Wait(); }));
  if (HasBlob(place.file, blob)) return OkStatus();
  MR_ASSIGN_OR_RETURN(const auto partial, PartialBlob::Open(place.file, blob));
  if (partial->bytes() > 0) {
    MR_LOG(info, "{}: continues at {} of {}", source.what, FormatBytes(partial->bytes()),
           FormatBytes(blob.bytes));
  }
  Retries retries(policy);
  int64_t furthest = partial->bytes();
  while (partial->bytes() < blob.bytes) {
    int64_t reached = partial->bytes();  // a call may begin anew, and end with nothing
    const HubResult result = CallForRest(client, source, blob, *partial, [&](int64_t bytes) {
      reached = std::max(reached, bytes);
      on_bytes(bytes);
    });
    if (result.status.ok()) break;
    const bool progressed = reached - furthest >= kProgressBytes;
    if (progressed) furthest = reached;
    const Status again = retries.Next(result, progressed);
    if (!again.ok()) {
      const bool names_file = again.message().find(source.what) != std::string::npos;
      return again.WithContext(names_file ? client.host()
                                          : fmt::format("{} from {}", source.what, client.host()));
    }
  }
  on_bytes(blob.bytes);
  return partial->Finish(source.what);
}

}  // namespace millrace::ops
