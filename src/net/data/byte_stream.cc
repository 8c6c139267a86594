#include "net/data/byte_stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/host_port.h"

namespace millrace::net {
namespace {

constexpr int kKeepAliveIdleSeconds = 5;
constexpr int kKeepAliveIntervalSeconds = 2;
constexpr int kKeepAliveProbes = 3;
// Limit of bytes that are not yet on the wire. Bytes that the kernel holds beyond it have been sent
// and wait for their acknowledgement.
constexpr int kUnsentBytesMax = 256 << 10;
// Bytes worth a wake-up: reading this much at once costs little per byte, and the first bytes are
// still in the cache when the last arrive.
constexpr size_t kReadWorthBytes = 256 << 10;
constexpr size_t kTlsRecordBytes = 16 << 10;
constexpr size_t kBindingBytes = 32;

IoResult FromErrno(const char* what) {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {.blocked = true};
  return {.ended = fmt::format("{}: {}", what, std::strerror(errno))};
}

// On a lossless network, pacing (as in BBR) costs a timer per packet and gains nothing. Every
// kernel has this algorithm and lets every process choose it.
constexpr std::string_view kUnpaced = "reno";

bool IsLoopback(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  // Checks the local end: it is on the loopback interface exactly when the remote end is.
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(UniqueFd socket) : socket_(std::move(socket)) {}

  IoResult Read(std::span<const iovec> places) override {
    const ssize_t n = readv(socket_.get(), places.data(), static_cast<int>(places.size()));
    if (n < 0) return FromErrno("reading failed");
    if (n == 0) return {.ended = "closed by the other side"};
    return {.bytes = static_cast<size_t>(n)};
  }

  IoResult Write(std::span<const iovec> parts, bool more) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n < 0) return FromErrno("writing failed");
    return {.bytes = static_cast<size_t>(n)};
  }

  void Expect(size_t bytes) override {
    const int wanted = static_cast<int>(std::min(bytes, kReadWorthBytes));
    if (wanted == wake_at_) return;
    wake_at_ = wanted;
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
  }

  bool one_thread() const override { return false; }
  int fd() const override { return socket_.get(); }

 private:
  UniqueFd socket_;
  int wake_at_ = 1;  // in bytes; used by the reading thread
};

class TlsStream : public ByteStream {
 public:
  TlsStream(UniqueFd socket, std::unique_ptr<SSL, decltype(&SSL_free)> ssl)
      : socket_(std::move(socket)), ssl_(std::move(ssl)) {}

  IoResult Handshake() override {
    ERR_clear_error();
    const int rc = SSL_do_handshake(ssl_.get());
    return rc == 1 ? IoResult{} : FromSsl(rc, "TLS handshake failed");
  }

  IoResult Read(std::span<const iovec> places) override {
    IoResult result;
    for (const iovec& place : places) {
      size_t done = 0;
      while (done < place.iov_len) {
        size_t n = 0;
        ERR_clear_error();
        const int rc = SSL_read_ex(ssl_.get(), static_cast<std::byte*>(place.iov_base) + done,
                                   place.iov_len - done, &n);
        if (rc != 1) {
          if (result.bytes > 0) return result;  // the next call reports the error
          return FromSsl(rc, "reading failed");
        }
        done += n;
        result.bytes += n;
      }
    }
    return result;
  }

  // Parts are gathered into full records: a record per part would cost more than the copy.
  IoResult Write(std::span<const iovec> parts, bool /*more*/) override {
    IoResult result;
    if (Pending()) {
      result = WriteRecord();
      if (Pending()) return result;
    }
    for (const iovec& part : parts) {
      const size_t n = std::min(part.iov_len, kTlsRecordBytes - filled_);
      if (n > 0) std::memcpy(record_.data() + filled_, part.iov_base, n);
      filled_ += n;
      result.bytes += n;
      if (filled_ == kTlsRecordBytes) break;
    }
    if (Pending()) {
      IoResult written = WriteRecord();
      result.ended = std::move(written.ended);
      if (result.bytes == 0) result.blocked = written.blocked;
    }
    return result;
  }

  bool Pending() const override { return written_ < filled_; }

  std::vector<std::byte> Binding() const override {
    constexpr std::string_view kLabel = "EXPORTER-millrace-data-plane";
    std::vector<std::byte> out(kBindingBytes);
    MR_CHECK(SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(out.data()),
                                        out.size(), kLabel.data(), kLabel.size(), nullptr, 0,
                                        0) == 1);
    return out;
  }

  bool one_thread() const override { return true; }
  int fd() const override { return socket_.get(); }

 private:
  IoResult WriteRecord() {
    while (Pending()) {
      size_t n = 0;
      ERR_clear_error();
      const int rc = SSL_write_ex(ssl_.get(), record_.data() + written_, filled_ - written_, &n);
      if (rc != 1) return FromSsl(rc, "writing failed");
      written_ += n;
    }
    filled_ = written_ = 0;
    return {};
  }

  IoResult FromSsl(int rc, const char* what) {
    const int error = SSL_get_error(ssl_.get(), rc);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return {.blocked = true};
    if (error == SSL_ERROR_ZERO_RETURN) return {.ended = "closed by the other side"};
    const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
    const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
    ERR_clear_error();
    if (reason == nullptr) reason = errno != 0 ? std::strerror(errno) : "closed";
    return {.ended = fmt::format("{}: {}", what, reason)};
  }

  UniqueFd socket_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  std::array<std::byte, kTlsRecordBytes> record_;
  size_t filled_ = 0, written_ = 0;
};

}  // namespace

std::unique_ptr<ByteStream> MakePlainStream(UniqueFd socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

Result<std::unique_ptr<ByteStream>> MakeTlsStream(UniqueFd socket, const TlsContext& context,
                                                  StreamSide side) {
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket.get()) != 1) {
    ERR_clear_error();
    return Internal("cannot create a TLS session");
  }
  SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (side == StreamSide::kAccepting) {
    SSL_set_accept_state(ssl.get());
  } else {
    SSL_set_connect_state(ssl.get());
  }
  return std::unique_ptr<ByteStream>(
      std::make_unique<TlsStream>(std::move(socket), std::move(ssl)));
}

bool IsNumeric(const std::string& endpoint) {
  const auto where = ParseHostPort(endpoint);
  in6_addr address;
  return !where.ok() || inet_pton(AF_INET, where->host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, where->host.c_str(), &address) == 1;
}

Result<UniqueFd> StartConnect(const std::string& endpoint) {
  MR_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(endpoint));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (error != 0) {
    return Unavailable(fmt::format("cannot resolve {}: {}", endpoint, gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    return Unavailable(fmt::format("cannot create a socket: {}", std::strerror(errno)));
  }
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return Unavailable(fmt::format("cannot connect to {}: {}", endpoint, std::strerror(errno)));
  }
  return fd;
}

std::string ConnectError(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

void TuneDataSocket(int fd, Duration unacked_within) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));  // a hint; failure costs only speed
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(unacked_within.ns / 1'000'000));
  set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytesMax);
  if (IsLoopback(fd)) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
  }
}

}  // namespace millrace::net
