#include <fmt/format.h>
#include <strings.h>

#include <array>
#include <ctime>

#include "net/http/http1.h"

namespace millrace::net {
namespace {

// The date in the format of RFC 9110 section 5.6.7, formatted at most once per second and thread.
std::string_view HttpDate() {
  thread_local std::time_t made_at = 0;
  thread_local std::array<char, 40> text{};
  thread_local size_t size = 0;
  const std::time_t now = std::time(nullptr);
  if (now != made_at || size == 0) {
    std::tm utc{};
    gmtime_r(&now, &utc);
    size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
    made_at = now;
  }
  return {text.data(), size};
}

bool IsSetByTransport(std::string_view name) {
  for (std::string_view own :
       {"Content-Length", "Transfer-Encoding", "Connection", "Date", "Server"}) {
    if (name.size() == own.size() && strncasecmp(name.data(), own.data(), own.size()) == 0) {
      return true;
    }
  }
  return false;
}

void AppendWithoutControls(std::string_view text, std::string* out) {
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out->push_back(byte < 0x20 || byte == 0x7f ? ' ' : c);
  }
}

}  // namespace

std::string FormatResponseHead(int status, const HttpHeaders& headers, BodyFraming framing,
                               size_t content_bytes, bool keep_alive) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nServer: millrace\r\nDate: {}\r\n", status,
                                StatusReason(status), HttpDate());
  for (const auto& [name, value] : headers) {
    if (name.empty() || IsSetByTransport(name)) continue;
    AppendWithoutControls(name, &out);
    out += ": ";
    AppendWithoutControls(value, &out);
    out += "\r\n";
  }
  const bool bodiless = status < 200 || status == 204 || status == 304;
  if (!bodiless && framing == BodyFraming::kContentLength) {
    out += fmt::format("Content-Length: {}\r\n", content_bytes);
  } else if (!bodiless && framing == BodyFraming::kChunked) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  out += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

void AppendChunk(std::string_view part, std::string* out) {
  MR_DCHECK(!part.empty());
  fmt::format_to(std::back_inserter(*out), "{:x}\r\n", part.size());
  out->append(part);
  out->append("\r\n");
}

}  // namespace millrace::net
