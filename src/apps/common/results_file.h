// ResultsFile: the JSON lines that `generate` appends to, one per finished prompt. A run that was
// killed can be started again: finished ids are known, and a last line cut in the middle is
// removed. One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::apps {

inline constexpr size_t kResultsBytesMax = size_t{4} << 30;

// What an existing file holds.
struct ExistingResults {
  std::unordered_set<std::string> ids;  // "custom_id" of every whole line
  size_t whole_bytes = 0;               // up to the end of the last whole line
};
// kDataLoss, with the line's number, for a whole line that is not a result: the file is something
// else and is left unchanged.
Result<ExistingResults> ScanResults(std::string_view content);

class ResultsFile {
 public:
  // Opens or creates `path`, locks it against a second run, repairs its end.
  static Result<std::unique_ptr<ResultsFile>> Open(const std::string& path, const Clock& clock);

  bool Has(const std::string& id) const { return ids_.contains(id); }
  size_t size() const { return ids_.size(); }
  size_t repaired_bytes() const { return repaired_bytes_; }

  // Appends one line; `line` has a "custom_id". It is on disk after Sync, or after the first Append
  // that comes at least a second after the last sync.
  Status Append(const Json& line);
  Status Sync();

 private:
  ResultsFile(UniqueFd fd, const std::string& path, const Clock& clock)
      : fd_(std::move(fd)), path_(path), clock_(clock), synced_(clock.Now()) {}

  const UniqueFd fd_;
  const std::string path_;
  const Clock& clock_;
  std::unordered_set<std::string> ids_;
  size_t repaired_bytes_ = 0;
  Time synced_;
};

}  // namespace millrace::apps
