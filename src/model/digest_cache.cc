#include "model/digest_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"

namespace millrace::model {
namespace {

constexpr std::string_view kPrefix = "digests-1-";  // the version of the format, too
constexpr size_t kKeyDigits = 32;

int64_t Nanoseconds(const timespec& at) {
  return int64_t{at.tv_sec} * 1'000'000'000 + int64_t{at.tv_nsec};
}

// What the weights' files are at this moment. nullopt: one is gone, or has changed too recently.
std::optional<std::string> StateOf(const WeightDigests& digests, std::chrono::nanoseconds settled) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  std::string state;
  for (const std::string& path : digests.paths()) {
    struct stat file = {};
    if (stat(path.c_str(), &file) != 0) return std::nullopt;
    const int64_t changed = std::max(Nanoseconds(file.st_mtim), Nanoseconds(file.st_ctim));
    if (Nanoseconds(now) - changed < settled.count()) return std::nullopt;
    state += fmt::format("{}\n{} {} {} {} {}\n", path, file.st_dev, file.st_ino, file.st_size,
                         Nanoseconds(file.st_mtim), Nanoseconds(file.st_ctim));
  }
  return state;
}

// The digests, then a digest of them.
std::string Encode(const WeightDigests& digests) {
  std::string content(reinterpret_cast<const char*>(digests.digests().data()),
                      digests.digests().size());
  const Sha256::Digest digest = Sha256Of(content);
  content.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return content;
}

Status Decode(std::string_view content, WeightDigests& digests) {
  const size_t bytes = digests.chunks() * kDigestBytes;
  if (content.size() != bytes + kDigestBytes) return DataLoss("it has another size");
  const Sha256::Digest digest = Sha256Of(content.substr(0, bytes));
  if (std::memcmp(digest.data(), content.data() + bytes, kDigestBytes) != 0) {
    return DataLoss("it is damaged");
  }
  std::vector<std::byte> taken(bytes);
  std::memcpy(taken.data(), content.data(), bytes);
  return digests.Take(std::move(taken));
}

}  // namespace

Result<WeightDigests> DigestCache::Of(const std::string& model_folder) const {
  if (folder_.empty()) return WeightDigests::OfFolder(model_folder);
  MR_ASSIGN_OR_RETURN(WeightDigests digests, WeightDigests::OfHeads(model_folder));
  const std::optional<std::string> before = StateOf(digests, settled_);
  if (!before) return WeightDigests::OfFolder(model_folder);
  const std::string key = Hex(Sha256Of(digests.heads() + *before)).substr(0, kKeyDigits);
  const std::string path = fmt::format("{}/{}{}", folder_, kPrefix, key);
  const auto kept = ReadFile(path, (digests.chunks() + 1) * kDigestBytes);
  const Status decoded = kept.ok() ? Decode(*kept, digests) : kept.status();
  if (decoded.ok()) {
    std::error_code ignored;
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now(), ignored);
    return digests;
  }
  if (decoded.code() != StatusCode::kNotFound) {
    MR_LOG(warn, "{}: {}; the weights are read again", Printable(path), decoded.message());
  }
  MR_ASSIGN_OR_RETURN(digests, WeightDigests::OfFolder(model_folder));
  if (StateOf(digests, settled_) == before) Keep(path, digests);
  return digests;
}

void DigestCache::Keep(const std::string& path, const WeightDigests& digests) const {
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  // The workers of one machine may keep the same digests at the same time.
  const Status written = WriteFileWithMode(path, Encode(digests), 0600, ExistingFile::kReplace);
  if (!written.ok()) {
    MR_LOG(warn, "the digests of the weights are not kept for the next start: {}",
           written.message());
    return;
  }
  DropOldest();
}

void DigestCache::DropOldest() const {
  using File = std::pair<std::filesystem::file_time_type, std::filesystem::path>;
  std::vector<File> files;
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(folder_, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (!entry->path().filename().string().starts_with(kPrefix)) continue;
    std::error_code gone;
    const auto used = entry->last_write_time(gone);
    if (!gone) files.emplace_back(used, entry->path());
  }
  if (files.size() <= kModelsMax) return;
  std::ranges::sort(files);
  files.resize(files.size() - kModelsMax);
  for (const File& file : files) std::filesystem::remove(file.second, failed);
}

}  // namespace millrace::model
