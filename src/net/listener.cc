#include "net/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"

namespace millrace::net {
namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptsPerWake = 256;     // between two checks of the stop event
constexpr int kOutOfFilesPauseMs = 100;  // an accept that cannot succeed must not spin

// A peer that vanished without closing its connection is detected after 60 + 3 * 15 seconds.
constexpr int kFreePortTries = 16;
constexpr int kKeepAliveIdleSeconds = 60;
constexpr int kKeepAliveIntervalSeconds = 15;
constexpr int kKeepAliveProbes = 3;
// Keep-alive probes stop while sent bytes are not acknowledged; this limit holds then.
constexpr int kUnacknowledgedMillisMax =
    (kKeepAliveIdleSeconds + kKeepAliveProbes * kKeepAliveIntervalSeconds) * 1000;

void SetIntOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));  // a hint; failure costs only speed
}

void Tune(int fd) {
  SetIntOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetIntOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetIntOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  SetIntOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  SetIntOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  SetIntOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMillisMax);
}

std::string UnixPeerName(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "unix socket";
  return fmt::format("process {} of user {}", peer.pid, peer.uid);
}

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return fmt::format("[{}]:{}", text, ntohs(v6.sin6_port));
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  return fmt::format("{}:{}", text, ntohs(v4.sin_port));
}

uint16_t BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_UNIX) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

const char* BindCure(int error) {
  if (error == EACCES) {
    return "; ports below 1024 are for root: choose another one, or give the program the "
           "capability "
           "CAP_NET_BIND_SERVICE";
  }
  if (error == EADDRNOTAVAIL) {
    return "; this machine has no such address: choose one of its own, or 0.0.0.0 for all of them";
  }
  return "";
}

// The addresses of a host to listen on.
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& host, uint16_t port, const std::string& where) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found);
  if (error == 0) return Addresses(found, freeaddrinfo);
  return InvalidArgument(fmt::format("cannot listen on {}: {}", where, gai_strerror(error)));
}

std::string WhereText(const std::string& host, uint16_t port) {
  return fmt::format("{}:{}", host.empty() ? "*" : host, port);
}

void SetPort(addrinfo& info, uint16_t port) {
  if (info.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(info.ai_addr)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(info.ai_addr)->sin_port = htons(port);
  }
}

Result<UniqueFd> BindTo(const addrinfo& info, const std::string& where) {
  UniqueFd fd(socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return Unavailable(fmt::format("cannot listen: {}", std::strerror(errno)));
  SetIntOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return FailedPrecondition(
          fmt::format("cannot listen on {}: the port is in use; choose another one", where));
    }
    return InvalidArgument(
        fmt::format("cannot listen on {}: {}{}", where, std::strerror(error), BindCure(error)));
  }
  if (listen(fd.get(), kBacklog) != 0) {
    return Unavailable(fmt::format("cannot listen on {}: {}", where, std::strerror(errno)));
  }
  return fd;
}

// One socket for each family, all with the port of the first.
Result<std::vector<UniqueFd>> BindToAll(addrinfo& first, uint16_t port, const std::string& where) {
  std::vector<UniqueFd> sockets;
  std::set<int> families;
  Status failed;
  for (addrinfo* info = &first; info != nullptr; info = info->ai_next) {
    if (families.contains(info->ai_family)) continue;
    SetPort(*info, sockets.empty() ? port : BoundPort(sockets.front().get()));
    auto bound = BindTo(*info, where);
    if (bound.ok()) {
      families.insert(info->ai_family);
      sockets.push_back(std::move(*bound));
    } else if (bound.status().code() == StatusCode::kFailedPrecondition) {
      return bound.status();  // another program would get a part of the connections
    } else {
      failed = bound.status();  // the system may lack a family
    }
  }
  if (sockets.empty()) return failed;
  return sockets;
}

}  // namespace

Result<UniqueFd> ListenOnTcp(const std::string& host, uint16_t port) {
  const std::string where = WhereText(host, port);
  MR_ASSIGN_OR_RETURN(const Addresses found, Resolve(host, port, where));
  return BindTo(*found, where);
}

Result<std::vector<UniqueFd>> ListenOnAll(const std::string& host, uint16_t port) {
  const std::string where = WhereText(host, port);
  MR_ASSIGN_OR_RETURN(const Addresses found, Resolve(host, port, where));
  for (int tries = 1;; ++tries) {
    auto sockets = BindToAll(*found, port, where);
    // A free port of one family may be in use in another.
    const bool taken = sockets.status().code() == StatusCode::kFailedPrecondition;
    if (!taken || port != 0 || tries == kFreePortTries) return sockets;
  }
}

Result<std::unique_ptr<Listener>> Listener::Start(UniqueFd socket, OnAccept on_accept) {
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  return Start(std::move(sockets), std::move(on_accept));
}

Result<std::unique_ptr<Listener>> Listener::Start(std::vector<UniqueFd> sockets,
                                                  OnAccept on_accept) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC));
  if (stop_event.get() < 0) {
    return Unavailable(fmt::format("cannot create an event: {}", std::strerror(errno)));
  }
  const uint16_t bound = BoundPort(sockets.front().get());
  return std::unique_ptr<Listener>(
      new Listener(std::move(sockets), std::move(stop_event), bound, std::move(on_accept)));
}

Result<std::unique_ptr<Listener>> Listener::Start(const std::string& host, uint16_t port,
                                                  OnAccept on_accept) {
  MR_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, ListenOnAll(host, port));
  return Start(std::move(sockets), std::move(on_accept));
}

Listener::Listener(std::vector<UniqueFd> sockets, UniqueFd stop_event, uint16_t port,
                   OnAccept on_accept)
    : sockets_(std::move(sockets)),
      stop_event_(std::move(stop_event)),
      port_(port),
      on_accept_(std::move(on_accept)),
      thread_([this] { Run(); }) {}

Listener::~Listener() { Stop(); }

void Listener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  MR_CHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  sockets_.clear();
}

void Listener::Run() {
  std::vector<pollfd> waits = {{stop_event_.get(), POLLIN, 0}};
  for (const UniqueFd& socket : sockets_) waits.push_back({socket.get(), POLLIN, 0});
  while (true) {
    // When out of descriptors, wait a while for the stop event only.
    const int ready = poll(waits.data(), out_of_files_ ? 1 : waits.size(),
                           out_of_files_ ? kOutOfFilesPauseMs : -1);
    if (ready < 0 && errno != EINTR) {
      MR_LOG(error, "the listener stopped: {}", std::strerror(errno));
      return;
    }
    if (ready > 0 && waits[0].revents != 0) return;
    for (const UniqueFd& socket : sockets_) AcceptAll(socket);
  }
}

void Listener::AcceptAll(const UniqueFd& socket) {
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    UniqueFd fd(accept4(socket.get(), reinterpret_cast<sockaddr*>(&address), &size,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      const bool exhausted =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (exhausted && !out_of_files_) {
        MR_LOG(warn, "cannot accept connections: {}; raise the limit on open files (ulimit -n)",
               std::strerror(errno));
      }
      if (exhausted) out_of_files_ = true;
      return;
    }
    out_of_files_ = false;
    const bool unix_socket = address.ss_family == AF_UNIX;
    if (!unix_socket) Tune(fd.get());
    std::string peer = unix_socket ? UnixPeerName(fd.get()) : PeerName(address);
    on_accept_(std::move(fd), std::move(peer));
  }
}

}  // namespace millrace::net
