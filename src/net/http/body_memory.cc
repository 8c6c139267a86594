#include "net/http/body_memory.h"

namespace millrace::net {

size_t BodyMemory::held() const {
  MutexLock lock(mutex_);
  return in_all_;
}

BodyMemory::Room BodyMemory::Change(const std::string& address, size_t more, size_t less) {
  MutexLock lock(mutex_);
  in_all_ = in_all_ + more - less;
  size_t& own = by_address_[address];
  own = own + more - less;
  const size_t now = own;
  if (now == 0) by_address_.erase(address);
  if (more == 0) return Room::kYes;
  if (now > per_address_max_) return Room::kNoneForAddress;
  return in_all_ > in_all_max_ ? Room::kNone : Room::kYes;
}

BodyLease::BodyLease(BodyMemory& memory, std::string_view peer)
    : memory_(memory), address_(peer.substr(0, peer.rfind(':'))) {}

BodyMemory::Room BodyLease::Resize(size_t bytes) {
  if (bytes == held_bytes_) return BodyMemory::Room::kYes;
  const size_t more = bytes > held_bytes_ ? bytes - held_bytes_ : 0;
  const size_t less = bytes < held_bytes_ ? held_bytes_ - bytes : 0;
  held_bytes_ = bytes;
  return memory_.Change(address_, more, less);
}

}  // namespace millrace::net
