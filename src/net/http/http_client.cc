#include "net/http/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/event_loop.h"
#include "net/tls.h"

namespace millrace::net {
namespace {

using CurlLong = long;  // NOLINT(google-runtime-int): libcurl's type

constexpr Duration kSweepPeriod = Duration::Millis(50);
constexpr size_t kReplyHeadBytesMax = 32 * 1024;

}  // namespace

// libcurl's transfers on an event loop. Used on the loop's thread only.
struct HttpClient::Hub {
  // A socket of libcurl's. Freed by a posted function, because pending events may refer to it.
  struct Socket : EventHandler {
    Socket(Hub& h, int f) : hub(h), fd(f) {}
    void OnEvents(uint32_t events) override;

    Hub& hub;
    const int fd;
  };

  explicit Hub(const HttpClientOptions& o);
  ~Hub();

  // Lets libcurl act on a socket or, with CURL_SOCKET_TIMEOUT, on its timer.
  void Act(int fd, int ready);
  void CheckDeadlines();  // and again after kSweepPeriod

  static int OnSocket(CURL*, curl_socket_t fd, int what, void* self, void* known);
  static int OnTimer(CURLM*, CurlLong timeout_ms, void* self);

  const HttpClientOptions options;
  CURLM* const multi = curl_multi_init();
  EventLoop loop;
  std::optional<EventLoop::Timer> timer;  // libcurl's
  std::unordered_map<FetchId, std::unique_ptr<Exchange>> exchanges;
  bool stopping = false;
  std::atomic<uint64_t> next_id{1};  // any thread
};

// One fetch. libcurl calls its On... functions, in which no transfer may be removed.
class HttpClient::Exchange {
 public:
  Exchange(Hub& hub, FetchId id, HttpCall call, FetchCallbacks callbacks)
      : hub_(hub), id_(id), call_(std::move(call)), callbacks_(std::move(callbacks)) {}

  Status Begin();
  // Calls on_done and deletes the exchange.
  void End(CURLcode code) { End(StatusOf(code)); }
  void End(Status status);
  void CheckDeadline(Time now) {
    if (deadline_ && now >= *deadline_) End(Late("did not answer"));
  }

 private:
  static size_t OnHeader(char* data, size_t, size_t size, void* self);
  static size_t OnBody(char* data, size_t, size_t size, void* self);
  static int OnConnected(void* self, char*, char*, int, int);
  bool TakeHeader(std::string_view line);
  Status StatusOf(CURLcode code) const;
  Status Late(std::string_view what) const {
    return {StatusCode::kDeadlineExceeded,
            fmt::format("{} {} in time", call_.url.ToString(), what)};
  }
  void SetDeadline() { deadline_ = hub_.loop.Now() + hub_.options.read_timeout; }

  Hub& hub_;
  const FetchId id_;
  const HttpCall call_;
  const FetchCallbacks callbacks_;
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy_{curl_easy_init(), &curl_easy_cleanup};
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> lines_{nullptr, &curl_slist_free_all};
  std::array<char, CURL_ERROR_SIZE> error_ = {};
  std::optional<Time> deadline_;
  int status_ = 0;
  HttpHeaders headers_;
  size_t head_bytes_ = 0, body_bytes_ = 0;
  bool head_done_ = false;
  std::string refused_;  // why the response was refused
};

Status HttpClient::Exchange::Begin() {
  curl_slist* lines = nullptr;
  for (const char* none : {"Expect:", "Accept:", "Content-Type:"}) {
    lines = curl_slist_append(lines, none);
  }
  for (const auto& [name, value] : call_.headers) {
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      curl_slist_free_all(lines);
      return InvalidArgument("a request header contains a line end or a NUL byte");
    }
    // "Name:" would remove a header, "Name;" sends an empty one.
    const std::string line = value.empty() ? name + ";" : fmt::format("{}: {}", name, value);
    lines = curl_slist_append(lines, line.c_str());
  }
  lines_.reset(lines);
  CURL* const easy = easy_.get();
  const HttpClientOptions& options = hub_.options;
  const auto set = [easy](CURLoption option, auto value) { curl_easy_setopt(easy, option, value); };
  Url url = call_.url;
  if (!call_.unix_path.empty()) url.https = false;
  set(CURLOPT_URL, url.ToString().c_str());
  set(CURLOPT_REQUEST_TARGET, call_.url.target.c_str());
  set(CURLOPT_HTTP_VERSION, CurlLong{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTPHEADER, lines_.get());
  if (!call_.unix_path.empty()) set(CURLOPT_UNIX_SOCKET_PATH, call_.unix_path.c_str());
  if (call_.method == "HEAD") set(CURLOPT_NOBODY, 1L);
  if (!call_.body.empty() || call_.method == "POST") {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call_.body.size()));
    set(CURLOPT_POSTFIELDS, call_.body.data());
  }
  set(CURLOPT_CUSTOMREQUEST, call_.method.c_str());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<CurlLong>(options.connect_timeout.ns / 1'000'000));
  set(CURLOPT_SSLVERSION, CurlLong{CURL_SSLVERSION_TLSv1_2});
  set(CURLOPT_SSL_VERIFYPEER, CurlLong{options.verify_tls});
  set(CURLOPT_SSL_VERIFYHOST, options.verify_tls ? 2L : 0L);
  if (!options.tls_authority_path.empty()) {
    set(CURLOPT_CAINFO, options.tls_authority_path.c_str());
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));
  }
  set(CURLOPT_ERRORBUFFER, error_.data());
  set(CURLOPT_PRIVATE, this);
  set(CURLOPT_HEADERFUNCTION, &OnHeader);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &OnBody);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_PREREQFUNCTION, &OnConnected);
  set(CURLOPT_PREREQDATA, this);
  curl_multi_add_handle(hub_.multi, easy);
  return OkStatus();
}

int HttpClient::Exchange::OnConnected(void* self, char*, char*, int, int) {
  static_cast<Exchange*>(self)->SetDeadline();
  return CURL_PREREQFUNC_OK;
}

size_t HttpClient::Exchange::OnHeader(char* data, size_t, size_t size, void* self) {
  return static_cast<Exchange*>(self)->TakeHeader({data, size}) ? size : 0;
}

// A line of the head of a response, perhaps an interim one, or of the trailers.
bool HttpClient::Exchange::TakeHeader(std::string_view line) {
  SetDeadline();
  if (head_done_) return true;
  head_bytes_ += line.size();
  if (head_bytes_ > kReplyHeadBytesMax) {
    refused_ = fmt::format("the headers are larger than the limit of {} bytes", kReplyHeadBytesMax);
    return false;
  }
  while (line.ends_with('\r') || line.ends_with('\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    CurlLong code = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &code);
    status_ = static_cast<int>(code);
    headers_.clear();
  } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
    while (value.ends_with(' ') || value.ends_with('\t')) value.remove_suffix(1);
    headers_.emplace_back(line.substr(0, colon), value);
  } else if (line.empty() && status_ >= 200) {
    head_done_ = true;
    if (callbacks_.on_head) callbacks_.on_head(status_, headers_);
  }
  return true;
}

size_t HttpClient::Exchange::OnBody(char* data, size_t, size_t size, void* self) {
  Exchange& e = *static_cast<Exchange*>(self);
  e.SetDeadline();
  e.body_bytes_ += size;
  if (e.body_bytes_ > e.hub_.options.body_bytes_max) {
    e.refused_ =
        fmt::format("the body is larger than the limit of {} bytes", e.hub_.options.body_bytes_max);
    return 0;
  }
  if (e.callbacks_.on_data) e.callbacks_.on_data({data, size});
  return size;
}

Status HttpClient::Exchange::StatusOf(CURLcode code) const {
  const std::string url = call_.url.ToString();
  CurlLong number = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &number);
  const std::string why = number != 0      ? std::strerror(static_cast<int>(number))
                          : error_[0] != 0 ? std::string(error_.data())
                                           : curl_easy_strerror(code);
  if (!refused_.empty()) return Internal(fmt::format("{}: {}", url, refused_));
  switch (code) {
    case CURLE_OK: return OkStatus();
    case CURLE_COULDNT_RESOLVE_HOST:
      return Unavailable(fmt::format("cannot resolve the host of {}: {}", url, why));
    case CURLE_COULDNT_CONNECT:
      return Unavailable(fmt::format("cannot connect to {}: {}", url, why));
    case CURLE_OPERATION_TIMEDOUT: return Late("did not accept the connection");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
      return Unavailable(fmt::format("cannot establish TLS with {}: {}", url, error_.data()));
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
      return Unavailable(fmt::format("lost the connection to {}: {}", url, why));
    default: return Internal(fmt::format("{}: {}", url, why));
  }
}

void HttpClient::Exchange::End(Status status) {
  const auto self = std::move(hub_.exchanges.extract(id_).mapped());  // deleted at the end
  curl_multi_remove_handle(hub_.multi, easy_.get());
  callbacks_.on_done(std::move(status));
}

HttpClient::Hub::Hub(const HttpClientOptions& o) : options(o) {
  curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, &OnSocket);
  curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, this);
  curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, &OnTimer);
  curl_multi_setopt(multi, CURLMOPT_TIMERDATA, this);
  curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS,
                    static_cast<CurlLong>(options.idle_connections_max));
}

HttpClient::Hub::~Hub() { curl_multi_cleanup(multi); }

void HttpClient::Hub::Socket::OnEvents(uint32_t events) {
  hub.Act(fd, (events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                  (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                  (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
}

int HttpClient::Hub::OnSocket(CURL*, curl_socket_t fd, int what, void* self, void* known) {
  Hub& hub = *static_cast<Hub*>(self);
  auto* socket = static_cast<Socket*>(known);
  if (what == CURL_POLL_REMOVE) {
    if (socket == nullptr) return 0;
    hub.loop.UnwatchClosed(fd);  // libcurl closes a socket that was still connecting first
    hub.loop.Post([done = std::shared_ptr<Socket>(socket)] {});
    return 0;
  }
  const uint32_t events =
      (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
  if (socket != nullptr) {
    hub.loop.Change(fd, events, socket);
    return 0;
  }
  socket = new Socket(hub, fd);  // until libcurl removes it
  hub.loop.Watch(fd, events, socket);
  curl_multi_assign(hub.multi, fd, socket);
  return 0;
}

int HttpClient::Hub::OnTimer(CURLM*, CurlLong timeout_ms, void* self) {
  Hub& hub = *static_cast<Hub*>(self);
  if (hub.timer) hub.loop.Cancel(*hub.timer);
  hub.timer.reset();
  if (timeout_ms < 0) return 0;
  hub.timer = hub.loop.At(hub.loop.Now() + Duration::Millis(timeout_ms), [&hub] {
    hub.timer.reset();
    hub.Act(CURL_SOCKET_TIMEOUT, 0);
  });
  return 0;
}

void HttpClient::Hub::Act(int fd, int ready) {
  int left = 0;
  curl_multi_socket_action(multi, fd, ready, &left);
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    Exchange* exchange = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &exchange);
    exchange->End(message->data.result);
  }
}

void HttpClient::Hub::CheckDeadlines() {
  const Time now = loop.Now();
  for (auto it = exchanges.begin(); it != exchanges.end();) (it++)->second->CheckDeadline(now);
  loop.At(loop.Now() + kSweepPeriod, [this] { CheckDeadlines(); });
}

Result<std::unique_ptr<HttpClient>> HttpClient::Start(const HttpClientOptions& options) {
  // Reads the authority's file now, so that the error comes now.
  MR_RETURN_IF_ERROR(MakeClientTls(options.tls_authority_path, options.verify_tls).status());
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialized != CURLE_OK) return Internal(curl_easy_strerror(initialized));
  return std::unique_ptr<HttpClient>(new HttpClient(std::make_unique<Hub>(options)));
}

HttpClient::HttpClient(std::unique_ptr<Hub> hub) : hub_(std::move(hub)) {
  hub_->loop.Start();
  hub_->loop.Post([hub = hub_.get()] { hub->CheckDeadlines(); });
}

HttpClient::~HttpClient() {
  hub_->loop.Post([hub = hub_.get()] {
    hub->stopping = true;
    while (!hub->exchanges.empty()) {
      hub->exchanges.begin()->second->End(Cancelled("the HTTP client is stopping"));
    }
  });
  hub_->loop.Stop();
}

FetchId HttpClient::Fetch(HttpCall call, FetchCallbacks callbacks) {
  const FetchId id(hub_->next_id++);
  auto exchange = std::make_shared<std::unique_ptr<Exchange>>(
      std::make_unique<Exchange>(*hub_, id, std::move(call), std::move(callbacks)));
  hub_->loop.Post([hub = hub_.get(), id, exchange] {
    Exchange& e = *hub->exchanges.emplace(id, std::move(*exchange)).first->second;
    if (hub->stopping) return e.End(Cancelled("the HTTP client is stopping"));
    if (Status begun = e.Begin(); !begun.ok()) e.End(std::move(begun));
  });
  return id;
}

void HttpClient::Cancel(FetchId id) {
  hub_->loop.Post([hub = hub_.get(), id] {
    const auto at = hub->exchanges.find(id);
    if (at != hub->exchanges.end()) at->second->End(Cancelled("the fetch was cancelled"));
  });
}
Result<HttpResponse> HttpClient::Call(HttpCall call,
                                      std::function<void(std::string_view)> on_data) {
  HttpResponse response;
  std::promise<Status> done;
  FetchCallbacks callbacks;
  callbacks.on_head = [&](int status, const HttpHeaders& headers) {
    response.status = status;
    response.headers = headers;
  };
  callbacks.on_data = std::move(on_data);
  if (!callbacks.on_data) {
    callbacks.on_data = [&](std::string_view part) { response.body += part; };
  }
  callbacks.on_done = [&](Status status) { done.set_value(std::move(status)); };
  Fetch(std::move(call), std::move(callbacks));
  MR_RETURN_IF_ERROR(done.get_future().get());
  return response;
}

}  // namespace millrace::net
