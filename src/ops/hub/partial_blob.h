// PartialBlob: a file of the cache that is being downloaded. Its bytes are appended to
// `blobs/ETAG.incomplete` and hashed as they come; what an earlier process left there is hashed
// first and continued. One thread; the caller has the blob's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"
#include "ops/hub/listing.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace millrace::ops {

class PartialBlob {
 public:
  // `path`: the finished file.
  static Result<std::unique_ptr<PartialBlob>> Open(std::string path, const HubBlob& blob);

  int64_t bytes() const { return bytes_; }
  // kDataLoss beyond the blob's size.
  Status Append(std::string_view part);
  Status StartAnew();
  // Compares the digest and gives the file its name. kDataLoss: the bytes are others; they are
  // deleted.
  Status Finish(const std::string& what);

 private:
  PartialBlob(std::string path, const HubBlob& blob, UniqueFd fd);
  Status HashWhatIsThere();
  void BeginDigest();
  std::string TakeDigest();

  const std::string path_, partial_path_;
  const HubBlob blob_;
  const UniqueFd fd_;
  const std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> digest_;
  int64_t bytes_ = 0;
};

// "PATH.incomplete", as the hub's own tools name it.
std::string PartialPath(const std::string& path);

}  // namespace millrace::ops
