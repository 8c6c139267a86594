// PeerSteps: sends steps and batch orders from worker to worker (Orca, section 4.2: a step's plan
// is forwarded before the step is computed). It serves the streams of its peers and keeps one
// stream to each peer, which the first message opens.
//
// Owned by the worker process. Any thread may call it; messages to one peer arrive in the order of
// Send. Callbacks run on gRPC threads, one at a time for each peer; they must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "cluster/link/link_security.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct PeerStepsOptions {
  std::string address = "127.0.0.1:0";  // served here
  LinkSecurity security;
  Incarnation incarnation;  // our own; messages for another incarnation are refused
  size_t peers_max = 1024;  // streams out, and streams in
  size_t send_messages_max = 1024;
  size_t send_bytes_max = size_t{128} << 20;
};

struct PeerStepsCallbacks {
  std::function<void(PeerMessage)> on_message;
  // The stream to a peer is lost, and with it the messages that were not yet written. The next Send
  // opens a new stream.
  std::function<void(Incarnation peer, const Status& reason)> on_peer_lost;
};

struct PeerStepsCounters {
  uint64_t received = 0;
  uint64_t refused = 0;  // streams refused for their token or protocol version, or as too many
  uint64_t stale = 0;    // messages for another incarnation
  uint64_t broken = 0;   // streams ended because a message violated the protocol
};

class PeerSteps {
 public:
  static Result<std::unique_ptr<PeerSteps>> Start(PeerStepsOptions options,
                                                  PeerStepsCallbacks callbacks);
  // No callback runs after it.
  ~PeerSteps();

  int port() const;
  // Never blocks. An error means that the message is lost; on_peer_lost follows unless it is
  // kTooLarge or kInvalidArgument (no address).
  Status Send(const WorkerAddress& to, Term term, const PeerMessage& message);
  // Closes the stream to a peer that is no longer needed; on_peer_lost does not follow.
  void Forget(Incarnation peer);
  PeerStepsCounters counters() const;

 private:
  class Impl;
  explicit PeerSteps(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cluster
