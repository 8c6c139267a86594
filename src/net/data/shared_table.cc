#include "net/data/shared_table.h"

#include <utility>

namespace millrace::net {

void SharedTable::Open(const Nonce& cookie, std::function<void(uint64_t number)> on_gone) {
  MutexLock lock(state_->mutex);
  state_->cookie = cookie;
  state_->on_gone = std::move(on_gone);
}

void SharedTable::Close() {
  MutexLock lock(state_->mutex);
  state_->on_gone = nullptr;
}

Result<std::shared_ptr<SharedMemory>> SharedTable::Allocate(size_t bytes) {
  SharedMemoryHeader header;
  {
    MutexLock lock(state_->mutex);
    header.number = ++state_->made;
    header.cookie = state_->cookie;
  }
  // By number, because the address is known only later.
  auto forget = [state = state_, number = header.number] {
    MutexLock lock(state->mutex);
    std::erase_if(state->memory, [](const auto& entry) { return entry.second.expired(); });
    if (state->on_gone) state->on_gone(number);
  };
  MR_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(bytes, header, std::move(forget)));
  MutexLock lock(state_->mutex);
  state_->memory[memory->bytes().data()] = memory;
  return memory;
}

std::optional<SharedPlaces> SharedTable::Find(
    std::span<const std::span<const std::byte>> segments) const {
  SharedPlaces places;
  MutexLock lock(state_->mutex);
  if (state_->memory.empty()) return std::nullopt;
  for (const auto& segment : segments) {
    if (segment.empty()) continue;
    auto it = state_->memory.upper_bound(segment.data());
    if (it == state_->memory.begin()) return std::nullopt;
    const auto memory = (--it)->second.lock();
    if (memory == nullptr) return std::nullopt;
    // Holders are dropped after unlocking, because dropping them takes the lock. Most segments
    // share one.
    if (places.holders.empty() || places.holders.back() != memory) places.holders.push_back(memory);
    const auto offset = static_cast<uint64_t>(segment.data() - memory->bytes().data());
    if (offset > memory->bytes().size() || segment.size() > memory->bytes().size() - offset) {
      return std::nullopt;
    }
    places.segments.push_back(
        {memory->number(), static_cast<uint64_t>(memory->fd()), offset, segment.size()});
  }
  return places;
}

}  // namespace millrace::net
