// DataPlane: carries bytes between the processes of a cluster. Each process owns one.
//
// It has two mechanisms: messages that one side sends (activations), and pulls, where the side that
// needs bytes requests them and the owner serves them (KV, weights). It handles spans of bytes and
// does not know their meaning. StartTcpDataPlane (below) makes one.
//
// Peers are identified by PeerAddress. Connections are made when first needed and bound to the
// peer's incarnation: bytes for one incarnation never reach another. When a connection breaks,
// everything queued for it is dropped, pulls over it fail, and on_peer_lost is called once; a later
// Send or Pull connects again.
//
// Threads: every method may be called from any thread, also from the callbacks. Callbacks run on
// the plane's I/O thread, one at a time; they must be quick and must not block. PullHandler runs on
// a serving thread and may block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "net/payload.h"
#include "net/shared_memory.h"

namespace millrace::net {

struct PeerAddress {
  std::string endpoint;      // "host:port" of its data port
  uint64_t incarnation = 0;  // random, new with every start of the process; never 0
  std::string host_id;       // equal: same kernel, so shared memory can be mapped
  int64_t process_id = 0;
  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

// In order of urgency: a waiting frame of an earlier class is sent before one of a later class.
enum class MessageClass : uint8_t { kDecode, kPrefill, kBulk };
inline constexpr int kMessageClasses = 3;
inline size_t Index(MessageClass c) { return static_cast<size_t>(c); }

// ---- pulls: the owner's side

// The source of a pull: existing bytes, or a function that produces them.
struct PullSegments {
  // Sent in order. They must be resident (not a mapped file that may have to be read first) and
  // stay unchanged while `pin` lives.
  std::vector<std::span<const std::byte>> segments;
  std::shared_ptr<const void> pin;  // never empty
};
struct PullProducer {
  uint64_t bytes = 0;  // in total
  // Called on a serving thread, chunk after chunk: writes bytes [offset, offset + out.size()).
  std::function<Status(uint64_t offset, std::span<std::byte> out)> produce;
};
using PullSource = std::variant<PullSegments, PullProducer>;

// On a serving thread. `request` is valid during the call. An error becomes the pull's status.
using PullHandler =
    std::function<Result<PullSource>(const PeerAddress& from, std::span<const std::byte> request)>;

// ---- pulls: the reader's side

using PullId = StrongId<struct PullIdTag>;

// Called exactly once per pull. The destination is not touched afterwards. `bytes` is how much was
// written; fewer than the destination holds is not an error.
using PullCallback = std::function<void(Status, uint64_t bytes)>;

// ---- the plane

struct DataPlaneLimits {
  // Bytes that a peer may have sent and this side has not yet released, by class. The largest
  // message of a class is half of it.
  std::array<size_t, kMessageClasses> window_bytes = {16 << 20, 64 << 20, 128 << 20};
  // Bytes that wait here for one peer, by class. One message is always accepted when none waits.
  std::array<size_t, kMessageClasses> queue_bytes = {16 << 20, 64 << 20, 128 << 20};
  size_t key_bytes = 1024;
  size_t request_bytes = 64 << 10;
  size_t pulls_per_peer = 256;  // in progress at once, in each direction
  size_t connections = 1024;    // accepted
  size_t strangers = 64;        // accepted and not yet identified; one more closes the oldest
  Duration hello_within = Duration::Seconds(3);  // from connecting to being identified
  Duration connect_within = Duration::Seconds(3);
  Duration unacked_within = Duration::Seconds(3);  // TCP_USER_TIMEOUT
  Duration direct_lease = Duration::Seconds(30);   // a direct reader must finish within it
  int serving_threads = 1;
};

struct DataPlaneStats {
  uint64_t messages_sent = 0, message_bytes_sent = 0;
  uint64_t messages_received = 0, message_bytes_received = 0;
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t pulls_ok = 0, pulls_failed = 0, pull_bytes_received = 0;  // as the reader
  uint64_t pulls_served = 0, pull_bytes_served = 0;                  // as the owner
  uint64_t pulls_mapped = 0;  // of pulls_ok: copied from memory that the owner shares
  uint64_t queue_full = 0;    // messages refused
  uint64_t stalls = 0;        // a message had to wait for the receiver's credit
  uint64_t checksum_errors = 0;
  uint64_t protocol_errors = 0;    // from known peers
  uint64_t strangers_refused = 0;  // wrong or no hello
  uint64_t stale_refused = 0;      // from or to an incarnation that is gone
  uint64_t connections_made = 0, connections_accepted = 0, reconnects = 0, connections_lost = 0;
  uint64_t messages_dropped = 0;  // queued for a peer that was lost
};

struct DataPlaneEvents {
  // `key` is valid during the call, the payload for as long as it is kept. Keeping it holds back
  // the sender's credit. In order within (peer, class).
  std::function<void(const PeerAddress& from, MessageClass, std::span<const std::byte> key,
                     Payload payload)>
      on_message;
  // A connection from or to this incarnation has ended or could not be made.
  std::function<void(const PeerAddress& peer, const Status& reason)> on_peer_lost;
  PullHandler on_pull;  // if empty, pulls are refused
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual const PeerAddress& self() const = 0;

  // Queues a message. Errors: kResourceExhausted (the queue is full), kInvalidArgument (too large),
  // kUnavailable (the peer was lost recently or was forgotten, or the plane is stopping). OK
  // means queued; only replies or on_peer_lost tell whether it arrived.
  virtual Status Send(const PeerAddress& to, MessageClass message_class,
                      std::span<const std::byte> key, Payload payload) = 0;
  // Waits for room in the queue, up to the limit: then kDeadlineExceeded. Not from a callback.
  virtual Status SendWithin(Duration limit, const PeerAddress& to, MessageClass message_class,
                            std::span<const std::byte> key, Payload payload) = 0;

  // Requests bytes from `from` and writes them to `destination`. Concurrent pulls share the
  // connection.
  virtual PullId Pull(const PeerAddress& from, std::span<const std::byte> request,
                      std::span<std::byte> destination, Duration limit, PullCallback done) = 0;
  // The callback is called with kCancelled, unless the pull has just ended.
  virtual void CancelPull(PullId pull) = 0;

  // Memory that readers on this host map and copy from: the fastest way to serve a pull of 32 KiB
  // or more whose segments are all in it. Like other memory it must be pinned; holding it is enough
  // if it does not change. kResourceExhausted: the system has no more.
  virtual Result<std::shared_ptr<SharedMemory>> AllocateShared(size_t bytes) = 0;

  // Fences a process that was declared dead: its connections are closed and never accepted again.
  // The most recent kForgottenMax incarnations are remembered.
  virtual void Forget(uint64_t incarnation) = 0;
  static constexpr size_t kForgottenMax = 4096;

  virtual DataPlaneStats stats() const = 0;

  // Closes all connections; pulls end with kCancelled; no callback runs afterwards. Not from a
  // callback. The destructor does the same.
  virtual void Stop() = 0;
};

struct DataPlaneTls {
  std::string certificate_path, key_path;  // PEM; presented to peers in both directions
  std::string authority_path;              // both sides must present a certificate issued by it
};

struct TcpDataPlaneOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;            // 0: any
  std::string advertised_host;  // peers connect to it; empty: `host`
  std::string token;            // shared by the cluster; never sent. Must not be empty
  uint64_t incarnation = 0;     // 0: drawn at random
  std::string host_id;          // empty: the kernel's boot id and the memory namespace
  std::optional<DataPlaneTls> tls;
  // Maps and copies what processes on this host share, where permitted.
  bool direct_reads = true;
  DataPlaneLimits limits;
};

// Listens immediately, so that a port in use is an error here.
Result<std::unique_ptr<DataPlane>> StartTcpDataPlane(TcpDataPlaneOptions options,
                                                     DataPlaneEvents events);

}  // namespace millrace::net
