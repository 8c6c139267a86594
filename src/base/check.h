// MR_CHECK: a programmer's error stops the process at once, in every build, and prints the place
// and the reason. Not for input: an error of a user, a file or a peer is a Status (base/status.h).
#pragma once

#include <sstream>

namespace millrace::internal {

// Prints and aborts in its destructor, so that `MR_CHECK(x) << "why"` reads as one sentence.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

struct CheckVoidify {
  void operator&(std::ostream&) {}
};

}  // namespace millrace::internal

#define MR_CHECK(condition)                            \
  (condition) ? (void)0                                \
              : ::millrace::internal::CheckVoidify() & \
                    ::millrace::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

// Like MR_CHECK, for costly conditions: active only in builds with sanitizers or without NDEBUG.
#if defined(MILLRACE_SANITIZED) || !defined(NDEBUG)
#define MR_DCHECK(condition) MR_CHECK(condition)
#else
#define MR_DCHECK(condition) MR_CHECK(true || (condition))
#endif
