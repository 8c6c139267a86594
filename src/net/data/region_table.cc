#include "net/data/region_table.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace millrace::net {

// Pins all regions that contain a source.
struct RegionTable::Pin {
  explicit Pin(std::shared_ptr<State> owner) : state(std::move(owner)) {}
  ~Pin() {
    MutexLock lock(state->mutex);
    for (RegionId id : held) --state->regions.at(id).pins;
    state->unpinned.notify_all();
  }
  std::shared_ptr<State> state;
  std::vector<RegionId> held;
};

RegionTable::RegionTable() : state_(std::make_shared<State>()) {}

RegionId RegionTable::Register(std::span<const std::byte> memory) {
  MutexLock lock(state_->mutex);
  const RegionId id(++state_->made);
  state_->regions.emplace(id, Region{memory});
  return id;
}

void RegionTable::Unregister(RegionId region) {
  MutexLock lock(state_->mutex);
  const auto it = state_->regions.find(region);
  MR_CHECK(it != state_->regions.end() && !it->second.closing) << "no such region";
  it->second.closing = true;
  state_->unpinned.wait(lock, [&]() MR_REQUIRES(state_->mutex) { return it->second.pins == 0; });
  state_->regions.erase(it);
}

Result<std::shared_ptr<const void>> RegionTable::PinFor(const PullSegments& source) {
  if (source.pin != nullptr) return source.pin;
  auto pin = std::make_shared<Pin>(state_);
  std::vector<RegionId> held;
  {
    MutexLock lock(state_->mutex);
    for (const auto& segment : source.segments) {
      if (segment.empty()) continue;
      bool found = false;
      for (const auto& [id, region] : state_->regions) {
        const std::byte* begin = region.memory.data();
        if (region.closing || segment.data() < begin ||
            segment.data() + segment.size() > begin + region.memory.size()) {
          continue;
        }
        found = true;
        if (held.empty() || held.back() != id) held.push_back(id);
        break;
      }
      if (!found) return Internal("the owner named memory that is neither pinned nor registered");
    }
    for (RegionId id : held) ++state_->regions.at(id).pins;
  }
  pin->held = std::move(held);
  return std::shared_ptr<const void>(std::move(pin));
}

}  // namespace millrace::net
