#include "net/http/http_server.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "net/certificate_dates.h"
#include "net/http/body_memory.h"
#include "net/http/session_group.h"
#include "net/listener.h"
#include "net/tls.h"

namespace millrace::net {
namespace {

constexpr int kIoThreadsMax = 64;
constexpr size_t kRefusalsMax = 64;  // connections that get a 503, on top of connections_max
constexpr Duration kCutWarningPeriod = Duration::Seconds(10);

Result<TlsContext> LoadNotedTls(const std::string& certificate_path, const std::string& key_path) {
  MR_ASSIGN_OR_RETURN(TlsContext tls, LoadServerTls(certificate_path, key_path));
  NoteCertificate("https", certificate_path, CertificateFile::kChain,
                  "put a new one there, and its key: a server that runs reads them again");
  return tls;
}

Result<TlsContext> TlsOf(const HttpServerOptions& options) {
  const bool certificate = !options.tls_certificate_path.empty();
  if (certificate != !options.tls_key_path.empty()) {
    return InvalidArgument(
        fmt::format("TLS needs a certificate file and a key file; the {} file is not given",
                    certificate ? "key" : "certificate"));
  }
  if (!certificate) return TlsContext();
  if (!options.unix_path.empty()) return InvalidArgument("TLS is not supported on a unix socket");
  return LoadNotedTls(options.tls_certificate_path, options.tls_key_path);
}

// For TCP, the result has no file.
Result<UnixListener> Listen(const HttpServerOptions& options) {
  if (!options.unix_path.empty()) return ListenOnUnixSocket(options.unix_path);
  UnixListener listening;
  MR_ASSIGN_OR_RETURN(listening.socket, ListenOnTcp(options.host, options.port));
  return listening;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      HttpHandler handler) {
  MR_CHECK(handler != nullptr);
  if (options.io_threads < 1 || options.io_threads > kIoThreadsMax) {
    return InvalidArgument(fmt::format("the number of HTTP I/O threads must be 1 to {}, got {}",
                                       kIoThreadsMax, options.io_threads));
  }
  MR_ASSIGN_OR_RETURN(TlsContext tls, TlsOf(options));
  MR_ASSIGN_OR_RETURN(UnixListener listening, Listen(options));
  std::unique_ptr<HttpServer> server(new HttpServer());
  server->socket_file_ = listening.file;
  server->tls_certificate_path_ = options.tls_certificate_path;
  server->tls_key_path_ = options.tls_key_path;
  server->bodies_ = std::make_unique<BodyMemory>(options.body_bytes_in_all_max,
                                                 options.body_bytes_per_address_max);
  for (int i = 0; i < options.io_threads; ++i) {
    server->groups_.push_back(
        std::make_unique<SessionGroup>(options, handler, tls, *server->bodies_));
  }
  auto on_accept = [server = server.get(), max = options.connections_max, next = size_t{0}](
                       UniqueFd socket, std::string peer) mutable {
    const size_t open = server->connections();
    if (open >= max + kRefusalsMax) return;
    SessionGroup& group = *server->groups_[next++ % server->groups_.size()];
    if (open >= max) {
      group.Refuse(std::move(socket));
    } else {
      group.Add(std::move(socket), std::move(peer));
    }
  };
  MR_ASSIGN_OR_RETURN(server->listener_,
                      Listener::Start(std::move(listening.socket), std::move(on_accept)));
  return server;
}

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() { Stop(Duration()); }

uint16_t HttpServer::port() const { return listener_->port(); }

size_t HttpServer::connections() const {
  return std::accumulate(groups_.begin(), groups_.end(), size_t{0},
                         [](size_t sum, const auto& group) { return sum + group->size(); });
}

Status HttpServer::ReloadTls() {
  MR_CHECK(!tls_certificate_path_.empty()) << "the server has no TLS";
  MR_ASSIGN_OR_RETURN(const TlsContext tls, LoadNotedTls(tls_certificate_path_, tls_key_path_));
  for (auto& group : groups_) group->UseTls(tls);
  return OkStatus();
}

void HttpServer::Stop(Duration limit) {
  if (std::exchange(stopped_, true)) return;
  socket_file_.Remove();
  if (listener_) listener_->Stop();
  for (auto& group : groups_) group->Drain();
  SteadyClock clock;
  const Time end = clock.Now() + limit;
  for (auto& group : groups_) {
    const Time now = clock.Now();
    group->WaitUntilEmpty(now < end ? end - now : Duration());
  }
  for (auto& group : groups_) {
    group->CutAll();
    while (!group->WaitUntilEmpty(kCutWarningPeriod)) {
      MR_LOG(warn, "still waiting for an HTTP handler to return");
    }
  }
  groups_.clear();
}

}  // namespace millrace::net
