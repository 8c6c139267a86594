// CacheHints: where the last request with a prompt_cache_key went. Until its prompt is computed,
// no prefix cache shows that the next one would find it there. Owned by Placements; one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/worker_messages.h"

namespace millrace::cluster {

// Beyond it, the key that is known longest is forgotten.
inline constexpr size_t kCacheHintsMax = 4096;

class CacheHints {
 public:
  void Note(const std::string& key, PipelineId pipeline) {
    const auto [place, is_new] = pipelines_.insert_or_assign(key, pipeline);
    if (!is_new) return;
    keys_.push_back(key);
    if (keys_.size() <= kCacheHintsMax) return;
    pipelines_.erase(keys_.front());
    keys_.pop_front();
  }
  std::optional<PipelineId> Find(const std::string& key) const {
    const auto found = pipelines_.find(key);
    return found == pipelines_.end() ? std::nullopt : std::optional(found->second);
  }
  size_t size() const { return pipelines_.size(); }

 private:
  std::map<std::string, PipelineId> pipelines_;
  std::deque<std::string> keys_;  // in the order in which they became known
};

}  // namespace millrace::cluster
