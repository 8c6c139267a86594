// HeartbeatService: reads the heartbeats of all workers on its own thread, which does nothing else.
// Private to ControlServer, which owns it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "cluster/link/link_grpc.h"
#include "core/worker_messages.h"
#include "wire/codec.h"
#include "wire/control.grpc.pb.h"

namespace millrace::cluster {

// Heartbeats use a completion queue, so that our own thread reads them; the others use callbacks.
using ControlCalls =
    proto::Control::WithRawCallbackMethod_Session<proto::Control::WithRawCallbackMethod_Echo<
        proto::Control::WithRawMethod_Heartbeats<proto::Control::Service>>>;

class HeartbeatService {
 public:
  using OnHeartbeat = std::function<void(const Heartbeat&)>;
  HeartbeatService(ControlCalls& calls, Gatekeeper& gate, size_t streams_max, OnHeartbeat on_beat)
      : calls_(calls), gate_(gate), streams_max_(streams_max), on_beat_(std::move(on_beat)) {}

  // AddQueue: before the server is built. Start: after the server was started.
  void AddQueue(grpc::ServerBuilder& builder) { queue_ = builder.AddCompletionQueue(); }
  void Start();
  // Call before the server shuts down.
  void StopExpecting();
  // Call after the server has shut down. Waits until every stream has ended.
  void Join();

 private:
  class Call;
  void ExpectAnother();
  void DropReference();
  void Run();

  ControlCalls& calls_;
  Gatekeeper& gate_;
  const size_t streams_max_;
  const OnHeartbeat on_beat_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  std::atomic<size_t> held_{1};  // users of the queue: each call, and this until Join
  Mutex expecting_;              // held while a call is requested
  bool stopping_ MR_GUARDED_BY(expecting_) = false;
  size_t streams_ = 0;  // used by the thread only
  wire::Decoder decoder_;
};

}  // namespace millrace::cluster
