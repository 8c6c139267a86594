#include "apps/commands/admin_endpoints.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "apps/common/admin_socket.h"
#include "base/host_port.h"
#include "base/log.h"
#include "cluster/link/link_security.h"

namespace millrace::apps {
namespace {

constexpr size_t kAdminConnectionsMax = 64;
constexpr std::chrono::seconds kSocketLookEvery(2);  // for the socket's file

net::HttpServerOptions AdminServerOptions() {
  net::HttpServerOptions options;
  options.connections_max = kAdminConnectionsMax;
  return options;
}

Result<std::unique_ptr<net::HttpServer>> StartAddress(const AdminEndpointOptions& options,
                                                      serve::Service& service) {
  MR_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.listen));
  net::HttpServerOptions http = AdminServerOptions();
  http.host = address.host;
  http.port = address.port;
  http.tls_certificate_path = options.ssl_certfile;
  http.tls_key_path = options.ssl_keyfile;
  auto server = net::HttpServer::Start(http, service.Handler(serve::Endpoint::kAdminListen));
  if (!server.ok()) return server.status().WithContext("--admin-listen");
  const bool tls = !options.ssl_certfile.empty();
  MR_LOG(info, "admin routes, with the admin key, on {}://{}", tls ? "https" : "http",
         HostPort{address.host, (*server)->port()}.ToString());
  if (!tls && !cluster::IsLoopback(options.listen)) {
    MR_LOG(warn,
           "the admin key crosses the network in plain text: give --ssl-certfile and "
           "--ssl-keyfile, or let --admin-listen be a loopback address");
  }
  return server;
}

}  // namespace

AdminEndpoints::AdminEndpoints(uint16_t main_port, serve::Service& service)
    : main_port_(main_port), service_(service), file_(std::make_shared<CurrentFile>()) {}

Result<std::unique_ptr<AdminEndpoints>> AdminEndpoints::Start(const AdminEndpointOptions& options,
                                                              serve::Service& service) {
  std::unique_ptr<AdminEndpoints> endpoints(new AdminEndpoints(options.main_port, service));
  MR_RETURN_IF_ERROR(endpoints->OpenSocket());
  if (!options.listen.empty()) {
    MR_ASSIGN_OR_RETURN(endpoints->address_, StartAddress(options, service));
    endpoints->address_has_tls_ = !options.ssl_certfile.empty();
  }
  endpoints->watcher_ = std::thread([made = endpoints.get()] { made->Watch(); });
  return endpoints;
}

AdminEndpoints::~AdminEndpoints() { Stop(); }

Status AdminEndpoints::OpenSocket() {
  net::HttpServerOptions options = AdminServerOptions();
  MR_ASSIGN_OR_RETURN(options.unix_path,
                      MakeAdminSocketPath(RuntimePlaces::OfThisProcess(), main_port_));
  auto started = net::HttpServer::Start(options, service_.Handler(serve::Endpoint::kAdminSocket));
  if (!started.ok() && started.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition(fmt::format(
        "{}. Another server of this user may have port {} on another address or in another network "
        "namespace: choose another --port, or another XDG_RUNTIME_DIR",
        started.status().message(), main_port_));
  }
  MR_RETURN_IF_ERROR(started.status());
  socket_ = std::move(started).value();
  MR_LOG(info, "admin routes on the unix socket {}", options.unix_path);
  MutexLock lock(file_->mutex);
  file_->file = socket_->socket_file();
  return OkStatus();
}

// The folder of a user's sockets is removed when the user's last session ends, and cleanup programs
// remove files that look old.
void AdminEndpoints::Watch() {
  std::string reported;
  MutexLock lock(mutex_);
  while (!stops_.wait_for(lock, kSocketLookEvery,
                          [this]() MR_REQUIRES(mutex_) { return stopping_; })) {
    if (socket_ && socket_->socket_file().IsThere()) continue;
    socket_.reset();  // first: it could remove a new file as its own
    const Status opened = OpenSocket();
    if (!opened.ok() && opened.message() != reported) {
      MR_LOG(warn, "the admin socket was removed and cannot be created again: {}",
             opened.message());
    }
    reported = opened.message();
  }
}

std::function<void()> AdminEndpoints::FileRemover() const {
  return [current = file_] {
    MutexLock lock(current->mutex);
    current->file.Remove();
  };
}

Status AdminEndpoints::ReloadTls() { return address_has_tls_ ? address_->ReloadTls() : OkStatus(); }

void AdminEndpoints::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stops_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (address_) address_->Stop(Duration{});
  if (socket_) socket_->Stop(Duration{});
}

}  // namespace millrace::apps
