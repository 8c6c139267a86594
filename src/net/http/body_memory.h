// BodyMemory: how many bytes of requests that are still being received the clients of a server
// hold, in all and by address, with a limit for both. Owned by the server's I/O threads together.
// Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"

namespace millrace::net {

class BodyMemory {
 public:
  BodyMemory(size_t in_all_max, size_t per_address_max)
      : in_all_max_(in_all_max), per_address_max_(per_address_max) {}

  enum class Room { kYes, kNone, kNoneForAddress };
  size_t held() const;

 private:
  friend class BodyLease;
  // Adds `more`, or frees `less`. The bytes count even if there is no room: they have arrived.
  Room Change(const std::string& address, size_t more, size_t less);

  const size_t in_all_max_, per_address_max_;
  mutable Mutex mutex_;
  size_t in_all_ MR_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::string, size_t> by_address_ MR_GUARDED_BY(mutex_);
};

// The share that one request holds while it is being received. One thread.
class BodyLease {
 public:
  // `peer`: "ADDRESS:PORT", or anything else, which is taken as a whole.
  BodyLease(BodyMemory& memory, std::string_view peer);
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;
  ~BodyLease() { Resize(0); }
  BodyMemory::Room Resize(size_t bytes);

 private:
  BodyMemory& memory_;
  const std::string address_;
  size_t held_bytes_ = 0;
};

}  // namespace millrace::net
