// ControlServer: the controller's end of the control plane. It authenticates workers, carries
// messages in both directions and reports when a session ends. ControllerCore interprets the
// messages.
//
// A session is one gRPC stream. Its first message must be a Join with the right token. Messages of
// one session arrive in order. Heartbeats arrive on separate connections and are read by a separate
// thread, so that no session can delay them.
//
// Owned by ControllerProcess. Any thread may call it. Callbacks run on the server's threads, one at
// a time per session, and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/link/link_security.h"
#include "core/connection_id.h"
#include "core/worker_messages.h"
#include "wire/codec.h"

namespace millrace::cluster {

struct ControlServerOptions {
  std::string address = "127.0.0.1:0";  // "host:port"; port 0: any free port
  LinkSecurity security;
  size_t sessions_max = 1024;
  size_t heartbeat_streams_max = 2048;
  size_t send_messages_max = 4096;  // queued for one worker; beyond this it is dropped
  size_t send_bytes_max = size_t{128} << 20;
  Duration join_limit = Duration::Seconds(10);   // from the stream's start to its Join
  Duration stall_limit = Duration::Seconds(10);  // for writing one message to a slow reader
  Duration close_limit = Duration::Seconds(2);   // for writing queued messages before a close
};

struct ControlServerCallbacks {
  // The first message of a connection is its Join, without the token.
  std::function<void(ConnectionId, ToController, const wire::Envelope&)> on_message;
  // Only for workers that have a session.
  std::function<void(ConnectionId, const Heartbeat&)> on_heartbeat;
  // The last callback for a connection that on_message has named.
  std::function<void(ConnectionId, const Status& reason)> on_disconnect;
};

struct ControlServerCounters {
  uint64_t sessions = 0;  // at present, including those that have not joined
  uint64_t joined = 0;    // in total
  uint64_t refused = 0;   // token, protocol version, too many sessions, no Join in time
  uint64_t broken = 0;    // sessions ended for a message that broke a rule
  uint64_t dropped_slow = 0;
  uint64_t heartbeats = 0, heartbeats_unknown = 0;  // unknown: without a session
};

class ControlServer {
 public:
  // kInvalidArgument: the address does not allow this security. kUnavailable: cannot listen on the
  // address.
  static Result<std::unique_ptr<ControlServer>> Start(ControlServerOptions options,
                                                      ControlServerCallbacks callbacks);
  // Ends all sessions. No callback runs afterwards.
  ~ControlServer();

  int port() const;
  // Never blocks. kNotFound: the session does not exist or has ended. kResourceExhausted: the
  // worker does not read, and its session is being dropped. kTooLarge: the message is not sent and
  // the session continues.
  Status Send(ConnectionId to, Term term, const ToWorker& message);
  // Writes the queued messages, then ends the session. on_disconnect follows.
  void Close(ConnectionId connection, const std::string& reason);
  ControlServerCounters counters() const;

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cluster
