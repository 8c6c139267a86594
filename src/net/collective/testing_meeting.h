// For tests: a meeting name that no other group of ranks on this host uses.
#pragma once

#include <random>
#include <string>

namespace millrace::net {

inline std::string NewMeeting() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

}  // namespace millrace::net
