// HubListing: the files of a repository at one commit, as the hub's API lists them. The text is not
// trusted: sizes, names and counts have limits. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::ops {

inline constexpr size_t kListingBytesMax = 16u << 20;
inline constexpr size_t kListingFilesMax = 20'000;
inline constexpr int64_t kHubFileBytesMax = int64_t{1} << 40;

enum class BlobDigest : uint8_t { kNone, kGitSha1, kSha256 };

// The bytes of a file. The cache names them by `etag`.
struct HubBlob {
  std::string etag;
  int64_t bytes = 0;
  BlobDigest digest = BlobDigest::kNone;  // what the etag is, if it is one
};

struct HubFile {
  std::string name;
  std::optional<HubBlob> blob;  // none: the listing does not say, and the file's headers do
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;  // those outside of folders

  const HubFile* Find(std::string_view name) const;
};

// A chat template of a name: additional_chat_templates/NAME.jinja.
bool IsNamedTemplate(std::string_view name);
// Letters, digits, '-' and '_', so that a path may be made of it.
bool IsEtag(std::string_view text);

// kDataLoss for text that is no listing.
Result<HubListing> ParseHubListing(std::string_view text);

// That these files are a model that can be loaded: kNotFound without config.json or safetensors.
Status CheckHubListing(const HubListing& listing, const std::string& repository);

// The files beside the weights that a model has, in the order of their download.
std::vector<std::string> SmallFilesOf(const HubListing& listing);

}  // namespace millrace::ops
