// Server-sent events (WHATWG HTML, section 9.2): formats one event, and parses a stream of events
// in pieces of any size. No I/O. A parser has one owner and is used on one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::net {

// "data: ...\n\n". Each line of `data` becomes a data line of its own, so JSON text (which has no
// line ends) is one line.
std::string SseEvent(std::string_view data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
// A comment that keeps a silent connection open; parsers ignore it.
inline constexpr std::string_view kSsePing = ": ping\n\n";

inline constexpr size_t kSseEventBytesMax = 16u << 20;

class SseParser {
 public:
  // Called for each event that has data; `type` is "message" unless the event names another. The
  // views are valid during the call.
  using OnEvent = std::function<void(std::string_view type, std::string_view data)>;

  explicit SseParser(OnEvent on_event, size_t event_bytes_max = kSseEventBytesMax)
      : on_event_(std::move(on_event)), event_bytes_max_(event_bytes_max) {}

  // kTooLarge when an event exceeds the limit; the parser then ignores all further input. An event
  // that is cut off by the end of the stream is dropped, as the standard requires.
  Status Feed(std::string_view bytes);
  // Of the last event that was passed on, or of an earlier one if that had none; empty: none yet.
  const std::string& last_event_id() const { return last_id_; }

 private:
  void EndLine();
  void Dispatch();

  const OnEvent on_event_;
  const size_t event_bytes_max_;
  std::string line_;
  std::string data_;
  std::string type_;
  std::string id_, last_id_;  // of the event that is read, and of those passed on
  bool has_data_ = false;
  bool after_cr_ = false;  // a following LF belongs to the same line end
  bool at_start_ = true;   // a byte order mark may follow
  bool failed_ = false;
};

}  // namespace millrace::net
