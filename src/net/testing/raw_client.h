// For tests: RawClient, a blocking TCP client that sends given bytes and returns what it receives.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"

namespace millrace::net {

inline constexpr int kTestPatienceMs = 20'000;

class RawClient {
 public:
  // `receive_buffer_bytes` 0: the kernel's default.
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof(receive_buffer_bytes));
    }
    const int one = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // False when the peer no longer accepts bytes.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until the peer closes; closed() tells whether it did within `patience_ms`.
  std::string ReadToEnd(int patience_ms = kTestPatienceMs) {
    while (ReadMore(patience_ms)) {
    }
    return std::move(received_);
  }

  // Reads until `mark` arrives; returns everything up to its end and keeps the rest.
  std::string ReadUntil(std::string_view mark) {
    size_t at;
    while ((at = received_.find(mark)) == std::string::npos) {
      if (!ReadMore(kTestPatienceMs)) return std::move(received_);
    }
    std::string head = received_.substr(0, at + mark.size());
    received_.erase(0, at + mark.size());
    return head;
  }

  // Reads one response with Content-Length.
  std::string ReadResponse() {
    std::string head = ReadUntil("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::strtoul(head.c_str() + at + 16, nullptr, 10);
    while (received_.size() < length && ReadMore(kTestPatienceMs)) {
    }
    head += received_.substr(0, length);
    received_.erase(0, length);
    return head;
  }

  // The peer has closed or reset the connection.
  bool closed() const { return closed_; }
  void Close() { fd_ = UniqueFd(); }
  // Closes with a reset instead of an orderly end.
  void Reset() {
    const linger now{1, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }

 private:
  bool ReadMore(int patience_ms) {
    pollfd wait{fd_.get(), POLLIN, 0};
    if (poll(&wait, 1, patience_ms) <= 0) return false;
    char buffer[16384];
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) {
      closed_ = true;
      return false;
    }
    received_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  UniqueFd fd_;
  bool connected_ = false;
  bool closed_ = false;
  std::string received_;
};

// The status code of "HTTP/1.1 200 OK..."; 0 if there is none.
inline int StatusOf(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::atoi(response.c_str() + 9) : 0;
}

// Polls `condition` until it is true or `limit` has passed.
template <typename Condition>
bool Eventually(Condition condition, Duration limit = Duration::Seconds(20)) {
  const SteadyClock clock;
  const Time end = clock.Now() + limit;
  while (!condition()) {
    if (clock.Now() > end) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace millrace::net
