// A connected, non-blocking socket, plain or TLS. Reads and writes take several buffers.
// A plain stream may be read on one thread and written on another; a TLS stream has one thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/listener.h"
#include "net/tls.h"

namespace millrace::net {

// What an attempt came to: some bytes, or the socket has (or takes) none now, or it has ended.
struct IoResult {
  size_t bytes = 0;
  bool blocked = false;
  std::string ended;  // why; empty: it goes on
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual IoResult Read(std::span<const iovec> places) = 0;
  // Bytes taken are sent in their order; see Pending. `more`: another Write follows whatever comes
  // of this one, so that a packet need not go out half full.
  virtual IoResult Write(std::span<const iovec> parts, bool more) = 0;
  // Bytes were taken by Write and wait in here: call Write again, with nothing if need be.
  virtual bool Pending() const { return false; }
  // A hint after a Read: this many bytes are on their way and none of them is worth waking up for
  // alone. REQUIRES: they are on their way, at least 1.
  virtual void Expect(size_t /*bytes*/) {}
  // False until the two ends have agreed on keys. Then Read and Write may be used.
  virtual IoResult Handshake() { return {}; }
  // Different for every session, the same at both ends. Empty without TLS.
  virtual std::vector<std::byte> Binding() const { return {}; }
  virtual bool one_thread() const = 0;
  virtual int fd() const = 0;
};

enum class StreamSide { kConnecting, kAccepting };
std::unique_ptr<ByteStream> MakePlainStream(UniqueFd socket);
Result<std::unique_ptr<ByteStream>> MakeTlsStream(UniqueFd socket, const TlsContext& context,
                                                  StreamSide side);

struct HostPort {
  std::string host;
  std::string port;
};
// "127.0.0.1:80", "[::1]:80", "name:80".
Result<HostPort> SplitEndpoint(const std::string& endpoint);
// No name that somebody would have to look up.
bool IsNumeric(const std::string& endpoint);

// Begins to connect to the first address of `endpoint`. Names are looked up, which may wait.
Result<UniqueFd> StartConnect(const std::string& endpoint);
// The error of a connection that has just become writable; empty when it stands.
std::string ConnectError(int fd);

// No delays, probes of silent peers, an end to what is not acknowledged in time, little that waits
// in the kernel where an urgent frame cannot overtake it.
void TuneDataSocket(int fd, Duration unacked_within);

}  // namespace millrace::net
