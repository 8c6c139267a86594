// ByteStream: a connected, non-blocking socket, plain or TLS. Reads and writes take several
// buffers. Owned by a link. A plain stream may be read on one thread and written on another; a TLS
// stream has one thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "net/tls.h"

namespace millrace::net {

// The result of an attempt: some bytes, or the socket has (or takes) none now, or it has ended.
struct IoResult {
  size_t bytes = 0;
  bool blocked = false;
  std::string ended;  // the reason; empty: not ended
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual IoResult Read(std::span<const iovec> places) = 0;
  // Accepted bytes are sent in order; see Pending. `more`: another Write follows in any case, so a
  // packet need not go out half full.
  virtual IoResult Write(std::span<const iovec> parts, bool more) = 0;
  // Accepted bytes are still buffered here: call Write again, with nothing if necessary.
  virtual bool Pending() const { return false; }
  // A hint after a Read: this many bytes are in transit, and none of them is worth a wake-up alone.
  // REQUIRES: they are in transit, at least 1.
  virtual void Expect(size_t /*bytes*/) {}
  // `blocked` until both ends have agreed on keys. Afterwards Read and Write may be used.
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

// Whether `endpoint` is an address, so that no name lookup is needed.
bool IsNumeric(const std::string& endpoint);

// Starts to connect to the first address of `endpoint`. A name lookup may block.
Result<UniqueFd> StartConnect(const std::string& endpoint);
// The error of a connection that has just become writable; empty when it is connected.
std::string ConnectError(int fd);

// Sets no delays, probes of silent peers, a timeout for unacknowledged data, and a small send
// buffer, because urgent frames cannot overtake what the kernel holds.
void TuneDataSocket(int fd, Duration unacked_within);

}  // namespace millrace::net
