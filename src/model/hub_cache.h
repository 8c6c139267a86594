// The Hugging Face cache, which Millrace shares with other programs: where the files of a
// repository are, and which of them a model needs. A repository has
//   blobs/ETAG             the bytes of a file, named by a digest of them
//   refs/REVISION          the commit of a branch or tag
//   snapshots/COMMIT/FILE  links into blobs
// Pure functions, and some that only look at files; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::model {

inline constexpr std::string_view kMainRevision = "main";

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> ProcessEnvironment(const std::string& name);

// "org/name" of letters, digits and "-_.", so that no path made of it leads out of the cache.
bool IsHubName(std::string_view model);

// A branch, a tag or a commit: a path of letters, digits and "-_." that stays below `refs`.
bool IsRevision(std::string_view text);
bool IsCommit(std::string_view text);  // 40 hexadecimal digits

// $HF_HOME, else $XDG_CACHE_HOME/huggingface, else $HOME/.cache/huggingface.
std::string HubHome(const Environment& environment);
// $HF_HUB_CACHE, else HubHome()/hub.
std::string HubCache(const Environment& environment);

struct HubRepository {
  std::string name;   // ORG/NAME
  std::string cache;  // the cache's folder

  std::string folder() const;
  std::string Blob(std::string_view etag) const;
  std::string Lock(std::string_view etag) const;  // of the cache, where other programs look too
  std::string Ref(std::string_view revision) const;
  std::string Snapshot(std::string_view commit) const;
  // The snapshot that the cache has of a revision, or where it would be.
  std::string SnapshotOf(const std::string& revision) const;
};
// REQUIRES: IsHubName(name).
HubRepository RepositoryOf(const std::string& name, const Environment& environment);

// The files that a snapshot lacks: config.json, the weights, tokenizer.json. A link whose blob is
// gone is missing too.
std::vector<std::string> MissingFiles(const std::string& snapshot);

}  // namespace millrace::model
