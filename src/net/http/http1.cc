#include "net/http/http1.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <optional>

#include "net/http/head_scanner.h"

namespace millrace::net {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using BeastView = boost::beast::string_view;

std::string_view View(BeastView text) { return {text.data(), text.size()}; }

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

HttpFailure FailureOf(const error_code& ec, const HttpLimits& limits) {
  if (ec == http::error::body_limit) {
    return {413, fmt::format("the body is larger than the limit of {} bytes; send less",
                             limits.body_bytes_max)};
  }
  if (ec == http::error::header_limit) {
    return {431, fmt::format("the headers are larger than the limit of {} bytes",
                             limits.head_bytes_max)};
  }
  return {400, fmt::format("malformed HTTP/1.1 message: {}", ec.message())};
}

// The size of the shortest last chunk, "0\r\n\r\n". Beast asserts that it gets at least this many
// bytes when it is given the last chunk again. No chunked body ends with less, so waiting for them
// delays nothing.
constexpr size_t kLastChunkBytes = 5;

}  // namespace

// Collects what Beast parses.
struct RequestParser::Impl final : http::basic_parser<true> {
  explicit Impl(const HttpLimits& l) : limits(l), scanner(l) {
    header_limit(static_cast<uint32_t>(limits.head_bytes_max + kChunkLineBytesMax));
    body_limit(limits.body_bytes_max);
    eager(true);
  }

  const HttpLimits limits;
  HeadScanner scanner;
  std::optional<HttpFailure> failure;
  HttpRequest request;
  int version = 11;
  bool head_done = false;
  bool expects_continue = false;

  size_t Put(std::string_view data) {
    const bool in_chunked_body = head_done && chunked();
    if (in_chunked_body && data.front() == '0' && data.size() < kLastChunkBytes) return 0;
    error_code ec;
    const size_t used = put(boost::asio::const_buffer(data.data(), data.size()), ec);
    if (ec && ec != http::error::need_more) {
      if (!failure) failure = FailureOf(ec, limits);
    } else if (head_done && !is_done() && data.size() - used > kChunkLineBytesMax) {
      failure = HttpFailure{
          400, fmt::format("a chunk header or the trailers exceed {} bytes", kChunkLineBytesMax)};
    }
    return used;
  }

 private:
  bool Fail(int status, std::string message) {
    failure = HttpFailure{status, std::move(message)};
    return false;
  }

  void on_request_impl(http::verb, BeastView method, BeastView target, int v,
                       error_code&) override {
    request.method = View(method);
    request.path = View(target);  // decoded in CheckHead
    version = v;
  }
  void on_response_impl(int, BeastView, int, error_code&) override {}
  void on_field_impl(http::field, BeastView name, BeastView value, error_code&) override {
    if (!head_done) request.headers.emplace_back(View(name), View(value));
  }
  void on_header_impl(error_code& ec) override {
    head_done = true;
    if (!CheckHead()) ec = http::error::bad_value;
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  size_t on_body_impl(BeastView part, error_code&) override { return Take(part); }
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code&) override {}
  size_t on_chunk_body_impl(std::uint64_t, BeastView part, error_code&) override {
    return Take(part);
  }
  void on_finish_impl(error_code&) override {}

  size_t Take(BeastView part) {
    request.body.append(View(part));
    return part.size();
  }

  bool CheckHead() {
    if (request.method == "TRACE" || request.method == "CONNECT") {
      return Fail(405, fmt::format("the method {} is not allowed", request.method));
    }
    auto target = ParseTarget(request.path);
    if (!target.ok()) return Fail(400, target.status().message());
    request.path = std::move(target->path);
    request.query = std::move(target->query);
    return CheckFraming() && CheckExpect();
  }

  // Requires one Host header and at most one definition of the body's length.
  bool CheckFraming() {
    size_t hosts = 0, lengths = 0, codings = 0;
    for (const auto& [name, value] : request.headers) {
      if (EqualsIgnoreCase(name, "Host")) ++hosts;
      if (EqualsIgnoreCase(name, "Content-Length")) {
        ++lengths;
        if (value.find_first_not_of("0123456789") != std::string::npos) {
          return Fail(400, "Content-Length must be one decimal number");
        }
      }
      if (EqualsIgnoreCase(name, "Transfer-Encoding")) {
        ++codings;
        if (!EqualsIgnoreCase(value, "chunked")) {
          return Fail(501, "the only supported Transfer-Encoding is chunked");
        }
      }
    }
    if (hosts > 1 || (hosts == 0 && version == 11)) {
      return Fail(400, fmt::format("an HTTP/1.1 request must have one Host header, got {}", hosts));
    }
    if (lengths + codings > 1) {
      return Fail(400, "a request must have only one Content-Length or Transfer-Encoding header");
    }
    if (codings == 1 && version != 11) {
      return Fail(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length");
    }
    return true;
  }

  bool CheckExpect() {
    const auto expect = FindHeader(request.headers, "Expect");
    if (!expect || version != 11) return true;
    if (!EqualsIgnoreCase(*expect, "100-continue")) {
      return Fail(417, "the only supported Expect value is 100-continue");
    }
    expects_continue = true;
    return true;
  }
};

RequestParser::RequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::Feed(std::string_view data) {
  Impl& p = *impl_;
  if (data.empty() || p.failure || p.is_done()) return 0;
  if (!p.head_done) {
    const HeadScanner::Result head = p.scanner.Scan(data);
    if (head.failure) p.failure = *head.failure;
    if (!head.complete) return head.skipped_bytes;
  }
  return p.Put(data);
}

HttpStage RequestParser::stage() const {
  if (impl_->failure) return HttpStage::kFailed;
  if (impl_->is_done()) return HttpStage::kDone;
  return impl_->head_done ? HttpStage::kBody : HttpStage::kHead;
}

const HttpFailure& RequestParser::failure() const { return *impl_->failure; }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }
bool RequestParser::http_1_0() const { return impl_->version == 10; }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
size_t RequestParser::body_bytes() const { return impl_->request.body.size(); }

HttpRequest RequestParser::TakeRequest() {
  MR_CHECK(stage() == HttpStage::kDone);
  return std::move(impl_->request);
}

}  // namespace millrace::net
