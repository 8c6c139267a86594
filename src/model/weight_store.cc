#include "model/weight_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "base/sha256.h"
#include "model/config.h"
#include "model/describe.h"
#include "model/folder.h"
#include "model/safetensors.h"
#include "model/weight_files.h"

namespace millrace::model {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kSuffix = ".safetensors";

bool IsSmall(const WeightFile& file) { return !file.name.ends_with(kSuffix); }

Status CheckFile(const WeightFile& file) {
  const bool named =
      file.name == kConfigFile || file.name == kGenerationFile || file.name == kIndexFile ||
      (IsPlainName(file.name) && file.name.size() > kSuffix.size() && file.name.ends_with(kSuffix));
  if (!named) {
    return InvalidArgument(fmt::format("\"{}\" is not a weight file", Printable(file.name)));
  }
  const uint64_t most = IsSmall(file) ? kIndexBytesMax : kWeightFileBytesMax;
  if (file.bytes > most || (!IsSmall(file) && file.bytes < kLengthBytes)) {
    return InvalidArgument(
        fmt::format("{}: {} bytes is not a valid size", Printable(file.name), file.bytes));
  }
  return OkStatus();
}

Status Failed(const std::string& path, int error) {
  const std::string text = fmt::format("{}: {}", path, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? ResourceExhausted(text) : FailedPrecondition(text);
}

}  // namespace

WeightStore::WeightStore(std::string folder, std::vector<WeightFile> files)
    : folder_(std::move(folder)),
      files_(std::move(files)),
      fds_(files_.size(), -1),
      here_(files_.size()) {}

WeightStore::~WeightStore() {
  for (int fd : fds_) {
    if (fd >= 0) ::close(fd);
  }
}

Status WeightStore::Open(size_t file, int flags) {
  const std::string path = (std::filesystem::path(folder_) / files_[file].name).string();
  fds_[file] = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  return fds_[file] < 0 ? Failed(path, errno) : OkStatus();
}

Result<std::shared_ptr<WeightStore>> WeightStore::OfFolder(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, WeightFileNames(folder));
  names.insert(names.begin(), {std::string(kConfigFile), std::string(kGenerationFile)});
  std::vector<WeightFile> files;
  for (const std::string& name : names) {
    const Result<std::string> path = ResolveInFolder(folder, name);
    if (path.status().code() == StatusCode::kNotFound && name == kGenerationFile) continue;
    MR_RETURN_IF_ERROR(path.status());
    struct stat st;
    if (::stat(path->c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
      return NotFound(*path + ": not a regular file");
    }
    files.push_back({name, static_cast<uint64_t>(st.st_size)});
    MR_RETURN_IF_ERROR(CheckFile(files.back()).WithContext(folder));
  }
  std::shared_ptr<WeightStore> store(new WeightStore(folder, std::move(files)));
  const MutexLock lock(store->mutex_);
  for (size_t i = 0; i < store->files_.size(); ++i) {
    MR_RETURN_IF_ERROR(store->Open(i, O_RDONLY));
    if (store->files_[i].bytes > 0) store->here_[i][0] = store->files_[i].bytes;
  }
  return store;
}

Status WeightStore::CheckList(const std::vector<WeightFile>& files) {
  std::set<std::string> names;
  for (const WeightFile& file : files) {
    MR_RETURN_IF_ERROR(CheckFile(file));
    if (!names.insert(file.name).second) {
      return InvalidArgument(Printable(file.name) + " appears twice");
    }
  }
  if (files.size() > kShardsMax || !names.contains(std::string(kConfigFile))) {
    return InvalidArgument(fmt::format("a list of {} files is not a model's", files.size()));
  }
  return OkStatus();
}

Result<std::shared_ptr<WeightStore>> WeightStore::NewCopy(const std::string& folder,
                                                          std::vector<WeightFile> files) {
  MR_RETURN_IF_ERROR(CheckList(files));
  std::shared_ptr<WeightStore> store(new WeightStore(folder, std::move(files)));
  for (size_t i = 0; i < store->files_.size(); ++i) {
    MR_RETURN_IF_ERROR(store->Open(i, O_RDWR | O_CREAT | O_EXCL));
    if (::ftruncate(store->fds_[i], static_cast<off_t>(store->files_[i].bytes)) != 0) {
      return Failed(folder + "/" + store->files_[i].name, errno);
    }
  }
  return store;
}

bool WeightStore::Covers(const WeightRange& range) const {
  const auto& here = here_[range.file];
  const auto after = here.upper_bound(range.begin);
  return after != here.begin() && std::prev(after)->second >= range.end;
}

Status WeightStore::Check(const WeightRange& range) const {
  if (range.file >= files_.size() || range.begin >= range.end ||
      range.end > files_[range.file].bytes) {
    return InvalidArgument(
        fmt::format("bytes [{}, {}) of file {} do not exist", range.begin, range.end, range.file));
  }
  MutexLock lock(mutex_);
  if (Covers(range)) return OkStatus();
  return NotFound(fmt::format("bytes [{}, {}) of {} have not been copied yet", range.begin,
                              range.end, files_[range.file].name));
}

Status WeightStore::Read(const WeightRange& range, std::span<std::byte> out) const {
  MR_RETURN_IF_ERROR(Check(range));
  MR_CHECK(out.size() == range.end - range.begin);
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fds_[range.file], out.data() + done, out.size() - done,
                              static_cast<off_t>(range.begin + done));
    if (n < 0 && errno == EINTR) continue;
    const std::string& name = files_[range.file].name;
    if (n < 0) return Failed(name, errno);
    if (n == 0) return DataLoss(name + ": shrank while it was being read");
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Status WeightStore::Write(const WeightRange& range, std::span<const std::byte> in) {
  MR_CHECK(range.file < files_.size() && range.end <= files_[range.file].bytes &&
           range.begin + in.size() == range.end);
  for (size_t done = 0; done < in.size();) {
    const ssize_t n = ::pwrite(fds_[range.file], in.data() + done, in.size() - done,
                               static_cast<off_t>(range.begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(folder_ + "/" + files_[range.file].name, errno);
    done += static_cast<size_t>(n);
  }
  MutexLock lock(mutex_);
  auto& here = here_[range.file];
  uint64_t begin = range.begin, end = range.end;
  auto it = here.upper_bound(begin);
  if (it != here.begin() && std::prev(it)->second >= begin) --it;
  while (it != here.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = here.erase(it);
  }
  here[begin] = end;
  return OkStatus();
}

std::vector<WeightRange> WeightStore::Missing(const WeightRange& range) const {
  MutexLock lock(mutex_);
  std::vector<WeightRange> missing;
  uint64_t at = range.begin;
  const auto& here = here_[range.file];
  auto it = here.upper_bound(at);
  if (it != here.begin()) at = std::max(at, std::prev(it)->second);
  for (; at < range.end; ++it) {
    const uint64_t until = it == here.end() ? range.end : std::min(it->first, range.end);
    if (until > at) missing.push_back({range.file, at, until});
    if (it == here.end()) break;
    at = std::max(at, it->second);
  }
  return missing;
}

std::vector<WeightRange> WeightStore::LengthRanges() const {
  std::vector<WeightRange> ranges;
  for (size_t i = 0; i < files_.size(); ++i) {
    const uint64_t end = IsSmall(files_[i]) ? files_[i].bytes : kLengthBytes;
    if (end > 0) ranges.push_back({i, 0, end});
  }
  return ranges;
}

Result<std::vector<WeightRange>> WeightStore::HeadRanges() const {
  std::vector<WeightRange> ranges = LengthRanges();
  for (WeightRange& range : ranges) {
    const WeightFile& file = files_[range.file];
    if (IsSmall(file)) continue;
    std::byte bytes[kLengthBytes];
    MR_RETURN_IF_ERROR(Read(range, bytes));
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    if (length > kSafetensorsHeaderBytesMax || length > file.bytes - kLengthBytes) {
      return InvalidArgument(fmt::format("{}: a header of {} bytes is invalid in a file of {}",
                                         Printable(file.name), length, file.bytes));
    }
    range.end += length;
  }
  return ranges;
}

Result<std::string> WeightStore::Layout() const {
  Sha256 digest;
  for (const WeightFile& file : files_) {
    digest.AddText(file.name);
    digest.Add(&file.bytes, sizeof file.bytes);
  }
  MR_ASSIGN_OR_RETURN(const std::vector<WeightRange> heads, HeadRanges());
  for (const WeightRange& head : heads) {
    std::vector<std::byte> bytes(head.end - head.begin);
    MR_RETURN_IF_ERROR(Read(head, bytes));
    digest.Add(bytes.data(), bytes.size());
  }
  return Hex(digest.Take());
}

Result<WeightRange> WeightStore::RangeOf(const FileRun& run) const {
  const std::string name = std::filesystem::path(run.path).filename().string();
  const auto file = std::ranges::find(files_, name, &WeightFile::name);
  if (file == files_.end())
    return InvalidArgument(Printable(name) + " is not in the list of files");
  return WeightRange{static_cast<size_t>(file - files_.begin()), run.begin, run.end};
}

Result<std::vector<WeightRange>> WeightStore::RangesFor(LayerRange layers, TensorRank rank,
                                                        const LoadedWeights& here) const {
  MR_ASSIGN_OR_RETURN(const std::vector<FileRun> runs, WeightRunsOf(folder_, layers, rank, here));
  std::vector<WeightRange> ranges;
  for (const FileRun& run : runs) {
    if (run.begin == run.end) continue;
    MR_ASSIGN_OR_RETURN(ranges.emplace_back(), RangeOf(run));
  }
  return ranges;
}

Result<std::vector<WeightRange>> WeightStore::RangesOf(const WeightDigests& digests) const {
  std::vector<WeightRange> ranges(digests.chunks());
  for (size_t i = 0; i < ranges.size(); ++i) {
    MR_ASSIGN_OR_RETURN(ranges[i], RangeOf(digests.RunOf(i)));
  }
  return ranges;
}

}  // namespace millrace::model
