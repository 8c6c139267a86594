// What a hub sends: its list of files and the headers of its answers. A list that is accepted has
// plain names, etags that make a path, and sizes within the limit.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/folder.h"
#include "model/hub_cache.h"
#include "ops/hub/hub_answer.h"
#include "ops/hub/listing.h"

namespace apps = millrace::apps;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ops::HubHead head;
  ops::TakeHubHeader(text, /*from_hub=*/true, head);
  MR_CHECK(!head.body_bytes || *head.body_bytes >= 0);
  const auto listing = ops::ParseHubListing(text);
  if (!listing.ok()) return 0;
  MR_CHECK(millrace::model::IsCommit(listing->commit));
  for (const ops::HubFile& file : listing->files) {
    MR_CHECK(millrace::model::IsPlainName(file.name));
    if (!file.blob) continue;
    MR_CHECK(ops::IsEtag(file.blob->etag) && file.blob->digest != ops::BlobDigest::kNone);
    MR_CHECK(file.blob->bytes >= 0 && file.blob->bytes <= ops::kHubFileBytesMax);
  }
  if (ops::CheckHubListing(*listing, "org/name").ok()) {
    MR_CHECK(!ops::SmallFilesOf(*listing).empty());
  }
  return 0;
}
