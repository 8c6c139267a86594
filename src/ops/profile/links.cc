#include "ops/profile/links.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/statistics.h"

namespace millrace::ops {
namespace {

constexpr double kShortestS = 1e-9;  // of a transfer
constexpr size_t kCopyBytes = size_t{32} << 20;
constexpr size_t kMessageBytes[] = {64, 4 << 10, 64 << 10, 512 << 10, 4 << 20};
constexpr int kTimeoutSeconds = 10;

Status SystemError(const char* what) {
  return Unavailable(fmt::format("loopback: {}: {}", what, std::strerror(errno)));
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  bool ok() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }

  // If the other side dies, the measurement ends instead of hanging.
  void Configure() const {
    const int one = 1;
    setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    const timeval limit = {.tv_sec = kTimeoutSeconds, .tv_usec = 0};
    setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  bool SendAll(const char* data, size_t size) const {
    while (size > 0) {
      const ssize_t sent = send(fd(), data, size, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }
  bool ReceiveAll(char* data, size_t size) const {
    while (size > 0) {
      const ssize_t got = recv(fd(), data, size, 0);
      if (got <= 0) return false;
      data += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  UniqueFd fd_;
};

struct Ends {
  Socket near, far;
};

Result<Ends> Connect() {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.ok() || bind(listener.fd(), generic, size) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), generic, &size) != 0) {
    return SystemError("cannot listen");
  }
  Ends ends;
  ends.near = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!ends.near.ok() || connect(ends.near.fd(), generic, size) != 0) {
    return SystemError("cannot connect");
  }
  ends.far = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!ends.far.ok()) return SystemError("cannot accept");
  ends.near.Configure();
  ends.far.Configure();
  return ends;
}

// Answers every message of each size with one byte, as often as the other side sends.
void Answer(const Socket& socket, int rounds) {
  std::vector<char> buffer(*std::max_element(std::begin(kMessageBytes), std::end(kMessageBytes)));
  for (const size_t size : kMessageBytes) {
    for (int i = 0; i < rounds; ++i) {
      if (!socket.ReceiveAll(buffer.data(), size) || !socket.SendAll(buffer.data(), 1)) return;
    }
  }
}

}  // namespace

double MeasureMemoryCopy(int repeats, const Clock& clock) {
  std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    from[static_cast<size_t>(i) % kCopyBytes] = static_cast<char>(i);
    const Time begin = clock.Now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    seconds.push_back((clock.Now() - begin).seconds());
    // Reads the copy, so that the compiler keeps it.
    MR_CHECK(to[static_cast<size_t>(i) % kCopyBytes] == static_cast<char>(i));
  }
  return static_cast<double>(kCopyBytes) / std::max(Median(seconds), 1e-9);
}

Result<std::vector<cost::TransferSample>> MeasureLoopback(int repeats, const Clock& clock) {
  MR_ASSIGN_OR_RETURN(Ends ends, Connect());
  std::thread other([&ends, repeats] { Answer(ends.far, repeats); });
  std::vector<char> buffer(*std::max_element(std::begin(kMessageBytes), std::end(kMessageBytes)));
  std::vector<cost::TransferSample> samples;
  bool whole = true;
  for (const size_t size : kMessageBytes) {
    std::vector<double> seconds;
    for (int i = 0; whole && i < repeats; ++i) {
      const Time begin = clock.Now();
      char answer = 0;
      whole = ends.near.SendAll(buffer.data(), size) && ends.near.ReceiveAll(&answer, 1);
      seconds.push_back((clock.Now() - begin).seconds());
    }
    if (whole) samples.push_back({static_cast<double>(size), Median(seconds)});
  }
  shutdown(ends.near.fd(), SHUT_RDWR);
  other.join();
  if (!whole) return Unavailable("loopback: a message did not arrive");
  // The smallest round trip consists of two directions of about the same length.
  const double back = samples.front().seconds / 2;
  for (cost::TransferSample& sample : samples) {
    sample.seconds = std::max(sample.seconds - back, kShortestS);  // a disturbed first sample
  }
  return samples;
}

}  // namespace millrace::ops
