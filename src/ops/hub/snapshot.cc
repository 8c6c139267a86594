#include "ops/hub/snapshot.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/folder.h"
#include "model/weight_files.h"
#include "ops/hub/blob_download.h"
#include "ops/hub/listing.h"

namespace millrace::ops {
namespace {

namespace fs = std::filesystem;

constexpr int kListingAttempts = 3;
constexpr int64_t kSmallFileBytesMax = model::kIndexBytesMax;
constexpr size_t kCommitShown = 12;

// "refs/pr/1" is one part of a path at the hub.
std::string Escaped(std::string_view revision) {
  std::string out;
  for (const char c : revision) out += c == '/' ? "%2F" : std::string(1, c);
  return out;
}

// A file of the snapshot and the bytes it needs.
struct Part {
  std::string name;
  HubBlob blob;
};

class SnapshotDownload {
 public:
  SnapshotDownload(HubClient& client, const model::HubRepository& repository,
                   const SnapshotOptions& options)
      : client_(client), repository_(repository), options_(options) {}

  Result<std::string> Run();

 private:
  Status GetListing();
  Status MakeFolders();
  Result<HubBlob> BlobOf(const std::string& name);
  Result<HubBlob> BlobByHead(const std::string& name);
  Status GetSmall(const std::string& name);
  Status Get(const Part& part, const std::function<void(int64_t)>& on_bytes);
  Status Link(const Part& part);
  Status CheckConfig() const;
  Status CheckSpace(int64_t bytes) const;
  Status GetWeights();

  std::string FilePath(const std::string& name) const {
    return fmt::format("/{}/resolve/{}/{}", repository_.name, listing_.commit, name);
  }
  std::string What(const std::string& name) const { return repository_.name + ", " + name; }

  HubClient& client_;
  const model::HubRepository& repository_;
  const SnapshotOptions& options_;
  HubListing listing_;
  std::string folder_;
};

Status SnapshotDownload::GetListing() {
  std::string text;
  HubCall call{.path = fmt::format("/api/models/{}/revision/{}?blobs=true", repository_.name,
                                   Escaped(options_.revision))};
  call.what = fmt::format("model {}", repository_.name);
  if (options_.revision != model::kMainRevision) call.what += " at " + options_.revision;
  call.on_head = [&](const HubHead&) {
    text.clear();
    return OkStatus();
  };
  call.on_data = [&](std::string_view part) {
    text += part;
    if (text.size() <= kListingBytesMax) return OkStatus();
    return Status(StatusCode::kTooLarge,
                  fmt::format("{}: the hub's list of files exceeds the limit of {}", call.what,
                              FormatBytes(kListingBytesMax)));
  };
  RetryPolicy policy = options_.retries;
  policy.attempts = std::min(policy.attempts, kListingAttempts);
  Retries retries(policy);
  for (HubResult result = client_.Call(call); !result.status.ok(); result = client_.Call(call)) {
    MR_RETURN_IF_ERROR(retries.Next(result, false));
  }
  MR_ASSIGN_OR_RETURN(listing_, ParseHubListing(text));
  return CheckHubListing(listing_, repository_.name);
}

Status SnapshotDownload::MakeFolders() {
  folder_ = repository_.Snapshot(listing_.commit);
  const fs::path folders[] = {folder_, fs::path(repository_.Blob("x")).parent_path(),
                              fs::path(repository_.Ref(options_.revision)).parent_path()};
  for (const fs::path& folder : folders) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      return FailedPrecondition(
          fmt::format("cannot create {}: {}; choose another cache with HF_HUB_CACHE",
                      Printable(folder.string(), 1024), error.message()));
    }
  }
  return OkStatus();
}

// The file's headers, for a hub whose list of files has no digests.
Result<HubBlob> SnapshotDownload::BlobByHead(const std::string& name) {
  HubHead head;
  HubCall call{.path = FilePath(name), .what = What(name), .head_only = true};
  call.on_head = [&](const HubHead& said) {
    head = said;
    return OkStatus();
  };
  Retries retries(options_.retries);
  for (HubResult result = client_.Call(call); !result.status.ok(); result = client_.Call(call)) {
    MR_RETURN_IF_ERROR(retries.Next(result, false));
  }
  constexpr size_t kSha256Digits = 64;
  const bool sha256 = head.linked && head.etag.size() == kSha256Digits;
  const auto bytes = head.linked ? head.file_bytes : head.body_bytes;
  if (!IsEtag(head.etag) || !bytes || *bytes > kHubFileBytesMax) {
    return DataLoss(fmt::format("{}: the hub states no ETag and size for it", call.what));
  }
  return HubBlob{head.etag, *bytes, sha256 ? BlobDigest::kSha256 : BlobDigest::kNone};
}

Result<HubBlob> SnapshotDownload::BlobOf(const std::string& name) {
  const bool allowed = model::IsPlainName(name) || IsNamedTemplate(name);
  const HubFile* file = allowed ? listing_.Find(name) : nullptr;
  if (file == nullptr) {
    return DataLoss(fmt::format("{} names the file {}, which the repository does not have",
                                model::kIndexFile, Printable(name)));
  }
  if (file->blob) return *file->blob;
  return BlobByHead(name);
}

Status SnapshotDownload::Get(const Part& part, const std::function<void(int64_t)>& on_bytes) {
  const BlobSource source{.path = FilePath(part.name), .what = What(part.name)};
  const BlobPlace place{.file = repository_.Blob(part.blob.etag),
                        .lock = repository_.Lock(part.blob.etag)};
  MR_RETURN_IF_ERROR(DownloadBlob(client_, source, part.blob, place, options_.retries, on_bytes));
  return Link(part);
}

// snapshots/COMMIT/NAME -> ../../blobs/ETAG, replaced as a whole. A name may have one folder.
Status SnapshotDownload::Link(const Part& part) {
  const std::string link = folder_ + "/" + part.name;
  const bool in_folder = part.name.find('/') != std::string::npos;
  const std::string target = (in_folder ? "../../../blobs/" : "../../blobs/") + part.blob.etag;
  std::error_code error;
  if (in_folder) fs::create_directories(fs::path(link).parent_path(), error);
  if (fs::read_symlink(link, error) == target && !error) return OkStatus();
  const std::string made = fmt::format("{}.{}.tmp", link, ::getpid());
  ::unlink(made.c_str());
  if (::symlink(target.c_str(), made.c_str()) != 0 || ::rename(made.c_str(), link.c_str()) != 0) {
    return FailedPrecondition(fmt::format("cannot link {}: {}; the cache needs symbolic links",
                                          Printable(link, 1024), std::strerror(errno)));
  }
  return OkStatus();
}

Status SnapshotDownload::GetSmall(const std::string& name) {
  MR_ASSIGN_OR_RETURN(HubBlob blob, BlobOf(name));
  if (blob.bytes > kSmallFileBytesMax) {
    return Status(StatusCode::kTooLarge,
                  fmt::format("{} has {}, and the limit is {}", What(name), FormatBytes(blob.bytes),
                              FormatBytes(kSmallFileBytesMax)));
  }
  return Get({name, std::move(blob)}, [](int64_t) {});
}

Status SnapshotDownload::CheckConfig() const {
  MR_ASSIGN_OR_RETURN(const Json config, model::ReadConfig(folder_));
  return model::NewDecoder(config, repository_.name + "/config.json").status();
}

Status SnapshotDownload::CheckSpace(int64_t bytes) const {
  struct statvfs disk {};
  if (::statvfs(folder_.c_str(), &disk) != 0) return OkStatus();  // the write will say
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (free >= static_cast<double>(bytes)) return OkStatus();
  return FailedPrecondition(fmt::format(
      "{} needs {} more in {}, and {} is free: make room, or choose another disk with HF_HUB_CACHE",
      repository_.name, FormatBytes(bytes), Printable(repository_.cache, 1024),
      FormatBytes(static_cast<int64_t>(free))));
}

Status SnapshotDownload::GetWeights() {
  std::vector<std::string> names = {std::string(model::kSingleFile)};
  if (listing_.Find(model::kSingleFile) == nullptr) {
    MR_ASSIGN_OR_RETURN(names, model::WeightFileNames(folder_));
  }
  std::vector<Part> parts;
  int64_t bytes = 0, total = 0;
  for (std::string& name : names) {
    MR_ASSIGN_OR_RETURN(HubBlob blob, BlobOf(name));
    total += blob.bytes;
    bytes += blob.bytes - BytesHere(repository_.Blob(blob.etag), blob);
    parts.push_back({std::move(name), std::move(blob)});
  }
  MR_RETURN_IF_ERROR(CheckSpace(bytes));
  fmt::print(stderr, "Downloading {}, commit {}: {} of weights, {} of it missing, to {}\n",
             repository_.name, listing_.commit.substr(0, kCommitShown), FormatBytes(total),
             FormatBytes(bytes), Printable(repository_.folder(), 1024));
  const SteadyClock clock;
  Progress progress("Downloading", ProgressUnit::kBytes, bytes, stderr,
                    ProgressStyle::ForStream(stderr), clock);
  int64_t done = 0;  // of the parts before
  for (const Part& part : parts) {
    const int64_t before = BytesHere(repository_.Blob(part.blob.etag), part.blob);
    MR_RETURN_IF_ERROR(Get(
        part, [&](int64_t here) { progress.Update(done + std::max<int64_t>(0, here - before)); }));
    done += part.blob.bytes - before;
  }
  progress.Update(done);
  return OkStatus();
}

Result<std::string> SnapshotDownload::Run() {
  MR_RETURN_IF_ERROR(GetListing());
  MR_RETURN_IF_ERROR(MakeFolders());
  MR_RETURN_IF_ERROR(GetSmall(std::string(model::kConfigFile)));
  MR_RETURN_IF_ERROR(CheckConfig());
  for (const std::string& name : SmallFilesOf(listing_)) MR_RETURN_IF_ERROR(GetSmall(name));
  MR_RETURN_IF_ERROR(GetWeights());
  // Last, so that the revision names a snapshot that is whole.
  if (options_.revision != listing_.commit) {
    MR_RETURN_IF_ERROR(WriteFileWithMode(repository_.Ref(options_.revision), listing_.commit, 0644,
                                         ExistingFile::kReplace));
  }
  return folder_;
}

}  // namespace

Result<std::string> DownloadSnapshot(HubClient& client, const model::HubRepository& repository,
                                     const SnapshotOptions& options) {
  return SnapshotDownload(client, repository, options).Run();
}

}  // namespace millrace::ops
