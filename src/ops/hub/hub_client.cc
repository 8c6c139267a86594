#include "ops/hub/hub_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "ops/hub/hub_answer.h"

namespace millrace::ops {
namespace {

using CurlLong = long;  // NOLINT(google-runtime-int): libcurl's type

constexpr int kRedirectsMax = 10;
constexpr size_t kHeadBytesMax = 128u << 10;
constexpr size_t kIgnoredBytesMax = 256u << 10;  // of the body of a refusal
constexpr CurlLong kConnectTimeoutMs = 10'000;
constexpr CurlLong kTrickleBytesPerS = 1024;
constexpr CurlLong kBufferBytes = 512L << 10;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
bool IsSuccess(int status) { return status >= 200 && status < 300; }

// One request and its answer, as libcurl reports it.
class HubExchange {
 public:
  HubExchange(CURL* easy, const HubCall& call, bool from_hub, HubHead& head)
      : easy_(easy), call_(call), from_hub_(from_hub), head_(head) {}

  CURLcode Run() {
    curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, &OnHeader);
    curl_easy_setopt(easy_, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &OnBody);
    curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
    const CURLcode code = curl_easy_perform(easy_);
    if (code == CURLE_OK && IsSuccess(head_.status)) PassHead();
    return code;
  }
  // An error of the caller's functions, or of a limit.
  const Status& refused() const { return refused_; }

 private:
  static size_t OnHeader(char* data, size_t, size_t size, void* self) {
    return static_cast<HubExchange*>(self)->TakeHeader({data, size}) ? size : 0;
  }
  static size_t OnBody(char* data, size_t, size_t size, void* self) {
    return static_cast<HubExchange*>(self)->TakeBody({data, size}) ? size : 0;
  }

  bool TakeHeader(std::string_view line) {
    head_bytes_ += line.size();
    if (head_bytes_ > kHeadBytesMax) {
      refused_ = DataLoss(fmt::format("{}: the headers of the answer exceed the limit of {} bytes",
                                      call_.what, kHeadBytesMax));
      return false;
    }
    if (head_passed_) return true;  // trailers
    if (line.starts_with("HTTP/")) {
      CurlLong status = 0;
      curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
      head_.status = static_cast<int>(status);
      head_.body_bytes = head_.begin = std::nullopt;
      head_.retry_after_s = std::nullopt;
      return true;
    }
    TakeHubHeader(line, from_hub_, head_);
    return true;
  }

  bool TakeBody(std::string_view part) {
    if (!IsSuccess(head_.status)) {
      ignored_ += part.size();
      return ignored_ <= kIgnoredBytesMax;
    }
    if (!PassHead()) return false;
    if (call_.on_data) refused_ = call_.on_data(part);
    return refused_.ok();
  }

  bool PassHead() {
    if (!std::exchange(head_passed_, true) && call_.on_head) refused_ = call_.on_head(head_);
    return refused_.ok();
  }

  CURL* const easy_;
  const HubCall& call_;
  const bool from_hub_;
  HubHead& head_;
  Status refused_;
  size_t head_bytes_ = 0, ignored_ = 0;
  bool head_passed_ = false;
};

// Without the path, which may be signed.
std::string Place(const net::Url& url) {
  return fmt::format("{}://{}", url.https ? "https" : "http", url.HostHeader());
}

Status BrokenCall(CURLcode code, const char* text, const net::Url& url, const HubAccess& access) {
  const std::string place = Place(url);
  const std::string why = text[0] != 0 ? text : curl_easy_strerror(code);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return Unavailable(fmt::format("cannot reach {}: {}", place, Printable(why)));
    case CURLE_OPERATION_TIMEDOUT:
      return {StatusCode::kDeadlineExceeded,
              fmt::format("{} sent less than {} bytes/s for {:g} s", place, kTrickleBytesPerS,
                          access.stall.seconds())};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CONNECT_ERROR:
      return FailedPrecondition(fmt::format(
          "cannot establish TLS with {}: {}; set SSL_CERT_FILE to the certificate of the authority "
          "if the network has one of its own",
          place, Printable(why)));
    default:
      return Unavailable(fmt::format("lost the connection to {}: {}", place, Printable(why)));
  }
}

Result<net::Url> NextUrl(CURL* easy, const HubCall& call, const net::Url& from) {
  const char* text = nullptr;
  curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &text);
  if (text == nullptr) return DataLoss(call.what + ": a redirect of the hub leads nowhere");
  const std::string_view location(text);
  const auto url = net::ParseUrl(location.substr(0, location.find('#')));
  if (!url.ok()) return DataLoss(call.what + ": a redirect: " + url.status().message());
  if (!IsSafe(*url) || (from.https && !url->https)) {
    return FailedPrecondition(
        fmt::format("{}: {} redirects to {}, which has no TLS; anybody between could change the "
                    "model",
                    call.what, Place(from), Place(*url)));
  }
  return *url;
}

}  // namespace

struct HubClient::Connection {
  ~Connection() { curl_easy_cleanup(easy); }

  CURL* const easy = curl_easy_init();
  std::array<char, CURL_ERROR_SIZE> error = {};
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers{nullptr,
                                                                      &curl_slist_free_all};
};

HubClient::HubClient(HubAccess access)
    : access_(std::move(access)), connection_(std::make_unique<Connection>()) {}

HubClient::~HubClient() = default;

Result<std::unique_ptr<HubClient>> HubClient::Create(HubAccess access) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialized != CURLE_OK) return Internal(curl_easy_strerror(initialized));
  std::unique_ptr<HubClient> client(new HubClient(std::move(access)));
  if (client->connection_->easy == nullptr) return Internal("libcurl has no handle");
  return client;
}

HubResult HubClient::Call(const HubCall& call) {
  net::Url url = access_.endpoint.Join(call.path);
  HubHead head;
  HubResult result;
  for (int hops = 0; hops <= kRedirectsMax; ++hops) {
    const auto next = Hop(call, url, head);
    result.http_status = head.status;
    result.retry_after_s = head.retry_after_s;
    if (!next.ok()) {
      result.status = next.status();
      return result;
    }
    if (next->empty()) return result;
    url = net::ParseUrl(*next).value();  // checked by Hop
  }
  result.status = FailedPrecondition(
      fmt::format("{}: the hub redirects more than {} times", call.what, kRedirectsMax));
  return result;
}

// Where the answer redirects to; "": it was the last.
Result<std::string> HubClient::Hop(const HubCall& call, const net::Url& url, HubHead& head) {
  CURL* const easy = connection_->easy;
  const bool from_hub = SameOrigin(url, access_.endpoint);
  curl_easy_reset(easy);
  const auto set = [easy](CURLoption option, auto value) { curl_easy_setopt(easy, option, value); };
  curl_slist* lines = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (from_hub && !access_.token.empty()) {
    lines = curl_slist_append(lines, ("Authorization: Bearer " + access_.token).c_str());
  }
  connection_->headers.reset(lines);
  connection_->error[0] = 0;
  head.status = 0;  // of the hop before
  set(CURLOPT_URL, url.ToString().c_str());
  set(CURLOPT_HTTPHEADER, lines);
  set(CURLOPT_USERAGENT, "millrace");
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, CurlLong{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_NOSIGNAL, 1L);
  if (!url.https) set(CURLOPT_PROXY, "");  // this machine; else the environment's proxy
  if (call.head_only) set(CURLOPT_NOBODY, 1L);
  const std::string range = fmt::format("{}-", call.offset);
  if (call.offset > 0) set(CURLOPT_RANGE, range.c_str());
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  set(CURLOPT_LOW_SPEED_LIMIT, kTrickleBytesPerS);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<CurlLong>(access_.stall.seconds()));
  set(CURLOPT_SSLVERSION, CurlLong{CURL_SSLVERSION_TLSv1_2});
  if (!access_.authorities.empty()) {
    set(CURLOPT_CAINFO, access_.authorities.c_str());
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));
  }
  set(CURLOPT_ERRORBUFFER, connection_->error.data());
  HubExchange exchange(easy, call, from_hub, head);
  const CURLcode code = exchange.Run();
  if (!exchange.refused().ok()) return exchange.refused();
  const bool needs_all = IsSuccess(head.status) || IsRedirect(head.status);
  if (head.status == 0 || (needs_all && code != CURLE_OK)) {
    return BrokenCall(code, connection_->error.data(), url, access_);
  }
  if (IsSuccess(head.status)) return std::string();
  if (!IsRedirect(head.status)) return RefusalOf(head, call, access_);
  if (call.head_only && head.linked) {
    if (call.on_head) MR_RETURN_IF_ERROR(call.on_head(head));
    return std::string();
  }
  MR_ASSIGN_OR_RETURN(const net::Url next, NextUrl(easy, call, url));
  return next.ToString();
}

}  // namespace millrace::ops
