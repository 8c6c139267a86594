#include "net/http/http.h"

#include <fmt/format.h>
#include <strings.h>

#include "base/json.h"

namespace millrace::net {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 16;
}

// Whether `text` is well-formed UTF-8 by the table of RFC 3629 section 4, without control
// characters.
bool IsPrintableUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x20 || lead == 0x7f) return false;
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return false;
    unsigned char low = 0x80, high = 0xbf;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
    for (size_t k = 1; k < length; ++k) {
      const auto c = static_cast<unsigned char>(text[i + k]);
      if (c < low || c > high) return false;
      low = 0x80;
      high = 0xbf;
    }
    i += length;
  }
  return true;
}

// Returns "/path" for "http://host/path", and "/" when nothing follows the authority.
std::string_view StripAuthority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos) return target;
  const size_t path = target.find_first_of("/?", scheme + 3);
  return path == std::string_view::npos ? std::string_view("/") : target.substr(path);
}

}  // namespace

std::optional<std::string_view> FindHeader(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key.size() == name.size() && strncasecmp(key.data(), name.data(), name.size()) == 0) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> HttpRequest::Header(std::string_view name) const {
  return FindHeader(headers, name);
}

Result<std::string> PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : 16;
    const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : 16;
    if (high > 15 || low > 15) {
      return InvalidArgument(
          fmt::format("'%' at byte {} is not followed by two hex digits; write it as %25", i));
    }
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

Result<HttpHeaders> ParseQuery(std::string_view query) {
  HttpHeaders pairs;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    std::string item(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
    if (item.empty()) continue;
    if (pairs.size() == kQueryPairsMax) {
      return InvalidArgument(fmt::format("the query has more than {} parameters", kQueryPairsMax));
    }
    for (char& c : item) {
      if (c == '+') c = ' ';
    }
    const size_t equals = std::min(item.find('='), item.size());
    MR_ASSIGN_OR_RETURN(std::string key, PercentDecode(std::string_view(item).substr(0, equals)));
    std::string value;
    if (equals < item.size()) {
      MR_ASSIGN_OR_RETURN(value, PercentDecode(std::string_view(item).substr(equals + 1)));
    }
    pairs.emplace_back(std::move(key), std::move(value));
  }
  return pairs;
}

Result<HttpTarget> ParseTarget(std::string_view target) {
  if (target == "*") return HttpTarget{"*", ""};
  if (!target.starts_with('/')) {
    if (!target.starts_with("http://") && !target.starts_with("https://")) {
      return InvalidArgument("the request target must start with '/'");
    }
    target = StripAuthority(target);
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = std::min(target.find('?'), target.size());
  HttpTarget result;
  MR_ASSIGN_OR_RETURN(result.path, PercentDecode(target.substr(0, mark)));
  if (result.path.empty()) result.path = "/";
  if (!IsPrintableUtf8(result.path)) {
    return InvalidArgument("the path has control characters or is not valid UTF-8");
  }
  if (mark < target.size()) result.query = target.substr(mark + 1);
  return result;
}

HttpResponse ErrorResponse(int status, std::string_view message) {
  const char* type = status >= 500 ? "server_error" : "invalid_request_error";
  const Json body = {
      {"error",
       {{"message", std::string(message)}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}};
  return {status, {{"Content-Type", "application/json"}}, DumpJson(body)};
}

std::string_view StatusReason(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

}  // namespace millrace::net
