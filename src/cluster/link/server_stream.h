// ServerStream: one incoming call of a peer, as a stream of bytes, with a bounded send queue and an
// orderly or an immediate end. Private to the gRPC servers of this folder. It keeps itself alive
// until gRPC is done with it. Other holders of a pointer may call it from any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/link/link_grpc.h"
#include "cluster/link/send_queue.h"

namespace millrace::cluster {

class ServerStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public std::enable_shared_from_this<ServerStream> {
 public:
  ServerStream(grpc::CallbackServerContext* context, SendLimits limits);

  // Admits the call and starts reading, or ends the call at once.
  void Begin(const grpc::Status& admission);
  // Calls `encode` under the stream's lock, in the order of sending.
  template <typename Encode>
  Status Send(Encode encode);
  // Writes the queued messages, then ends the call with `reason`.
  void End(const Status& reason);
  // Ends the call at once.
  void Drop(const Status& reason);
  // Drops the call if the peer has stopped reading, or if the end takes too long.
  void Tick(Time now, Duration stall_limit, Duration close_limit);
  std::string peer() const { return peer_; }

 protected:
  // Handles one message; a returned error ends the call. One thread at a time.
  virtual Status Received(std::span<const uint8_t> bytes) = 0;
  virtual void StoppedReading() {}  // the call was dropped because the peer does not read
  virtual void Ended(const Status& reason) = 0;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  Status Enqueue(grpc::ByteBuffer buffer) MR_REQUIRES(mutex_);
  void StartNext() MR_REQUIRES(mutex_);
  void FinishOnce(const Status& reason) MR_REQUIRES(mutex_);

  grpc::CallbackServerContext* const context_;
  const std::string peer_;
  std::shared_ptr<ServerStream> self_;
  grpc::ByteBuffer in_;

  Mutex mutex_;
  SendQueue queue_ MR_GUARDED_BY(mutex_);
  bool writing_ MR_GUARDED_BY(mutex_) = false;
  bool finished_ MR_GUARDED_BY(mutex_) = false;
  Time since_ MR_GUARDED_BY(mutex_);  // when the current write or the end began
  std::optional<Status> ending_ MR_GUARDED_BY(mutex_);
  Status reason_ MR_GUARDED_BY(mutex_);
};

template <typename Encode>
Status ServerStream::Send(Encode encode) {
  bool slow = false;
  {
    const MutexLock lock(mutex_);
    if (finished_ || ending_) return NotFound("the session has ended");
    MR_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, encode());
    const Status queued = Enqueue(ToByteBuffer(bytes));
    if (queued.ok()) return queued;
    slow = true;
  }
  if (slow) StoppedReading();
  return ResourceExhausted("the peer reads too slowly; its session is dropped");
}

}  // namespace millrace::cluster
