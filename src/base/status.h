// Status and Result<T>: errors caused from outside the program.
//
// A Status holds the kind of error (for the HTTP code, a retry, a metric) and one line for its
// reader: the cause, the numbers, the cure. A programmer's error is an MR_CHECK instead
// (base/check.h). Values; safe to pass between threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace millrace {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the sender must change the request: HTTP 400
  kUnauthenticated,     // 401
  kNotFound,            // 404
  kTooLarge,            // 413
  kResourceExhausted,   // a bounded queue is full, try again later: 429
  kCancelled,           // the client disconnected or cancelled
  kUnavailable,         // loading, draining or a part is down, try again later: 503
  kDeadlineExceeded,    // 504
  kDataLoss,            // a file or a message is damaged
  kFailedPrecondition,  // the state of the system forbids it
  kUnimplemented,       // a named feature that Millrace does not have: 501, or 400 on a field
  kInternal,            // Millrace's fault, reported instead of crashing: 500
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "invalid argument: temperature must be in [0, 2], got 3".
  std::string ToString() const;

  // The same error with `context` and ": " in front of its message.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status FailedPrecondition(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT
    MR_CHECK(!status_.ok()) << "a Result without a value needs an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok().
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    MR_CHECK(value_.has_value()) << status_.ToString();
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace millrace

#define MR_CONCAT_INNER(a, b) a##b
#define MR_CONCAT(a, b) MR_CONCAT_INNER(a, b)

#define MR_RETURN_IF_ERROR(expr)                                   \
  do {                                                             \
    if (::millrace::Status mr_s = (expr); !mr_s.ok()) return mr_s; \
  } while (0)

// MR_ASSIGN_OR_RETURN(auto x, MakeX());
#define MR_ASSIGN_OR_RETURN(lhs, expr) \
  MR_ASSIGN_OR_RETURN_IMPL(MR_CONCAT(mr_r, __LINE__), lhs, expr)
#define MR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()
