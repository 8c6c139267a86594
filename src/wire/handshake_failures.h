// HandshakeFailures: the TLS handshakes that failed in this process, as gRPC's log tells them. The
// first is logged at once, and then one line in a while says how many there were, so that no
// stranger can fill the disk. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace millrace::wire {

inline constexpr Duration kHandshakeLogEvery = Duration::Seconds(10);

class HandshakeFailures {
 public:
  static HandshakeFailures& OfProcess() {
    static HandshakeFailures failures;
    return failures;
  }

  // `line`: one of gRPC's log. Those that tell of something else are left alone.
  void Take(std::string_view line) {
    const size_t begin = line.find(kMark);
    if (begin == std::string_view::npos) return;
    std::string reason(line.substr(begin + kMark.size()));
    const Time now = SteadyClock().Now();
    const MutexLock lock(mutex_);
    last_ = {now, reason};
    if (logged_ && now - *logged_ < kHandshakeLogEvery) {
      ++not_logged_;
      return;
    }
    logged_ = now;
    MR_LOG(
        warn,
        "a TLS handshake failed: {} ({} more since the last such line); the certificates of both "
        "sides must be valid now and issued by one authority",
        reason, std::exchange(not_logged_, 0));
  }

  // The reason of the last one, if it was at `since` or later.
  std::optional<std::string> LastSince(Time since) const {
    const MutexLock lock(mutex_);
    if (!last_ || last_->first < since) return std::nullopt;
    return last_->second;
  }

 private:
  // "Handshake failed with fatal error SSL_ERROR_SSL: error:...:certificate verify failed."
  static constexpr std::string_view kMark = "Handshake failed with fatal error ";

  mutable Mutex mutex_;
  std::optional<std::pair<Time, std::string>> last_ MR_GUARDED_BY(mutex_);
  std::optional<Time> logged_ MR_GUARDED_BY(mutex_);
  uint64_t not_logged_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::wire
