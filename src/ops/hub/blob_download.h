// DownloadBlob: gets one file of a repository into the cache's blobs: continued where an earlier
// download ended, checked, and by one process at a time. Blocks. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "ops/hub/hub_client.h"
#include "ops/hub/listing.h"
#include "ops/hub/retries.h"

namespace millrace::ops {

struct BlobSource {
  std::string path;  // at the hub: "/org/name/resolve/COMMIT/FILE"
  std::string what;  // for messages: "org/name, FILE"
};

struct BlobPlace {
  std::string file;  // blobs/ETAG
  std::string lock;
};

// `on_bytes` gets how many bytes of the file there are, again and again.
Status DownloadBlob(HubClient& client, const BlobSource& source, const HubBlob& blob,
                    const BlobPlace& place, const RetryPolicy& policy,
                    const std::function<void(int64_t)>& on_bytes);

// Whether the cache has the file whole, by its size.
bool HasBlob(const std::string& file, const HubBlob& blob);
// How much of a file the cache has.
int64_t BytesHere(const std::string& file, const HubBlob& blob);

}  // namespace millrace::ops
