#include "ops/hub/partial_blob.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "base/log.h"
#include "base/sha256.h"

namespace millrace::ops {
namespace {

constexpr size_t kReadBytes = 1u << 20;

Status FileError(const char* what, const std::string& path) {
  return FailedPrecondition(
      fmt::format("cannot {} {}: {}", what, Printable(path, 1024), std::strerror(errno)));
}

}  // namespace

std::string PartialPath(const std::string& path) { return path + ".incomplete"; }

PartialBlob::PartialBlob(std::string path, const HubBlob& blob, UniqueFd fd)
    : path_(std::move(path)),
      partial_path_(PartialPath(path_)),
      blob_(blob),
      fd_(std::move(fd)),
      digest_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {}

Result<std::unique_ptr<PartialBlob>> PartialBlob::Open(std::string path, const HubBlob& blob) {
  const std::string partial = PartialPath(path);
  UniqueFd fd(::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return FileError("write", partial);
  std::unique_ptr<PartialBlob> open(new PartialBlob(std::move(path), blob, std::move(fd)));
  if (info.st_size > blob.bytes) {
    MR_RETURN_IF_ERROR(open->StartAnew());
  } else {
    MR_RETURN_IF_ERROR(open->HashWhatIsThere());
  }
  return open;
}

// A blob of git is hashed behind "blob SIZE" and a zero.
void PartialBlob::BeginDigest() {
  const bool git = blob_.digest == BlobDigest::kGitSha1;
  MR_CHECK(EVP_DigestInit_ex(digest_.get(), git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (!git) return;
  const std::string head = fmt::format("blob {}", blob_.bytes);
  MR_CHECK(EVP_DigestUpdate(digest_.get(), head.c_str(), head.size() + 1) == 1);
}

std::string PartialBlob::TakeDigest() {
  std::array<uint8_t, EVP_MAX_MD_SIZE> bytes = {};
  unsigned size = 0;
  MR_CHECK(EVP_DigestFinal_ex(digest_.get(), bytes.data(), &size) == 1);
  return Hex(std::span<const uint8_t>(bytes.data(), size));
}

Status PartialBlob::HashWhatIsThere() {
  BeginDigest();
  std::vector<char> buffer(kReadBytes);
  for (;;) {
    const ssize_t n = ::read(fd_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("read", partial_path_);
    if (n == 0) return OkStatus();
    MR_CHECK(EVP_DigestUpdate(digest_.get(), buffer.data(), static_cast<size_t>(n)) == 1);
    bytes_ += n;
  }
}

Status PartialBlob::StartAnew() {
  if (::ftruncate(fd_.get(), 0) != 0 || ::lseek(fd_.get(), 0, SEEK_SET) != 0) {
    return FileError("write", partial_path_);
  }
  bytes_ = 0;
  BeginDigest();
  return OkStatus();
}

Status PartialBlob::Append(std::string_view part) {
  if (part.size() > static_cast<size_t>(blob_.bytes - bytes_)) {
    ::unlink(partial_path_.c_str());
    return DataLoss(fmt::format("the server sends more than the {} bytes that the hub's list says",
                                blob_.bytes));
  }
  MR_CHECK(EVP_DigestUpdate(digest_.get(), part.data(), part.size()) == 1);
  while (!part.empty()) {
    const ssize_t n = ::write(fd_.get(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("write", partial_path_);
    bytes_ += n;
    part.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status PartialBlob::Finish(const std::string& what) {
  const std::string digest = TakeDigest();
  if (blob_.digest != BlobDigest::kNone && digest != blob_.etag) {
    ::unlink(partial_path_.c_str());
    return DataLoss(
        fmt::format("{}: the {} of what came is {}, and the hub says {}; it is deleted: run the "
                    "command again to download it again",
                    what, blob_.digest == BlobDigest::kGitSha1 ? "git blob id" : "SHA-256", digest,
                    blob_.etag));
  }
  if (::fdatasync(fd_.get()) != 0) return FileError("write", partial_path_);
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) return FileError("name", path_);
  return OkStatus();
}

}  // namespace millrace::ops
