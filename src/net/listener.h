// Listener: a thread that accepts connections on a TCP or unix socket, sets their options and
// passes them to a callback. It owns the thread and the listening socket.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace millrace::net {

// Listens on TCP. Port 0: any free one. A port that is in use is kFailedPrecondition.
Result<UniqueFd> ListenOnTcp(const std::string& host, uint16_t port);

// The same on every family of addresses that the host has: `localhost` is 127.0.0.1 and ::1. All
// have one port. Those that this machine lacks are left out; at least one socket.
Result<std::vector<UniqueFd>> ListenOnAll(const std::string& host, uint16_t port);

class Listener {
 public:
  // Called on the listener's thread for each connection: non-blocking, over TCP with TCP_NODELAY
  // and keep-alive probes. `peer` is "127.0.0.1:51324", or "process 4711 of user 1000" on a unix
  // socket.
  using OnAccept = std::function<void(UniqueFd, std::string peer)>;

  // Starts the thread. `socket` must be listening.
  static Result<std::unique_ptr<Listener>> Start(UniqueFd socket, OnAccept on_accept);
  static Result<std::unique_ptr<Listener>> Start(std::vector<UniqueFd> sockets, OnAccept on_accept);
  // The same, on the sockets of ListenOnAll.
  static Result<std::unique_ptr<Listener>> Start(const std::string& host, uint16_t port,
                                                 OnAccept on_accept);
  ~Listener();

  uint16_t port() const { return port_; }  // 0 on a unix socket
  // Stops accepting and closes the socket. Any thread except the listener's, one at a time.
  void Stop();

 private:
  Listener(std::vector<UniqueFd> sockets, UniqueFd stop_event, uint16_t port, OnAccept on_accept);
  void Run();
  void AcceptAll(const UniqueFd& socket);

  std::vector<UniqueFd> sockets_;
  UniqueFd stop_event_;
  const uint16_t port_;
  const OnAccept on_accept_;
  bool out_of_files_ = false;
  std::thread thread_;
};

}  // namespace millrace::net
