// DownloadSnapshot: gets into the cache what it lacks of a model's repository: the configuration
// first, so that a model that cannot be served is refused before its weights come. Blocks. One
// thread.
#pragma once

#include <string>

#include "base/status.h"
#include "model/hub_cache.h"
#include "ops/hub/hub_client.h"
#include "ops/hub/retries.h"

namespace millrace::ops {

struct SnapshotOptions {
  std::string revision = std::string(model::kMainRevision);
  RetryPolicy retries;
};

// The snapshot's folder. Progress goes to stderr. What came before an error stays, and the next
// download continues there. Errors: as HubResult; kNotFound: no model, revision, or weights that
// can be read; kUnimplemented: an architecture that is not known; kFailedPrecondition: the disk is
// too small or not writable.
Result<std::string> DownloadSnapshot(HubClient& client, const model::HubRepository& repository,
                                     const SnapshotOptions& options);

}  // namespace millrace::ops
