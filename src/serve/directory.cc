#include "serve/directory.h"

namespace millrace::serve {
namespace {

bool Named(const DirectoryEntry& entry, const std::string& name) {
  return std::to_string(entry.id.value()) == name || entry.response_id == name ||
         entry.external_id == name;
}

}  // namespace

void Directory::Add(DirectoryEntry entry) {
  std::lock_guard lock(mutex_);
  const RequestId id = entry.id;
  live_.emplace(id, std::move(entry));
}

void Directory::End(RequestId id, std::string reason, int generation_tokens,
                    std::optional<RequestTimes> times) {
  std::lock_guard lock(mutex_);
  auto found = live_.find(id);
  if (found == live_.end()) return;
  DirectoryEntry entry = std::move(found->second);
  live_.erase(found);
  entry.finish_reason = std::move(reason);
  entry.generation_tokens = generation_tokens;
  entry.times = times;
  ended_.push_front(std::move(entry));
  if (ended_.size() > kEndedRequestsKept) ended_.pop_back();
}

std::vector<DirectoryEntry> Directory::Live() const {
  std::lock_guard lock(mutex_);
  std::vector<DirectoryEntry> all;
  for (const auto& [id, entry] : live_) all.push_back(entry);
  return all;
}

std::vector<DirectoryEntry> Directory::Find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  std::vector<DirectoryEntry> found;
  for (const auto& [id, entry] : live_) {
    if (Named(entry, name)) found.push_back(entry);
  }
  for (const DirectoryEntry& entry : ended_) {
    if (Named(entry, name)) found.push_back(entry);
  }
  return found;
}

std::optional<DirectoryEntry> Directory::Find(RequestId id) const {
  std::lock_guard lock(mutex_);
  auto found = live_.find(id);
  if (found == live_.end()) return std::nullopt;
  return found->second;
}

void Directory::Enter() {
  std::lock_guard lock(mutex_);
  ++inside_;
}

void Directory::Leave() {
  std::lock_guard lock(mutex_);
  if (--inside_ == 0) idle_.notify_all();
}

void Directory::WaitUntilIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return inside_ == 0; });
}

}  // namespace millrace::serve
