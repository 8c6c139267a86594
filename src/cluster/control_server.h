// ControlServer: the controller's end of the control plane. It authenticates workers, carries
// messages both pipelines and says when a session ends; what the messages mean is
// cluster::ControllerCore's affair.
//
// A session is one gRPC stream; its first message is a Join with the right token. Messages of one
// session arrive in their order. Heartbeats come on connections of their own and are read by a
// thread of their own, so that nothing that a session does delays them.
//
// Owned by the controller's body. Any thread may call it. Callbacks run on threads of the server,
// for one session one at a time, and must not block: they hand over to the controller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/connection_id.h"
#include "cluster/link_security.h"
#include "core/worker_messages.h"
#include "wire/codec.h"

namespace millrace::cluster {

struct ControlServerOptions {
  std::string address = "127.0.0.1:0";  // "host:port"; port 0: any free one
  LinkSecurity security;
  size_t sessions_max = 1024;
  size_t heartbeat_streams_max = 2048;
  size_t send_messages_max = 4096;  // that wait for one worker; then it is dropped
  size_t send_bytes_max = size_t{128} << 20;
  Duration join_limit = Duration::Seconds(10);   // from the stream's start to its Join
  Duration stall_limit = Duration::Seconds(10);  // one message being written: it does not read
  Duration close_limit = Duration::Seconds(2);   // to write what waits before a close
};

struct ControlServerCallbacks {
  // The first message of a connection is its Join, without the token.
  std::function<void(ConnectionId, ToController, const wire::Envelope&)> on_message;
  // Of a worker that has a session.
  std::function<void(ConnectionId, const Heartbeat&)> on_heartbeat;
  // The last word about a connection that on_message has named.
  std::function<void(ConnectionId, const Status& reason)> on_disconnect;
};

struct ControlServerCounters {
  uint64_t sessions = 0;  // now, with those that have not joined
  uint64_t joined = 0;    // ever
  uint64_t refused = 0;   // token, protocol version, too many sessions, no Join in time
  uint64_t broken = 0;    // sessions ended for a message that broke a rule
  uint64_t dropped_slow = 0;
  uint64_t heartbeats = 0, heartbeats_unknown = 0;  // of no session
};

class ControlServer {
 public:
  // kInvalidArgument: security does not suit the address. kUnavailable: the address is taken.
  static Result<std::unique_ptr<ControlServer>> Start(ControlServerOptions options,
                                                      ControlServerCallbacks callbacks);
  // Ends all sessions; no callback runs afterwards.
  ~ControlServer();

  int port() const;
  // Never blocks. kNotFound: no such session (any more). kResourceExhausted: the worker does not
  // read; its session is being dropped. kTooLarge: the message is not sent, the session goes on.
  Status Send(ConnectionId to, Term term, const ToWorker& message);
  // Writes what waits, then ends the session. on_disconnect follows.
  void Close(ConnectionId connection, const std::string& reason);
  ControlServerCounters counters() const;

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cluster
