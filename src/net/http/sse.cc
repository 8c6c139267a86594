#include "net/http/sse.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::net {

std::string SseEvent(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 8);
  while (true) {
    const size_t end = std::min(data.find_first_of("\r\n"), data.size());
    out += "data: ";
    out += data.substr(0, end);
    out += '\n';
    if (end == data.size()) break;
    const bool crlf = data.substr(end).starts_with("\r\n");
    data.remove_prefix(end + (crlf ? 2 : 1));
  }
  out += '\n';
  return out;
}

Status SseParser::Feed(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (line_.size() + data_.size() + end > event_bytes_max_) {
      failed_ = true;
      break;
    }
    line_ += bytes.substr(0, end);
    if (end == bytes.size()) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    EndLine();
  }
  if (!failed_) return OkStatus();
  return {StatusCode::kTooLarge,
          fmt::format("a server-sent event exceeds {} bytes", event_bytes_max_)};
}

void SseParser::EndLine() {
  std::string_view line = line_;
  if (at_start_ && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  at_start_ = false;
  if (line.empty()) {
    Dispatch();
  } else {
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string_view field = line.substr(0, colon);
    std::string_view value = line.substr(std::min(colon + 1, line.size()));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "data") {
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    } else if (field == "event") {
      type_ = value;
    } else if (field == "id" && value.find('\0') == std::string_view::npos) {
      id_ = value;
    }
  }
  line_.clear();
}

void SseParser::Dispatch() {
  last_id_ = id_;
  if (has_data_) on_event_(type_.empty() ? "message" : std::string_view(type_), data_);
  data_.clear();
  type_.clear();
  has_data_ = false;
}

}  // namespace millrace::net
