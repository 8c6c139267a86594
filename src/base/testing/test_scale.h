// TestScale: how much more than in the fast suite a randomised test should do. The full suite sets
// MILLRACE_TEST_SCALE; without it the scale is 1.
#pragma once

#include <cstdlib>

namespace millrace {

inline int TestScale() {
  const char* scale = std::getenv("MILLRACE_TEST_SCALE");
  return scale ? std::atoi(scale) : 1;
}

}  // namespace millrace
