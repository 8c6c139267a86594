// ControlClient: a worker's end of the control plane. It holds one session with a controller, and
// sends heartbeats on a separate connection and thread. Echoes have a connection too. The caller
// decides when to reconnect and to which controller. A client can connect repeatedly, but has one
// session at a time.
//
// Owned by the worker process. Any thread may call it; calls of Connect and Disconnect must not
// overlap. Callbacks run on gRPC threads, on_message one at a time, and must not block.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/link/echo_call.h"
#include "cluster/link/link_security.h"
#include "core/worker_messages.h"
#include "wire/codec.h"

namespace millrace::cluster {

struct ControlClientOptions {
  std::string controller;  // "host:port"
  LinkSecurity security;
  Incarnation incarnation;
  Duration heartbeat_every = Duration::Seconds(0.25);
  size_t send_messages_max = 4096;  // queued messages; beyond this the session is ended
  size_t send_bytes_max = size_t{128} << 20;
};

struct ControlClientCallbacks {
  std::function<void(ToWorker, const wire::Envelope&)> on_message;
  // A session that Connect began has ended. Called once per session, and never after Disconnect
  // has returned.
  std::function<void(const Status& reason)> on_disconnect;
  // Called on the heartbeat thread.
  std::function<Heartbeat()> make_heartbeat;
};

// Whether a process of the cluster accepts connections at `address` ("host:port"), with
// certificates that fit. Blocks for `limit` at most, and for a name lookup. kUnavailable,
// kFailedPrecondition: the message says why not.
Status TryConnection(const std::string& address, const LinkSecurity& security, Duration limit);

class ControlClient {
 public:
  // kInvalidArgument: the address does not allow this security. Reads the certificate files.
  static Result<std::unique_ptr<ControlClient>> Create(ControlClientOptions options,
                                                       ControlClientCallbacks callbacks);
  ~ControlClient();

  // Returns once the controller has admitted the session, or with the reason why it has not:
  // kUnauthenticated, kFailedPrecondition (protocol version), kUnavailable, kDeadlineExceeded. On
  // success heartbeats begin, and the caller sends Join; Send adds the token to it.
  Status Connect(Duration limit);
  // Never blocks. kUnavailable: there is no session. kResourceExhausted: the controller does not
  // read, and the session is being ended.
  Status Send(Term term, ToController message);
  void SetHeartbeatEvery(Duration every);
  // A new call that measures the links with the controller. It ends with the session, and when the
  // next one begins. Never blocks. kUnavailable: there is no session.
  Result<std::shared_ptr<EchoCall>> OpenEcho();
  // Ends the session, the heartbeats and the echoes. Must not be called from a callback.
  void Disconnect();

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cluster
