#include "base/clock.h"

#include <chrono>

namespace millrace {

Time SteadyClock::Now() const {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
}

}  // namespace millrace
