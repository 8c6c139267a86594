#include "serve/observe/request_registry.h"

#include <algorithm>

namespace millrace::serve {
namespace {

bool Named(const RegistryEntry& entry, const std::string& name) {
  return std::to_string(entry.id.value()) == name || entry.response_id == name ||
         entry.external_id == name;
}

}  // namespace

void RequestRegistry::Add(RegistryEntry entry) {
  MutexLock lock(mutex_);
  const RequestId id = entry.id;
  live_.emplace(id, std::move(entry));
}

void RequestRegistry::End(RequestId id, std::string reason, int generation_tokens,
                          std::optional<RequestTimes> times,
                          std::shared_ptr<const TimeAccount> account) {
  std::optional<RegistryEntry> over;
  {
    MutexLock lock(mutex_);
    auto found = live_.find(id);
    if (found == live_.end()) return;
    RegistryEntry entry = std::move(found->second);
    live_.erase(found);
    entry.finish_reason = std::move(reason);
    entry.generation_tokens = generation_tokens;
    entry.times = times;
    entry.account = std::move(account);
    if (over_ && entry.delivered) over = entry;
    ended_.push_front(std::move(entry));
    if (ended_.size() > kEndedRequestsKept) ended_.pop_back();
  }
  if (over) over_(*over);
}

void RequestRegistry::Delivered(const std::vector<RequestId>& ids, Time now) {
  std::vector<RegistryEntry> over;
  {
    MutexLock lock(mutex_);
    for (RequestId id : ids) {
      if (const auto live = live_.find(id); live != live_.end()) live->second.delivered = now;
      const auto ended = std::ranges::find(ended_, id, &RegistryEntry::id);
      if (ended == ended_.end()) continue;
      ended->delivered = now;
      if (over_) over.push_back(*ended);
    }
  }
  for (const RegistryEntry& entry : over) over_(entry);
}

std::vector<RegistryEntry> RequestRegistry::Ended() const {
  MutexLock lock(mutex_);
  return {ended_.begin(), ended_.end()};
}

std::vector<RegistryEntry> RequestRegistry::Live() const {
  MutexLock lock(mutex_);
  std::vector<RegistryEntry> all;
  for (const auto& [id, entry] : live_) all.push_back(entry);
  return all;
}

std::vector<RegistryEntry> RequestRegistry::Find(const std::string& name) const {
  MutexLock lock(mutex_);
  std::vector<RegistryEntry> found;
  for (const auto& [id, entry] : live_) {
    if (Named(entry, name)) found.push_back(entry);
  }
  for (const RegistryEntry& entry : ended_) {
    if (Named(entry, name)) found.push_back(entry);
  }
  return found;
}

std::optional<RegistryEntry> RequestRegistry::Find(RequestId id) const {
  MutexLock lock(mutex_);
  auto found = live_.find(id);
  if (found == live_.end()) return std::nullopt;
  return found->second;
}

void RequestRegistry::Enter() {
  MutexLock lock(mutex_);
  ++inside_;
}

void RequestRegistry::Leave() {
  MutexLock lock(mutex_);
  if (--inside_ == 0) idle_.notify_all();
}

void RequestRegistry::WaitUntilIdle() {
  MutexLock lock(mutex_);
  idle_.wait(lock, [this]() MR_REQUIRES(mutex_) { return inside_ == 0; });
}

}  // namespace millrace::serve
