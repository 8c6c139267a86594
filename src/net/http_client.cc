#include "net/http_client.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/http1.h"
#include "net/tls.h"
#include "net/unix_socket.h"

namespace millrace::net {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr auto kAwaitResult = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReplyReadBytes = 16 * 1024;
constexpr std::chrono::milliseconds kSweepPeriod{50};

std::string FormatRequest(const HttpCall& call) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", call.method, call.url.target,
                                call.url.HostHeader());
  for (const auto& [name, value] : call.headers) out += fmt::format("{}: {}\r\n", name, value);
  if (!call.body.empty() || call.method == "POST") {
    out += fmt::format("Content-Length: {}\r\n", call.body.size());
  }
  return out + "\r\n" + call.body;
}

// A connection to one server, plain or TLS.
struct Connection {
  explicit Connection(asio::io_context& io) : socket(io) {}

  tcp::socket socket;
  std::unique_ptr<asio::ssl::stream<tcp::socket&>> tls;
  std::vector<char> input = std::vector<char>(kReplyReadBytes);

  awaitable<error_code> Write(std::string_view bytes) {
    const auto buffer = asio::buffer(bytes.data(), bytes.size());
    auto [ec, n] = tls ? co_await asio::async_write(*tls, buffer, kAwaitResult)
                       : co_await asio::async_write(socket, buffer, kAwaitResult);
    co_return ec;
  }
  // Appends the bytes of one read.
  awaitable<error_code> Read(std::string* out) {
    auto [ec, n] = tls ? co_await tls->async_read_some(asio::buffer(input), kAwaitResult)
                       : co_await socket.async_read_some(asio::buffer(input), kAwaitResult);
    out->append(input.data(), n);
    co_return n > 0 ? error_code() : ec;
  }
  // False when the server closed this idle connection or sent bytes that were not requested.
  bool IsQuiet() {
    char byte;
    const ssize_t n = recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  void Close() {
    error_code ignored;
    socket.close(ignored);
  }
};

using ConnectionPtr = std::shared_ptr<Connection>;

// Calls with the same key may share a connection.
std::string ServerKey(const HttpCall& call) {
  if (!call.unix_path.empty()) return "unix:" + call.unix_path;
  const Url& url = call.url;
  return fmt::format("{}://{}:{}", url.https ? "https" : "http", url.host, url.port);
}

}  // namespace

// Used on the client's thread only, except for the marked members.
struct HttpClient::Hub {
  Hub(const HttpClientOptions& o, TlsContext t) : options(o), sweep_timer(io) {
    SSL_CTX_up_ref(t.get());
    tls.emplace(t.get());
  }

  awaitable<void> Sweep();
  ConnectionPtr TakeIdle(const std::string& key);
  void KeepIdle(const std::string& key, ConnectionPtr connection);

  const HttpClientOptions options;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::optional<asio::ssl::context> tls;
  asio::steady_timer sweep_timer;
  std::unordered_map<FetchId, Exchange*> exchanges;
  std::multimap<std::string, ConnectionPtr> idle;
  bool stopping = false;
  std::atomic<uint64_t> next_id{1};  // any thread
  std::thread thread;
};

// One fetch. Kept alive by its coroutine.
class HttpClient::Exchange {
 public:
  Exchange(Hub& hub, FetchId id, HttpCall call, FetchCallbacks callbacks)
      : hub_(hub), id_(id), call_(std::move(call)), callbacks_(std::move(callbacks)) {}

  static awaitable<void> Run(std::shared_ptr<Exchange> self) {
    Exchange& e = *self;
    Status status = co_await e.Perform();
    e.hub_.exchanges.erase(e.id_);
    if (e.abort_reason_) status = *e.abort_reason_;
    e.callbacks_.on_done(std::move(status));
  }

  void Abort(Status reason) {
    if (abort_reason_) return;
    abort_reason_ = std::move(reason);
    if (resolver_) resolver_->cancel();
    if (connection_) connection_->Close();
  }

  void CheckDeadline(SteadyTime now) {
    if (now < deadline_) return;
    Abort({StatusCode::kDeadlineExceeded,
           fmt::format("{} {} in time", call_.url.ToString(),
                       connected_ ? "did not answer" : "did not accept the connection")});
  }

 private:
  awaitable<Status> Perform();
  awaitable<Status> Connect();
  Status ConnectToUnixSocket();
  awaitable<Status> Converse(bool* nothing_came);
  ResponseParser::Sinks Sinks() const;
  void SetDeadline(Duration d) {
    deadline_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(d.ns);
  }
  Status Broken(std::string_view what, const error_code& ec) const {
    return Unavailable(fmt::format("{} {}: {}", what, call_.url.ToString(), ec.message()));
  }

  Hub& hub_;
  const FetchId id_;
  const HttpCall call_;
  const FetchCallbacks callbacks_;
  std::optional<tcp::resolver> resolver_;
  ConnectionPtr connection_;
  SteadyTime deadline_ = SteadyTime::max();
  std::optional<Status> abort_reason_;
  bool connected_ = false;
};

awaitable<Status> HttpClient::Exchange::Perform() {
  if (abort_reason_) co_return *abort_reason_;
  for (const auto& [name, value] : call_.headers) {
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      co_return InvalidArgument("a request header contains a line end or a NUL byte");
    }
  }
  const std::string key = ServerKey(call_);
  connection_ = hub_.TakeIdle(key);
  if (connection_) {
    bool nothing_came = false;
    Status status = co_await Converse(&nothing_came);
    // The server may have closed the idle connection before the request reached it; then the
    // request is sent on a new one.
    if (status.ok() || !nothing_came || abort_reason_) co_return status;
  }
  Status status = co_await Connect();
  if (!status.ok()) co_return status;
  bool nothing_came = false;
  co_return co_await Converse(&nothing_came);
}

// Does not wait: the kernel connects or refuses at once.
Status HttpClient::Exchange::ConnectToUnixSocket() {
  auto connected = ConnectUnixSocket(call_.unix_path);
  if (!connected.ok()) return Unavailable(connected.status().message());
  connection_ = std::make_shared<Connection>(hub_.io);
  error_code ec;
  connection_->socket.assign(tcp::v4(), connected->get(),
                             ec);  // the family matters only for opening
  if (ec) return Broken("cannot connect to", ec);
  connected->Release();
  connected_ = true;
  return OkStatus();
}

awaitable<Status> HttpClient::Exchange::Connect() {
  connected_ = false;
  if (!call_.unix_path.empty()) co_return ConnectToUnixSocket();
  SetDeadline(hub_.options.connect_timeout);
  resolver_.emplace(hub_.io);
  auto [resolve_error, endpoints] = co_await resolver_->async_resolve(
      call_.url.host, std::to_string(call_.url.port), tcp::resolver::numeric_service, kAwaitResult);
  if (resolve_error) co_return Broken("cannot resolve the host of", resolve_error);
  if (abort_reason_) co_return *abort_reason_;
  connection_ = std::make_shared<Connection>(hub_.io);
  auto [ec, endpoint] = co_await asio::async_connect(connection_->socket, endpoints, kAwaitResult);
  if (ec) co_return Broken("cannot connect to", ec);
  error_code ignored;
  connection_->socket.set_option(tcp::no_delay(true), ignored);
  if (call_.url.https) {
    connection_->tls =
        std::make_unique<asio::ssl::stream<tcp::socket&>>(connection_->socket, *hub_.tls);
    auto& stream = *connection_->tls;
    SSL_set_tlsext_host_name(stream.native_handle(), call_.url.host.c_str());
    if (hub_.options.verify_tls) {
      stream.set_verify_callback(asio::ssl::host_name_verification(call_.url.host), ignored);
    }
    auto [tls_error] =
        co_await stream.async_handshake(asio::ssl::stream_base::client, kAwaitResult);
    if (tls_error) co_return Broken("cannot establish TLS with", tls_error);
  }
  connected_ = true;
  co_return OkStatus();
}

// Sends the request and reads the response. `nothing_came`: the connection ended before the
// response began.
awaitable<Status> HttpClient::Exchange::Converse(bool* nothing_came) {
  connected_ = true;
  SetDeadline(hub_.options.read_timeout);
  const error_code write_error = co_await connection_->Write(FormatRequest(call_));
  HttpLimits limits;
  limits.body_bytes_max = hub_.options.body_bytes_max;
  std::string pending;
  bool keep_alive = false;
  while (true) {  // once more after each interim response
    ResponseParser parser(limits, call_.method == "HEAD", Sinks());
    pending.erase(0, parser.Feed(pending));
    while (parser.stage() == HttpStage::kHead || parser.stage() == HttpStage::kBody) {
      const error_code ec = co_await connection_->Read(&pending);
      if (ec) {
        *nothing_came = parser.stage() == HttpStage::kHead && pending.empty();
        if (ec == asio::error::eof && parser.stage() == HttpStage::kBody) parser.FeedEof();
        if (parser.stage() == HttpStage::kDone) break;
        co_return Broken("lost the connection to", write_error ? write_error : ec);
      }
      SetDeadline(hub_.options.read_timeout);
      pending.erase(0, parser.Feed(pending));
    }
    if (parser.stage() == HttpStage::kFailed) {
      connection_->Close();
      co_return Internal(fmt::format("{}: {}", call_.url.ToString(), parser.failure().message));
    }
    keep_alive = parser.keep_alive();
    if (parser.status() >= 200) break;
  }
  if (keep_alive && pending.empty() && !write_error && !abort_reason_) {
    hub_.KeepIdle(ServerKey(call_), std::move(connection_));
  } else {
    connection_->Close();
  }
  co_return OkStatus();
}

ResponseParser::Sinks HttpClient::Exchange::Sinks() const {
  ResponseParser::Sinks sinks;
  sinks.on_head = [this](int status, const HttpHeaders& headers) {
    if (status >= 200 && callbacks_.on_head) callbacks_.on_head(status, headers);
  };
  sinks.on_body = callbacks_.on_data;
  return sinks;
}

awaitable<void> HttpClient::Hub::Sweep() {
  while (!stopping) {
    sweep_timer.expires_after(kSweepPeriod);
    co_await sweep_timer.async_wait(kAwaitResult);
    const SteadyTime now = std::chrono::steady_clock::now();
    for (const auto& [id, exchange] : exchanges) exchange->CheckDeadline(now);
  }
}

ConnectionPtr HttpClient::Hub::TakeIdle(const std::string& key) {
  while (true) {
    const auto at = idle.find(key);
    if (at == idle.end()) return nullptr;
    ConnectionPtr connection = std::move(at->second);
    idle.erase(at);
    if (connection->IsQuiet()) return connection;
  }
}

void HttpClient::Hub::KeepIdle(const std::string& key, ConnectionPtr connection) {
  if (idle.size() < options.idle_connections_max) idle.emplace(key, std::move(connection));
}

Result<std::unique_ptr<HttpClient>> HttpClient::Start(const HttpClientOptions& options) {
  MR_ASSIGN_OR_RETURN(TlsContext tls,
                      MakeClientTls(options.tls_authority_path, options.verify_tls));
  return std::unique_ptr<HttpClient>(new HttpClient(std::make_unique<Hub>(options, tls)));
}

HttpClient::HttpClient(std::unique_ptr<Hub> hub) : hub_(std::move(hub)) {
  asio::co_spawn(hub_->io, hub_->Sweep(), asio::detached);
  hub_->thread = std::thread([hub = hub_.get()] { hub->io.run(); });
}

HttpClient::~HttpClient() {
  asio::post(hub_->io, [hub = hub_.get()] {
    hub->stopping = true;
    for (const auto& [id, exchange] : hub->exchanges) {
      exchange->Abort(Cancelled("the HTTP client is stopping"));
    }
    hub->idle.clear();
    hub->sweep_timer.cancel();
    hub->work.reset();
  });
  hub_->thread.join();
}

FetchId HttpClient::Fetch(HttpCall call, FetchCallbacks callbacks) {
  const FetchId id(hub_->next_id++);
  auto exchange = std::make_shared<Exchange>(*hub_, id, std::move(call), std::move(callbacks));
  asio::post(hub_->io, [hub = hub_.get(), id, exchange = std::move(exchange)] {
    hub->exchanges.emplace(id, exchange.get());
    if (hub->stopping) exchange->Abort(Cancelled("the HTTP client is stopping"));
    asio::co_spawn(hub->io, Exchange::Run(exchange), asio::detached);
  });
  return id;
}

void HttpClient::Cancel(FetchId id) {
  asio::post(hub_->io, [hub = hub_.get(), id] {
    const auto at = hub->exchanges.find(id);
    if (at != hub->exchanges.end()) at->second->Abort(Cancelled("the fetch was cancelled"));
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
