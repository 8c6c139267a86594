// ControlClient: a worker's end of the control plane: one session with a controller, and heartbeats
// on a connection and a thread of their own. When to connect again, and to whom, is the caller's
// affair; a client connects as often as it is told to, one session at a time.
//
// Owned by the worker process. Any thread may call it; Connect and Disconnect by one at a time.
// Callbacks run on threads of gRPC, on_message one at a time; they must not block.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/link_security.h"
#include "core/worker_messages.h"
#include "wire/codec.h"

namespace millrace::cluster {

struct ControlClientOptions {
  std::string controller;  // "host:port"
  LinkSecurity security;
  Incarnation incarnation;
  Duration heartbeat_every = Duration::Seconds(0.25);
  size_t send_messages_max = 4096;  // that wait; then the session is ended
  size_t send_bytes_max = size_t{128} << 20;
};

struct ControlClientCallbacks {
  std::function<void(ToWorker, const wire::Envelope&)> on_message;
  // The session that Connect began is over; once for each. Not after Disconnect has returned.
  std::function<void(const Status& reason)> on_disconnect;
  // Called by the heartbeat thread.
  std::function<Heartbeat()> make_heartbeat;
};

class ControlClient {
 public:
  // kInvalidArgument: security does not suit the address. Files are read here.
  static Result<std::unique_ptr<ControlClient>> Create(ControlClientOptions options,
                                                       ControlClientCallbacks callbacks);
  ~ControlClient();

  // Returns when the controller has let us in, or why not: kUnauthenticated, kFailedPrecondition
  // (protocol version), kUnavailable, kDeadlineExceeded. The caller then sends Join; the token is
  // added to it here. Heartbeats begin.
  Status Connect(Duration limit);
  // Never blocks. kUnavailable: no session. kResourceExhausted: the controller does not read; the
  // session is being ended.
  Status Send(Term term, ToController message);
  void SetHeartbeatEvery(Duration every);
  // Ends session and heartbeats. Not from a callback.
  void Disconnect();

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cluster
